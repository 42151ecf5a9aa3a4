"""The index over entries leaves out none that a read may need, and decodes each once."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from strandline.parts.files.inline import encode_inline
from strandline.parts.keys import KeyCodec
from strandline.parts.schema import new_schema
from strandline.state.model import Batch, Entry, Interval
from strandline.txn.overlay import Overlay

KEYS = st.binary(max_size=3)
BOUNDS = st.tuples(KEYS, KEYS).map(sorted)
INTERVALS = st.lists(
    st.tuples(KEYS, st.none() | KEYS).map(lambda pair: Interval(*pair)), min_size=1, max_size=3
)


def entry(time: int, lower: bytes, upper: bytes, rows: int = 1, inline: bytes = b"x") -> Entry:
    return Entry("t", time, 0, "w", Batch(rows=rows, lower=lower, upper=upper, inline=inline))


@given(st.lists(st.tuples(BOUNDS, st.integers(0, 1)), max_size=60), INTERVALS)
def test_exactly_the_entries_that_touch_an_interval_are_found_in_the_order_of_commits(
    bounds: list[tuple[list[bytes], int]], intervals: list[Interval]
) -> None:
    entries = tuple(entry(n, low, up, rows) for n, ((low, up), rows) in enumerate(bounds))
    expected = [
        e
        for e in entries
        if e.batch.rows
        and any(
            i.lower <= e.batch.upper and (i.upper is None or e.batch.lower < i.upper)
            for i in intervals
        )
    ]
    overlay = Overlay()
    assert list(overlay.touching("t", entries, intervals)) == expected
    # Enough of them to be indexed give the same.
    far = tuple(entry(1_000 + n, b"\xff" * 9, b"\xff" * 9, 0) for n in range(40))
    assert list(overlay.touching("t", entries + far, intervals)) == expected
    assert list(overlay.touching("t", entries, None)) == [e for e in entries if e.batch.rows]


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), max_size=110),
    st.lists(st.integers(-1, 61), min_size=1, max_size=4, unique=True),
    st.sets(st.integers(0, 109)),
)
def test_keys_are_looked_for_in_the_rows_themselves(
    commits: list[list[int]], keys: list[int], together: set[int]
) -> None:
    """`together`: which commits have the time of the one before."""
    schema = new_schema(pa.schema([("k", pa.int64())]), "k")
    codec = KeyCodec(schema)
    entries, time = [], 0
    for number, values in enumerate(commits):
        time += number not in together
        data = encode_inline(pa.table([sorted(values)], schema=schema.arrow))
        low, high = (codec.encode((bound(values),)) for bound in (min, max))
        batch = Batch(rows=len(values), lower=low, upper=high, inline=data)
        entries.append(Entry("t", time, number, "w", batch))
    intervals = [
        Interval(encoded, encoded + b"\0") for encoded in sorted(codec.encode((k,)) for k in keys)
    ]
    overlay = Overlay()
    found, shadowed = overlay.holding("t", tuple(entries), intervals, schema, codec)
    assert not shadowed
    assert list(found) == sorted(found, key=lambda e: (e.time, e.ordinal))
    kept = {e.ordinal for e in found}
    needed = {n for n, values in enumerate(commits) if {*values} & {*keys}}
    may = {e.ordinal for e in overlay.touching("t", tuple(entries), intervals)}
    assert needed <= kept <= may
    if len(entries) >= 24 and not together:
        assert len(kept - needed) < 8, "only what is in no block is not looked into"
    (key, *_) = intervals
    newest, shadowed = overlay.holding("t", tuple(entries), [key], schema, codec, newest=True)
    of_key = [e for e in entries if min(keys) in commits[e.ordinal]]
    assert of_key[-1:] == [e for e in newest if e in of_key][-1:]
    if shadowed:
        assert of_key
    if len(entries) >= 24 and not together:
        assert len(newest) <= 8
        assert shadowed == any(e.ordinal < len(entries) // 8 * 8 for e in of_key)


def test_an_entry_is_decoded_once_and_the_oldest_is_forgotten_first() -> None:
    schema = new_schema(pa.schema([("k", pa.int64())]), "k")
    overlay = Overlay(bytes_max=10_000)
    data = encode_inline(pa.table([[1]], schema=schema.arrow))
    entries = [entry(n, b"", b"", inline=data) for n in range(20)]
    first = overlay.rows(entries[0], schema)
    assert first.to_pydict() == {"k": [1]}
    assert overlay.rows(entries[0], schema) is first
    for other in entries[1:]:
        overlay.rows(other, schema)
    assert overlay.rows(entries[0], schema) is not first
    assert overlay.rows(entries[-1], schema) is overlay.rows(entries[-1], schema)
