"""Each invariant sees the damage that it is there to see, and sees none in a sound state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.state.commands import Split
from strandline.state.invariants import INVARIANTS, broken
from strandline.state.model import (
    EVERYTHING,
    L0,
    Dead,
    Diff,
    Entry,
    Hold,
    Holder,
    Interval,
    Leaf,
    Meta,
    PartUse,
    Receipt,
    Reference,
    Session,
    TableVersion,
)
from strandline.state.replay import State, initial, replay
from tests.support.states import Shard, batch, creates, part, table, write


def sound() -> State:
    """A shard that is txns and data shard in one: two tables, an entry, two leaves, three parts."""
    shard = Shard()
    shard.commit(changes=(creates("t1", "orders"), creates("t2", "parts")))
    shard.do(Split(1, b"", (b"m",)))
    shard.apply(5, (1, part("p1", b"a", b"c")), (2, part("p2", b"n", b"z")))
    shard.apply(9, (7, part("p3", b"b", b"q")))
    shard.commit(write("t1"), clock=12)
    return shard.state


def damaged(*diffs: Diff) -> State:
    state = sound()
    return replay(state, state.seqno + 1, b"", diffs)


def names(state: State) -> list[str]:
    """The invariants that the state breaks."""
    return sorted({text.partition(":")[0] for text in broken(state)})


ORDERS = replace(table("t1", "orders"), version=1)
P1 = part("p1", b"a", b"c")
ENDED = replace(P1, has_end=True)
LEFT = Interval(b"", b"m")
RIGHT = Interval(b"m", None)
COUNTED = Meta(upper=13, leaves=3, references=3)

DAMAGES: list[tuple[str, tuple[Diff, ...]]] = [
    ("leaves-cover-the-key-space", (Diff("leaves", (b"m",), Leaf(3, Interval(b"n"), 1)),)),
    (
        "leaves-cover-the-key-space",
        (Diff("leaves", (b"m",), Leaf(3, Interval(b"m", b"z"), 1)),),
    ),
    (
        "leaves-cover-the-key-space",
        (
            Diff("leaves", (b"",), None),
            Diff("references", (1, b"", 1), None),
            Diff("parts", ("p1",), None),
        ),
    ),
    ("leaf-ids-are-unique", (Diff("leaves", (b"",), Leaf(3, LEFT, 1)),)),
    ("leaf-ids-are-unique", (Diff("leaves", (b"m",), Leaf(99, RIGHT, 1)),)),
    (
        "references-lie-in-their-leaf",
        (Diff("references", (1, b"", 1), Reference(1, 2, EVERYTHING, P1, 1)),),
    ),
    (
        "references-lie-in-their-leaf",
        (Diff("references", (1, b"", 1), Reference(1, 2, Interval(b"d", b"m"), P1, 1)),),
    ),
    (
        "references-lie-in-their-leaf",
        (Diff("references", (1, b"", 1), Reference(1, L0, EVERYTHING, P1, 1)),),
    ),
    (
        "references-lie-in-their-leaf",
        (Diff("references", (1, b"", 1), Reference(1, 3, LEFT, P1, 1)),),
    ),
    ("parts-are-counted", (Diff("parts", ("p1",), PartUse(2, 3)),)),
    ("parts-are-counted", (Diff("parts", ("p1",), None),)),
    ("parts-are-counted", (Diff("references", (1, b"", 1), None),)),
    ("dead-objects-are-not-referenced", (Diff("dead", (3, "p1"), Dead("p1", 3, 3, 1)),)),
    ("dead-objects-are-not-referenced", (Diff("dead", (99, "p9"), Dead("p9", 3, 99, 1)),)),
    (
        "frontiers-are-ordered",
        (Diff("meta", (), Meta(upper=13, since=13, leaves=3, references=3)),),
    ),
    (
        "references-are-below-upper",
        (
            Diff("meta", (), Meta(upper=7, leaves=3, references=3)),
            Diff("entries", ("t1", 12, 0), None),
        ),
    ),
    ("references-are-below-upper", (Diff("meta", (), Meta(upper=13, leaves=3, references=2)),)),
    (
        "entries-are-committed-times",
        (Diff("entries", ("t1", 4, 0), Entry("t1", 5, 0, "w1", batch())),),
    ),
    (
        "entries-are-committed-times",
        (Diff("entries", ("t1", 13, 0), Entry("t1", 13, 0, "w1", batch())),),
    ),
    (
        "names-are-unique-at-every-time",
        (Diff("tables", ("t2", 1), replace(table("t2", "ORDERS"), version=1)),),
    ),
    (
        "versions-follow-one-another",
        (
            Diff("tables", ("t1", 1), replace(ORDERS, valid_until=4)),
            Diff("tables", ("t1", 2), replace(ORDERS, version=2, valid_from=5)),
        ),
    ),
    (
        "frontiers-are-ordered",
        (Diff("meta", (), Meta(upper=13, since=None, leaves=3, references=3)),),
    ),
    (
        "holds-are-honoured",
        (
            Diff("meta", (), Meta(upper=13, since=5, leaves=3, references=3)),
            Diff("holds", ("h1",), Hold(4)),
        ),
    ),
    ("holds-are-honoured", (Diff("holds", ("h1",), Hold(4, seqno=99)),)),
    ("holds-are-honoured", (Diff("holds", ("h1",), Hold(4, session="w9")),)),
    (
        "holds-are-honoured",
        (
            Diff("sessions", ("w9",), Session(1, 2, expired=3)),
            Diff("holds", ("h1",), Hold(4, session="w9")),
        ),
    ),
    ("expired-sessions-are-of-the-past", (Diff("sessions", ("w9",), Session(1, 2, expired=1)),)),
    ("expired-sessions-are-of-the-past", (Diff("sessions", ("w9",), Session(1, 2, expired=99)),)),
    ("sessions-end-step-by-step", (Diff("sessions", ("w9",), Session(1, 2, acknowledged=3)),)),
    (
        "sessions-end-step-by-step",
        (Diff("sessions", ("w9",), Session(1, 2, expired=3, acknowledged=2)),),
    ),
    (
        "sessions-end-step-by-step",
        (Diff("sessions", ("w9",), Session(1, 2, expired=3, acknowledged=99)),),
    ),
    ("sessions-end-step-by-step", (Diff("sessions", ("w9",), Session(1, 2, 3, swept=5)),)),
    ("holders-are-of-tables", (Diff("holders", ("t9",), Holder(1, "w1", "a")),)),
    (
        "holders-are-of-tables",
        (
            Diff("tables", ("t9", 1), TableVersion("t9", 1, "n", 0, None, 0, "rows", b"", ("k",))),
            Diff("holders", ("t9",), Holder(0, "w1", "a")),
        ),
    ),
    (
        "history-is-over-when-reads-leave-it-out",
        (Diff("references", (1, b"", 1), Reference(1, 2, LEFT, P1, 1, reads_before=4)),),
    ),
    (
        "history-is-over-when-reads-leave-it-out",
        (Diff("references", (1, b"", 1), Reference(1, 2, LEFT, ENDED, 1)),),
    ),
    (
        "history-is-over-when-reads-leave-it-out",
        (Diff("references", (1, b"", 1), Reference(1, 2, LEFT, ENDED, 4, reads_before=4)),),
    ),
    ("receipts-follow-one-another", (Diff("receipts", (3,), Receipt(2, "c1", 1)),)),
    ("receipts-follow-one-another", (Diff("receipts", (3,), Receipt(99, "c1", 1)),)),
    (
        "receipts-follow-one-another",
        (
            Diff("receipts", (1,), Receipt(2, "c1", 1)),
            Diff("receipts", (2,), Receipt(3, "c2", 1)),
        ),
    ),
    (
        "owners-feed-their-shards",
        (Diff("meta", (), replace(COUNTED, origin="direct", owner="s1", joins=1)),),
    ),
    (
        "owners-feed-their-shards",
        (Diff("meta", (), replace(COUNTED, origin="txns", owner="s1")),),
    ),
    (
        "what-is-before-since-is-applied",
        (
            Diff("meta", (), replace(COUNTED, origin="commits", since=12)),
            Diff("entries", ("t1", 11, 0), Entry("t1", 11, 0, "w1", batch())),
        ),
    ),
    (
        "entries-are-of-registered-shards",
        (
            Diff("meta", (), replace(COUNTED, origin="commits")),
            Diff("tables", ("t1", 1), replace(ORDERS, valid_until=12)),
        ),
    ),
    (
        "versions-follow-one-another",
        (
            Diff("meta", (), replace(COUNTED, origin="commits")),
            Diff("tables", ("t1", 1), replace(ORDERS, valid_until=6)),
            Diff("tables", ("t1", 2), replace(ORDERS, version=2, valid_from=5)),
        ),
    ),
]


def test_sound_states_break_nothing() -> None:
    assert broken(initial()) == []
    assert broken(sound()) == []


@pytest.mark.parametrize(("name", "diffs"), DAMAGES)
def test_damage_is_seen_by_the_invariant_for_it(name: str, diffs: tuple[Diff, ...]) -> None:
    assert name in names(damaged(*diffs))


def test_every_invariant_is_shown_to_fail() -> None:
    assert {name for name, _ in DAMAGES} == set(INVARIANTS)
