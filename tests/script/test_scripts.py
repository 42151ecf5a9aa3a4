"""Transcripts of a shard: what was asked, `----`, what came out.

A script is a text file of blocks, divided by empty lines. A block is one or more commands, a line
`----`, and the output; comments begin with `#` before the commands. To write down what comes out
now, run `STRANDLINE_REWRITE=1 pytest tests/script` and read the difference.

Commands (times and numbers decimal, keys as text):

    as SESSION [fenced]               the author of what follows; fenced: its record is gone
    create ID NAME [@CLOCK]           one commit each
    rename ID NAME [@CLOCK]
    drop ID [@CLOCK]
    commit [ID:LOWER-UPPER …] [@CLOCK] [token=SCOPE/NUMBER] [since=TIME] [epoch=N] [position=P]
           [at=TIME] [merged=SCOPE,…] [begun=TIME]
    tidy ID/TIME/ORDINAL …
    apply EXPECTED..NEW [PART:LOWER-UPPER@TIME[*SIZE] …] [owner=ID]
    init_txns TIME                    a txns shard by itself; register to compact_txns are of one
    register ID NUMBER at=TIME
    forget ID at=TIME
    withdraw ID NUMBER
    compact_txns SINCE [max=N]
    join OWNER [over=NUMBER]          of a shard that is registered; prints meta, as leave does
    leave OWNER NUMBER UPPER
    compact REF … -> [LEAF:PART:LOWER-UPPER@TIME[*SIZE] …]
    descend                           L0 down into the leaves
    split LEAF POINT …
    advance UPPER
    retain SINCE                      moves the hold of the retention
    attach ID WORKER                  makes the author the holder of a table
    release ID EPOCH
    beat                              says that the author lives
    expire SESSION COUNT
    acknowledge SESSION [COUNT]
    swept SESSION AT [last]
    close [littered]
    sessions                          all of them, and who holds what
    hold ID [seqno]                   opens a hold; seqno: on objects too
    let_go ID
    rollup [verified]                 names a rollup of the newest state, as the next record would
    retire SEQNO … [read=SEQNO,…] [kept=SEQNO,…]    rollups, each with an object of its own
    receipt FIRST..LAST               copies of the records in between
    drop_receipt FIRST
    mark SEQNO @TIME                  what the location's clock showed
    vacuum DELAY @NOW                 what a run may do
    collect                           forgets what the last `vacuum` said may be deleted
    finish
    clear REF …
    state                             everything that is in the state
    names TIME                        the tables as of a time
    read [LOWER..UPPER …] [@AS_OF] [+TIME:LOWER-UPPER …]    the tasks; `+` is an overlay's entry
    plan STRATEGY [max=N]      the merges
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import StrandlineError
from strandline.state.commands import (
    Acknowledge,
    AdvanceUpper,
    Apply,
    Attach,
    Clear,
    CloseHold,
    CloseSession,
    Collect,
    Command,
    Commit,
    Compact,
    CompactTxns,
    Expire,
    Finish,
    Heartbeat,
    InitTxns,
    Join,
    KeepReceipts,
    Leave,
    OpenHold,
    Output,
    Read,
    Release,
    Retain,
    RetireRollups,
    Split,
    Swept,
    TableChange,
    Tidy,
    Withdraw,
    Write,
)
from strandline.state.decide import Author, decide
from strandline.state.garbage import plan_vacuum
from strandline.state.invariants import broken
from strandline.state.model import (
    L0,
    Dead,
    Diff,
    Entry,
    Hold,
    Holder,
    Interval,
    Key,
    Leaf,
    Mark,
    Meta,
    Part,
    PartUse,
    Receipt,
    Reference,
    Rollup,
    Session,
    TableVersion,
    Tidied,
    TokenWindow,
)
from strandline.state.plan import plan_compaction, plan_descent, plan_read
from strandline.state.replay import State, initial, replay
from strandline.state.tables import current_table
from tests.support.states import batch, creates

HERE = Path(__file__).parent
REWRITE = bool(os.environ.get("STRANDLINE_REWRITE"))


@dataclass
class Block:
    """Some commands, and what they printed."""

    comment: list[str]
    commands: list[str]
    output: list[str]

    def __str__(self) -> str:
        return "\n".join([*self.comment, *self.commands, "----", *self.output])


def blocks(text: str) -> Iterator[Block]:
    for piece in text.strip().split("\n\n"):
        head, divider, output = piece.partition("\n----")
        lines = head.splitlines()
        comment = [line for line in lines if line.startswith("#")]
        commands = [line for line in lines if not line.startswith("#")]
        assert divider or not commands, f"a block without ----:\n{piece}"
        yield Block(comment, commands, output.strip("\n").splitlines() if output.strip() else [])


# --- reading commands


def words(line: str) -> tuple[list[str], dict[str, str]]:
    """The plain words, and the ones with a `name=value` or a sign in front."""
    plain: list[str] = []
    named: dict[str, str] = {}
    for word in line.split():
        if word.startswith("@"):
            named["@"] = word[1:]
        elif "=" in word and not word.startswith("+"):
            name, _, value = word.partition("=")
            named[name] = value
        else:
            plain.append(word)
    return plain, named


def bounds(text: str) -> tuple[bytes, bytes]:
    lower, _, upper = text.partition("-")
    return lower.encode(), upper.encode()


def interval(text: str) -> Interval:
    lower, _, upper = text.partition("..")
    return Interval(lower.encode(), upper.encode() if upper else None)


def placed(text: str) -> tuple[int, Part]:
    """`PART:LOWER-UPPER@TIME[*SIZE]`"""
    name, span, rest = text.replace("@", ":").split(":")
    time, _, size = rest.partition("*")
    lower, upper = bounds(span)
    return int(time), Part(name, int(size or 100), 1, lower, upper)


# --- writing what came out


def shown(text: bytes) -> str:
    return text.decode("ascii", "backslashreplace").replace("\0", "·")


def span(found: Interval) -> str:
    upper = "∞" if found.upper is None else shown(found.upper)
    return f"[{shown(found.lower)},{upper})"


def frontier(time: int | None) -> str:
    return "∅" if time is None else str(time)


def show_meta(meta: Meta) -> str:
    text = f"upper {frontier(meta.upper)}, since {frontier(meta.since)}"
    text = f"{text}, {meta.leaves} leaves and {meta.references} references ever"
    text += meta.owner and f", joined by {meta.owner} as number {meta.joins}"
    return f"{text}{meta.claim and f', claimed by {meta.claim}'}"


def show_session(session: Session) -> str:
    text = f"{session.count} records since {session.opened}"
    text += f" of {session.worker}" if session.worker else ""
    for word in ("expired", "acknowledged", "swept"):
        at = getattr(session, word)
        text += "" if at is None else f", {word} at {at}"
    return text


def show_holder(holder: Holder) -> str:
    who = f"{holder.worker} ({holder.session})" if holder.session else "nobody"
    return f"epoch {holder.epoch}, {who}{holder.position and f', position {holder.position}'}"


def show_hold(hold: Hold) -> str:
    held = f"since {frontier(hold.since)}"
    held += "" if hold.seqno is None else f", seqno {hold.seqno}"
    whose = hold.session or "nobody"
    return f"{hold.kind} from {held}, epoch {hold.epoch}, of {whose}"


def show_reference(ref: Reference) -> str:
    where = "L0" if ref.leaf == L0 else f"leaf {ref.leaf}"
    text = f"#{ref.id} {ref.part.key} {span(ref.interval)} @{ref.time} in {where}"
    text += "" if ref.reads_before is None else f", for reads before {ref.reads_before}"
    return text + ("" if ref.rows_from is None else f", rows from {ref.rows_from}")


def show_table(version: TableVersion) -> str:
    valid = f"[{version.valid_from},{frontier(version.valid_until)})"
    return f"{version.name!r} v{version.version} {valid}"


SHOWN: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "gone",
    Meta: show_meta,
    Session: show_session,
    Hold: show_hold,
    Holder: show_holder,
    Mark: lambda mark: f"at {mark.at}",
    Receipt: lambda receipt: f"through {receipt.last}: {receipt.key}, {receipt.size} bytes",
    Rollup: lambda r: f"{r.key}, {r.size} bytes{', verified' if r.verified else ''}",
    Leaf: lambda leaf: f"leaf {leaf.id} {span(leaf.interval)} of {leaf.parent}",
    Reference: show_reference,
    PartUse: lambda use: f"{use.references} references, born {use.born}",
    Dead: lambda dead: f"{dead.size} bytes, lived from {dead.born} to {dead.dead}",
    Entry: lambda e: (
        f"{shown(e.batch.lower)}-{shown(e.batch.upper)} by {e.session}"
        if e.batch.rows
        else f"tidied, was by {e.session}"
    ),
    TableVersion: show_table,
    Tidied: lambda tidied: f"through {tidied.tidied_through}",
    TokenWindow: lambda w: ", ".join(f"{number} at {time}" for number, time in w.results),
}


def item(collection: str, key: Key, after: object) -> str:
    name = "/".join(shown(piece) if isinstance(piece, bytes) else str(piece) for piece in key)
    return f"{collection} {name or '·'}: {SHOWN[type(after)](after)}"


# --- running them


@dataclass
class Script:
    """One shard, and everything that the commands of a script do to it."""

    state: State = field(default_factory=initial)
    session: str = "w1"
    fenced: bool = False
    known: set[str] = field(default_factory=set)
    deletable: tuple[Key, ...] = ()

    def run(self, line: str) -> list[str]:
        verb, _, rest = line.partition(" ")
        try:
            return VERBS[verb](self, *words(rest))
        except StrandlineError as error:
            return [f"{error.kind}: {error}"]

    def do(self, command: Command[Any]) -> list[str]:
        first = self.session not in self.known and not self.fenced
        decision = decide(self.state, command, Author(self.session, first))
        if decision.diffs:
            self.known.add(self.session)
            self.state = replay(self.state, self.state.seqno + 1, b"", decision.diffs)
        assert broken(self.state) == []
        diffs = [d for d in decision.diffs if d.collection not in {"sessions", "meta"}]
        return [f"-> {result(decision.result)}", *map(changed, diffs)]

    def version(self, table: str) -> TableVersion:
        found = current_table(self.state, table)
        if found is None:  # DDL that comes too late still has the version that it saw
            *_, found = (v for _, v in self.state.tables.prefix((table,)))
        return found


def result(found: object) -> str:
    match found:
        case bool() | int() | None:
            return str(found).lower()
        case _:
            return str(found).partition("(")[2].rstrip(")")


def changed(diff: Diff) -> str:
    return "   " + item(*diff)


Words = list[str]
Named = dict[str, str]


def run_as(script: Script, plain: Words, _: Named) -> list[str]:
    script.session = plain[0]
    script.fenced = "fenced" in plain
    return []


def run_create(script: Script, plain: Words, named: Named) -> list[str]:
    change = creates(plain[0], plain[1])
    return script.do(Commit(int(named.get("@", 0)), changes=(change,)))


def run_rename(script: Script, plain: Words, named: Named) -> list[str]:
    now = script.version(plain[0])
    change = TableChange(replace(now, name=plain[1]), int(named.get("version", now.version)))
    return script.do(Commit(int(named.get("@", 0)), changes=(change,)))


def run_drop(script: Script, plain: Words, named: Named) -> list[str]:
    now = script.version(plain[0])
    change = TableChange(now, now.version, dropped=True)
    return script.do(Commit(int(named.get("@", 0)), changes=(change,)))


def run_commit(script: Script, plain: Words, named: Named) -> list[str]:
    since = int(named["since"]) if "since" in named else None
    writes = []
    for word in plain:
        table, _, keys = word.partition(":")
        writes.append(Write(table, batch(*bounds(keys))))
    reads = [] if since is None else [Read(write.table, since) for write in writes]
    scope, _, number = named.get("token", "").partition("/")
    token = (scope, int(number)) if scope else None
    tables = sorted({write.table for write in writes})
    command = Commit(
        int(named.get("@", 0)),
        tuple(writes),
        token=token,
        reads=tuple(reads),
        epochs=tuple((table, int(named["epoch"])) for table in tables if "epoch" in named),
        positions=tuple((table, named["position"]) for table in tables if "position" in named),
        at=int(named["at"]) if "at" in named else None,
        merged=tuple(word for word in named.get("merged", "").split(",") if word),
        begun=int(named.get("begun", named.get("at", 0))),
    )
    return script.do(command)


def run_init_txns(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(InitTxns(int(plain[0])))


def run_register(script: Script, plain: Words, named: Named) -> list[str]:
    change = creates(plain[0], plain[0])
    numbered = replace(change, after=replace(change.after, version=int(plain[1])))
    return script.do(Commit(0, changes=(numbered,), at=int(named["at"])))


def run_forget(script: Script, plain: Words, named: Named) -> list[str]:
    now = script.version(plain[0])
    change = TableChange(now, now.version, dropped=True)
    return script.do(Commit(0, changes=(change,), at=int(named["at"])))


def run_withdraw(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(Withdraw(plain[0], int(plain[1])))


def run_compact_txns(script: Script, plain: Words, named: Named) -> list[str]:
    return script.do(CompactTxns(int(plain[0]), int(named.get("max", 1_000))))


def run_join(script: Script, plain: Words, named: Named) -> list[str]:
    done = script.do(Join(plain[0], int(named.get("over", 0))))
    return [*done, item("meta", (), script.state.meta)]


def run_leave(script: Script, plain: Words, _: Named) -> list[str]:
    done = script.do(Leave(plain[0], int(plain[1]), int(plain[2])))
    return [*done, item("meta", (), script.state.meta)]


def run_tidy(script: Script, plain: Words, _: Named) -> list[str]:
    keys = []
    for word in plain:
        table, time, ordinal = word.split("/")
        keys.append((table, int(time), int(ordinal)))
    return script.do(Tidy(tuple(keys)))


def run_apply(script: Script, plain: Words, named: Named) -> list[str]:
    expected, new = plain[0].split("..")
    parts = tuple(placed(word) for word in plain[1:])
    return script.do(Apply(int(expected), int(new), parts, named.get("owner", "")))


def run_compact(script: Script, plain: Words, named: Named) -> list[str]:
    arrow = plain.index("->")
    ids = {int(word) for word in plain[:arrow]}
    found = {ref.id: key for key, ref in script.state.references.range()}
    outputs = []
    for word in plain[arrow + 1 :]:
        leaf, _, rest = word.partition(":")
        time, part = placed(rest)
        lower = next((k[0] for k, v in script.state.leaves.range() if v.id == int(leaf)), b"")
        outputs.append(Output(int(leaf), lower, part, time))
    inputs = tuple(found.get(number, (1, b"", number)) for number in sorted(ids))
    return script.do(Compact(inputs, tuple(outputs)))


def run_descend(script: Script, _: Words, __: Named) -> list[str]:
    return [line for command in plan_descent(script.state) for line in script.do(command)]


def run_split(script: Script, plain: Words, _: Named) -> list[str]:
    leaf = int(plain[0])
    lower = next((k[0] for k, v in script.state.leaves.range() if v.id == leaf), b"")
    return script.do(Split(leaf, lower, tuple(word.encode() for word in plain[1:])))


def run_retain(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(Retain(int(plain[0])))


def run_advance(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(AdvanceUpper(int(plain[0])))


def run_close(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(CloseSession(littered="littered" in plain))


def run_attach(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(Attach(plain[0], plain[1]))


def run_release(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(Release(plain[0], int(plain[1])))


def run_beat(script: Script, _: Words, __: Named) -> list[str]:
    return script.do(Heartbeat())


def run_expire(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(Expire(plain[0], int(plain[1])))


def run_acknowledge(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(Acknowledge(plain[0], int(plain[1]) if len(plain) > 1 else None))


def run_swept(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(Swept(plain[0], int(plain[1]), last="last" in plain))


def run_sessions(script: Script, _: Words, __: Named) -> list[str]:
    found = [item("sessions", *each) for each in script.state.sessions.range()]
    return found + [item("holders", *each) for each in script.state.holders.range()]


def run_hold(script: Script, plain: Words, _: Named) -> list[str]:
    hold = Hold(None, 0 if "seqno" in plain else None, kind="reader")
    return script.do(OpenHold(plain[0], hold, leased=False))


def run_let_go(script: Script, plain: Words, _: Named) -> list[str]:
    hold = script.state.holds.get((plain[0],))
    return script.do(CloseHold(plain[0], 0 if hold is None else hold.epoch))


def run_rollup(script: Script, plain: Words, _: Named) -> list[str]:
    state = script.state
    rollup = Rollup(state.seqno, f"rollup-{state.seqno}", 10, "verified" in plain)
    diff = Diff("rollups", (rollup.seqno,), rollup)
    script.state = replay(state, state.seqno + 1, b"", [diff])
    return [changed(diff)]


def run_retire(script: Script, plain: Words, named: Named) -> list[str]:
    dropped = rollups_at(plain)
    there = [r.key for _, r in script.state.rollups.range() if r.key not in dropped]
    kept = rollups_at(named["kept"].split(",")) if "kept" in named else tuple(there)
    objects = tuple(Dead(f"rollup-{seqno}", int(seqno), 0, 10) for seqno in plain)
    verified = rollups_at(named.get("read", "").split(","))
    return script.do(RetireRollups(dropped, kept, objects, verified))


def rollups_at(seqnos: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"rollup-{seqno}" for seqno in seqnos if seqno)


def run_receipt(script: Script, plain: Words, _: Named) -> list[str]:
    first, last = (int(word) for word in plain[0].split(".."))
    receipt = Receipt(last, f"receipt-{first}-{last}-{script.session}", 10)
    return script.do(KeepReceipts(((first, receipt),)))


def run_drop_receipt(script: Script, plain: Words, _: Named) -> list[str]:
    return script.do(KeepReceipts(dropped=(int(plain[0]),)))


def run_mark(script: Script, plain: Words, named: Named) -> list[str]:
    return script.do(Collect(mark=(int(plain[0]), Mark(int(named["@"])))))


def run_vacuum(script: Script, plain: Words, named: Named) -> list[str]:
    plan = plan_vacuum(script.state, int(named["@"]), int(plain[0]))
    script.deletable = tuple(key for key, _ in plan.delete)
    lines = [f"delete {dead.key}" for _, dead in plan.delete]
    lines += [f"{dead.key} waits for the {reason}" for dead, reason in plan.waits]
    lines += ["write a rollup"] if plan.roll_up else []
    lines += [f"mark {plan.seqno}"] if plan.mark else []
    lines += [f"forget the mark of {seqno}" for seqno in plan.stale_marks]
    lines += [f"retire {rollup.key}" for rollup in plan.retire]
    if plan.receipts_from <= plan.receipts_through:
        lines.append(f"receipts of {plan.receipts_from} to {plan.receipts_through}")
    lines += [f"truncate before {plan.truncate_before}"] if plan.truncate_before else []
    return lines or ["nothing to do"]


def run_collect(script: Script, _: Words, __: Named) -> list[str]:
    return script.do(Collect(script.deletable))


def run_finish(script: Script, _: Words, __: Named) -> list[str]:
    return script.do(Finish())


def run_clear(script: Script, plain: Words, _: Named) -> list[str]:
    ids = {int(word) for word in plain}
    keys = tuple(key for key, ref in script.state.references.range() if ref.id in ids)
    return script.do(Clear(keys))


def run_state(script: Script, _: Words, __: Named) -> list[str]:
    return [
        item(name, key, after)
        for name, items in script.state.maps.items()
        for key, after in items.range()
    ]


def run_names(script: Script, plain: Words, _: Named) -> list[str]:
    time = int(plain[0])
    return [
        f"{version.name} is {version.table}"
        for _, version in script.state.tables.range()
        if version.valid_from <= time
        and (version.valid_until is None or time < version.valid_until)
    ]


def run_read(script: Script, plain: Words, named: Named) -> list[str]:
    entries = []
    for word in plain:
        if word.startswith("+"):
            time, _, keys = word[1:].partition(":")
            entries.append(Entry("t", int(time), 0, "w", batch(*bounds(keys))))
    asked = [interval(word) for word in plain if not word.startswith("+")] or None
    tasks = plan_read(script.state, entries, asked, int(named.get("@", 99)))
    lines = []
    for task in tasks:
        sources = [f"{ref.part.key}{span(ref.interval)}" for ref in task.references]
        sources += [f"@{entry.time}" for entry in task.entries]
        asked_here = " ".join(map(span, task.intervals))
        lines.append(f"leaf {task.leaf.id} {asked_here}: {' '.join(sources)}")
    return lines


def run_plan(script: Script, plain: Words, named: Named) -> list[str]:
    jobs = plan_compaction(
        script.state,
        plain[0],
        parts_max=int(named.get("max", 11)),
    )
    lines = []
    for job in jobs:
        assert job.leaf is not None
        inputs = " ".join(ref.part.key for _, ref in job.inputs)
        whole = "not whole" if job.markers_from is None else "whole"
        lines.append(f"leaf {job.leaf.id}: {inputs} ({job.size} bytes, {whole})")
    return lines


VERBS: dict[str, Callable[[Script, Words, Named], list[str]]] = {
    name.removeprefix("run_"): function
    for name, function in list(globals().items())
    if name.startswith("run_")
}


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_the_transcript_is_what_comes_out(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    script = Script()
    found = []
    for block in blocks(text):
        output = [line for command in block.commands for line in script.run(command)]
        found.append(Block(block.comment, block.commands, output))
    written = "\n\n".join(
        str(block) if block.commands else "\n".join(block.comment) for block in found
    )
    if REWRITE:
        path.write_text(written + "\n", encoding="utf-8")
    assert text == written + "\n"


def test_there_are_transcripts_and_each_checks_something() -> None:
    paths = list(HERE.glob("*.txt"))
    assert paths
    for path in paths:
        assert any(block.output for block in blocks(path.read_text(encoding="utf-8"))), path
