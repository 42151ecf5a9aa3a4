"""INSERT, UPDATE, DELETE and COPY as text: in pieces that are checked one by one.

DuckDB parses a statement first, so what is here is one statement of that kind and well formed. Its
parser gives trees of queries alone (`json_serialize_sql` refuses the rest), so the pieces of the
others are found by the words of `duckdb.tokenize`; each that is a query or an expression is parsed
by DuckDB again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from strandline.engine.duck import Token, tokens
from strandline.errors import UsageError

__all__ = [
    "Copy",
    "Delete",
    "Insert",
    "Update",
    "columns_called",
    "names_in",
    "parse_copy",
    "parse_write",
]


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT INTO target (columns) query."""

    target: str
    columns: tuple[str, ...] | None
    """None: those of the table, in order."""
    by_name: bool
    """Whether the query's columns say by their names where they go."""
    query: str


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE target AS alias SET column = expression, … WHERE where."""

    target: str
    alias: str
    values: dict[str, str]
    where: str | None


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE FROM target AS alias WHERE where."""

    target: str
    alias: str
    where: str | None


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY source (columns) FROM or TO file (options)."""

    source: str
    """The name of a table, or the text of a query."""
    is_query: bool
    columns: tuple[str, ...] | None
    """None: those of the table, or of the query."""
    is_from: bool
    file: str
    """As SQL, quotes and all."""
    options: dict[str, str]
    """Their values as SQL; empty for one that is only named."""


def names_in(text: str) -> set[str]:
    """Everything in a SQL text that may be the name of a table, in lower case."""
    return {token.name.casefold() for token in tokens(text) if token.is_name}


def columns_called(names: Iterable[str], known: Sequence[str], what: str) -> list[str]:
    """The table's columns of these names, in any case; `UsageError`, which begins with `what`."""
    exact = {name.casefold(): name for name in known}
    found = []
    for name in names:
        if name.casefold() not in exact:
            raise UsageError(f"{what}: there is no column {name!r}; there are {list(known)}")
        found.append(exact[name.casefold()])
    return found


def parse_write(kind: str, text: str) -> Insert | Update | Delete:
    """The statement in its pieces; `UsageError` for clauses that are not supported."""
    words = _Words(_without_comments(text))
    if kind == "INSERT":
        return _insert(words)
    if words.peek() == "WITH":
        raise UsageError(f"WITH before {kind} is not supported; use a subquery in its place")
    return _update(words) if kind == "UPDATE" else _delete(words)


def _without_comments(text: str) -> list[Token]:
    """The words of a text; where a comment was is a space."""
    words: list[Token] = []
    for token in tokens(text):
        if token.kind not in {"comment", "space"}:
            words.append(token)
        elif words:
            words[-1] = words[-1]._replace(gap=words[-1].gap + " ")
    return words


class _Words:
    """The words of a statement, taken from the front."""

    def __init__(self, words: Sequence[Token]) -> None:
        self._words = words
        self._at = 0

    def peek(self, ahead: int = 0) -> str:
        """A word that lies ahead, in capitals; empty past the end."""
        at = self._at + ahead
        return self._words[at].word.upper() if at < len(self._words) else ""

    def take(self, *expected: str) -> bool:
        """Takes the words if they are next."""
        if any(self.peek(i) != word for i, word in enumerate(expected)):
            return False
        self._at += len(expected)
        return True

    def name(self, what: str) -> str:
        """Takes a name; `UsageError` where there is none, or a dotted one."""
        if self._at >= len(self._words):
            raise UsageError(f"the statement ends where {what} should be")
        token = self._words[self._at]
        if not token.is_name:
            raise UsageError(f"{token.word!r} stands where {what} should be")
        self._at += 1
        if self.peek() == ".":
            raise UsageError(f"name {what} without a schema before it: tables are in no schema")
        return token.name

    def text(self) -> str | None:
        """Takes a text in quotes, as it is written; None where there is none."""
        if self._at >= len(self._words) or self._words[self._at].kind != "string_const":
            return None
        self._at += 1
        return self._words[self._at - 1].word

    def until(self, *ends: tuple[str, ...]) -> str:
        """Takes the text up to one of the sequences of words, outside of all parentheses."""
        start, depth = self._at, 0
        while self._at < len(self._words):
            if depth == 0 and any(self._stands(end) for end in ends):
                break
            word = self.peek()
            depth += (word in {"(", "[", "{"}) - (word in {")", "]", "}"})
            self._at += 1
        return self._text(start, self._at)

    def _stands(self, end: tuple[str, ...]) -> bool:
        # "a IS DISTINCT FROM b" is no clause.
        if end == ("FROM",) and self.peek(-1) == "DISTINCT":
            return False
        return all(self.peek(i) == word for i, word in enumerate(end))

    def rest(self) -> str:
        """Takes all that is left."""
        return self.until()

    def _text(self, start: int, end: int) -> str:
        return "".join(token.word + token.gap for token in self._words[start:end]).strip()


