"""The index over entries leaves out none that a read may need, and decodes each once."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from strandline.overlay import Overlay
from strandline.parts.inline import encode_inline
from strandline.parts.schema import new_schema
from strandline.state.model import Batch, Entry, Interval

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