def _insert(words: _Words) -> Insert:
    before = words.until(("INSERT",))
    words.take("INSERT")
    if not words.take("INTO"):
        raise UsageError(
            "INSERT OR REPLACE and OR IGNORE are not supported: into a keyed table INSERT replaces "
            f"by itself; {_ONLY_NEW}"
        )
    target = words.name("the table")
    if words.take("AS"):
        words.name("the alias")
    columns = None
    opens = words.peek() == "(" and words.peek(1) not in {"SELECT", "WITH", "FROM", "VALUES", "("}
    if opens:
        words.take("(")
        columns = tuple(_names(words))
    by_name = words.take("BY", "NAME")
    words.take("BY", "POSITION")
    if words.peek() == "DEFAULT":
        raise UsageError("INSERT … DEFAULT VALUES is not supported: columns have no defaults")
    query = words.until(("RETURNING",), ("ON", "CONFLICT"))
    if words.peek() == "ON":
        raise UsageError(
            f"INSERT … {words.rest()} is not supported: into a keyed table INSERT replaces by "
            f"itself, which is DO UPDATE; {_ONLY_NEW}, which is DO NOTHING"
        )
    _refuse_returning(words, "INSERT")
    return Insert(target, columns, by_name, f"{before} {query}".strip().rstrip("; "))


_ONLY_NEW = (
    "for rows of new keys alone write INSERT INTO t SELECT … FROM … AS n WHERE NOT EXISTS "
    "(SELECT 1 FROM t WHERE t.key = n.key)"
)


def _refuse_returning(words: _Words, kind: str) -> None:
    if words.peek() == "RETURNING":
        raise UsageError(
            f"{kind} … RETURNING is not supported: it gives a Commit with the number of rows; read "
            "them with SELECT in the same transaction, tx.sql(…)"
        )


def _names(words: _Words) -> Iterator[str]:
    while True:
        yield words.name("a column")
        if words.take(")"):
            return
        if not words.take(","):
            raise UsageError(f"{words.peek()!r} stands where a comma should be")


def _update(words: _Words) -> Update:
    words.take("UPDATE")
    target, alias = _target(words, "SET")
    if not words.take("SET"):
        raise UsageError(f"{words.peek()!r} stands where SET should be")
    values: dict[str, str] = {}
    while True:
        column = words.name("a column")
        if not words.take("="):
            raise UsageError(f"SET {column}: write column = expression, one by one")
        if column in values:
            raise UsageError(f"UPDATE sets the column {column!r} twice")
        values[column] = words.until((",",), ("WHERE",), ("FROM",), ("RETURNING",), (";",))
        if not words.take(","):
            break
    return Update(target, alias, values, _where(words, "UPDATE"))


def _delete(words: _Words) -> Delete:
    if not words.take("DELETE", "FROM"):
        raise UsageError("write DELETE FROM the table")
    target, alias = _target(words, "WHERE")
    return Delete(target, alias, _where(words, "DELETE"))


def _target(words: _Words, following: str) -> tuple[str, str]:
    target = words.name("the table")
    if words.take("AS") or words.peek() not in {following, "USING", "RETURNING", ";", ""}:
        return target, words.name("the alias")
    return target, target


def parse_copy(text: str) -> Copy:
    """The statement in its pieces; `UsageError` for forms that are not supported."""
    words = _Words(_without_comments(text))
    words.take("COPY")
    columns, is_query = None, words.take("(")
    if is_query:
        source = words.until((")",))
        words.take(")")
    else:
        source = words.name("the table")
        if words.take("("):
            columns = tuple(_names(words))
    is_from = words.take("FROM")
    words.take("TO")
    file = _file(words, is_from=is_from)
    words.take("WITH")
    options = dict(_options(words) if words.take("(") else _old_options(words))
    words.take(";")
    if words.peek():
        raise UsageError(f"COPY … {words.rest()}: write options as (FORMAT csv, HEADER)")
    return Copy(source, is_query, columns, is_from, file, options)


def _file(words: _Words, *, is_from: bool) -> str:
    form = f"COPY … {'FROM' if is_from else 'TO'} 'file.parquet'"
    if words.peek() in {"STDIN", "STDOUT"}:
        raise UsageError(f"{words.peek()} is no file: write {form}")
    opened = words.take("(")
    file = words.text()
    if file is None or (opened and not words.take(")")):
        raise UsageError(f"write the path of the file in quotes: {form}")
    return file


def _options(words: _Words) -> Iterator[tuple[str, str]]:
    """Options in parentheses, of which the first was taken."""
    seen: set[str] = set()
    while not words.take(")"):
        name = words.name("an option").lower()
        if name in seen:
            raise UsageError(f"COPY has the option {name.upper()} twice")
        seen.add(name)
        yield name, words.until((",",), (")",))
        words.take(",")


def _old_options(words: _Words) -> Iterator[tuple[str, str]]:
    """Options as PostgreSQL once had them: CSV HEADER DELIMITER AS ';'."""
    while words.peek() not in {"", ";"}:
        name = words.name("an option").lower()
        if name in {"csv", "parquet", "json"}:
            yield "format", name
        elif name == "header":
            yield name, ""
        elif name in {"delimiter", "null", "quote", "escape", "encoding"}:
            words.take("AS")
            yield name, words.text() or ""
        else:
            raise UsageError(f"COPY … {name.upper()}: write options as (FORMAT csv, HEADER)")


def _where(words: _Words, kind: str) -> str | None:
    where = None
    if words.take("WHERE"):
        where = words.until(("RETURNING",), (";",))
    words.take(";")
    _refuse_returning(words, kind)
    if words.peek():
        raise UsageError(f"{kind} … {words.rest()}: this clause is not supported; {_INSTEAD[kind]}")
    return where


_INSTEAD = {
    "UPDATE": "write UPDATE t SET column = (SELECT o.value FROM o WHERE o.key = t.key) WHERE "
    "EXISTS (SELECT 1 FROM o WHERE o.key = t.key)",
    "DELETE": "write DELETE FROM t WHERE EXISTS (SELECT 1 FROM o WHERE o.key = t.key)",
}
