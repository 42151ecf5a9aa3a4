"""What holds in every state of a shard, as named predicates.

Tests and the simulator check them before every compare-and-set and after every replay; `verify`
reports them. Each predicate yields the ways in which a state breaks it. They look at every page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from strandline.state.model import L0, TableVersion
from strandline.state.replay import State
from strandline.state.sessions import is_open
from strandline.state.tables import current_table

__all__ = ["INVARIANTS", "broken"]


def broken(state: State) -> list[str]:
    """Every violation in `state`, each with the name of its predicate; empty when all hold."""
    return [f"{name}: {text}" for name, check in INVARIANTS.items() for text in check(state)]


def leaves_cover_the_key_space(state: State) -> Iterator[str]:
    leaves = [leaf for _, leaf in state.leaves.range()]
    if not leaves or leaves[0].interval.lower != b"":
        yield "no leaf begins at the least key"
        return
    for left, right in pairwise(leaves):
        if left.interval.upper != right.interval.lower:
            yield f"leaf {left.id} ends at {left.interval.upper!r}, {right.id} begins elsewhere"
    if leaves[-1].interval.upper is not None:
        yield f"the last leaf {leaves[-1].id} has an end"


def leaf_ids_are_unique(state: State) -> Iterator[str]:
    counts = Counter(leaf.id for _, leaf in state.leaves.range())
    yield from (f"leaf id {leaf} is used {n} times" for leaf, n in counts.items() if n > 1)
    yield from (f"leaf id {leaf} was never given" for leaf in counts if leaf > state.meta.leaves)


def references_lie_in_their_leaf(state: State) -> Iterator[str]:
    for key, reference in state.references.range():
        if reference.interval.intersect(reference.part.span) is None:
            yield f"reference {reference.id} has no key of {reference.part.key}"
        if reference.leaf == L0:
            if key != (0, b"", reference.id):
                yield f"reference {reference.id} of L0 is kept at {key!r}"
            continue
        leaf = state.leaves.get((key[1],))
        if leaf is None or leaf.id != reference.leaf:
            yield f"reference {reference.id} is in leaf {reference.leaf}, which is none"
        elif leaf.interval.intersect(reference.interval) != reference.interval:
            yield f"reference {reference.id} reaches out of leaf {leaf.id}"


def parts_are_counted(state: State) -> Iterator[str]:
    counts = Counter(reference.part.key for _, reference in state.references.range())
    known = {key[0]: use.references for key, use in state.parts.range()}
    for part in sorted(counts.keys() | known.keys()):
        if counts.get(part, 0) != known.get(part, 0):
            yield f"{part} has {counts.get(part, 0)} references, {known.get(part, 0)} are counted"


def dead_objects_are_not_referenced(state: State) -> Iterator[str]:
    for _, dead in state.dead.range():
        if state.parts.get((dead.key,)) is not None:
            yield f"{dead.key} is dead and referenced"
        if dead.dead > state.seqno or dead.born > dead.dead:
            yield f"{dead.key} lived from {dead.born} to {dead.dead}, the state is {state.seqno}"


def frontiers_are_ordered(state: State) -> Iterator[str]:
    meta = state.meta
    if meta.upper is not None and meta.since is not None and meta.since > max(meta.upper - 1, 0):
        yield f"since {meta.since} is beyond upper {meta.upper}"
    if meta.upper is not None and meta.since is None:
        yield f"since is empty, upper is {meta.upper}"


def holds_are_honoured(state: State) -> Iterator[str]:
    meta = state.meta
    for (hold_id,), hold in state.holds.range():
        if hold.since is not None and (meta.since is None or hold.since < meta.since):
            yield f"hold {hold_id} is at since {hold.since}, the shard at {meta.since}"
        if hold.seqno is not None and hold.seqno > state.seqno:
            yield f"hold {hold_id} is at seqno {hold.seqno}, the state at {state.seqno}"
        session = state.sessions.get((hold.session,)) if hold.session else None
        if hold.session and not is_open(session):
            yield f"hold {hold_id} belongs to session {hold.session}, which is not open"


def expired_sessions_are_of_the_past(state: State) -> Iterator[str]:
    for (session_id,), session in state.sessions.range():
        if session.expired is not None and not session.opened <= session.expired <= state.seqno:
            yield f"session {session_id} of {session.opened} ended at {session.expired}"


def sessions_end_step_by_step(state: State) -> Iterator[str]:
    for (session_id,), session in state.sessions.range():
        if session.acknowledged is not None and not (
            session.expired is not None and session.expired <= session.acknowledged <= state.seqno
        ):
            yield f"session {session_id} is acknowledged at {session.acknowledged}, before its end"
        if session.swept is not None and session.acknowledged is None:
            yield f"session {session_id} was swept and is not acknowledged"


def holders_are_of_tables(state: State) -> Iterator[str]:
    for (table,), holder in state.holders.range():
        if next(state.tables.prefix((table,)), None) is None:
            yield f"table {table}, which is none, is held by {holder.worker!r}"
        if holder.epoch < 0 or (holder.epoch == 0 and (holder.session or holder.worker)):
            yield f"table {table} has a holder {holder.worker!r} of epoch {holder.epoch}"


def history_is_over_when_reads_leave_it_out(state: State) -> Iterator[str]:
    for _, reference in state.references.range():
        until = reference.reads_before
        if reference.part.has_end != (until is not None):
            yield f"reference {reference.id} of {reference.part.key}: reads before {until}"
        elif until is not None and reference.time_max >= until:
            yield f"reference {reference.id} has rows born at {reference.time_max}, after {until}"


def receipts_follow_one_another(state: State) -> Iterator[str]:
    receipts = [(key[0], receipt) for key, receipt in state.receipts.range()]
    for first, receipt in receipts:
        if not first <= receipt.last <= state.seqno:
            yield f"a receipt goes from {first} to {receipt.last}, the state is {state.seqno}"
    for (_, left), (first, _) in pairwise(receipts):
        if left.last >= first:
            yield f"two receipts have record {first}"


def references_are_below_upper(state: State) -> Iterator[str]:
    upper = state.meta.upper
    for _, reference in state.references.range():
        if upper is not None and reference.time_max >= upper:
            yield f"reference {reference.id} has rows at {reference.time_max}, upper is {upper}"
        if reference.id > state.meta.references:
            yield f"reference id {reference.id} was never given"


def entries_are_committed_times(state: State) -> Iterator[str]:
    upper = state.meta.upper
    for key, entry in state.entries.range():
        if key != (entry.table, entry.time, entry.ordinal):
            yield f"an entry of {entry.table} is kept at {key!r}"
        if upper is not None and entry.time >= upper:
            yield f"an entry of {entry.table} is at {entry.time}, upper is {upper}"


def names_are_unique_at_every_time(state: State) -> Iterator[str]:
    names: dict[str, list[TableVersion]] = {}
    for _, version in state.tables.range():
        names.setdefault(version.name.casefold(), []).append(version)
    for name, versions in names.items():
        for left, right in pairwise(sorted(versions, key=lambda v: v.valid_from)):
            if left.valid_until is None or left.valid_until > right.valid_from:
                yield f"the name {name!r} means {left.table} and {right.table} at once"


def versions_follow_one_another(state: State) -> Iterator[str]:
    by_itself = state.meta.origin == "commits"
    versions = [version for _, version in state.tables.range()]
    for left, right in pairwise(versions):
        if left.table != right.table or left.valid_until == right.valid_from:
            continue
        # A shard that was forgotten may be registered again, later.
        if not by_itself or left.valid_until is None or left.valid_until > right.valid_from:
            yield f"versions {left.version} and {right.version} of {left.table} leave a gap"


def owners_feed_their_shards(state: State) -> Iterator[str]:
    meta = state.meta
    if meta.owner and meta.origin != "txns":
        yield f"the shard is {meta.owner}'s, and its origin is {meta.origin!r}"
    if meta.owner and not meta.joins:
        yield f"the shard is {meta.owner}'s, and was never joined"


def what_is_before_since_is_applied(state: State) -> Iterator[str]:
    since = state.meta.since
    if state.meta.origin != "commits" or since is None:
        return
    for _, entry in state.entries.range():
        if entry.batch.rows and entry.time < since:
            yield f"an entry of {entry.table} at {entry.time} is not applied, since is {since}"


def entries_are_of_registered_shards(state: State) -> Iterator[str]:
    if state.meta.origin != "commits":
        return
    for _, entry in state.entries.range():
        version = current_table(state, entry.table)
        if entry.batch.rows and (version is None or entry.time < version.valid_from):
            yield f"an entry of {entry.table} at {entry.time} is not applied, it is not registered"


INVARIANTS: dict[str, Callable[[State], Iterator[str]]] = {
    check.__name__.replace("_", "-"): check
    for check in (
        leaves_cover_the_key_space,
        leaf_ids_are_unique,
        references_lie_in_their_leaf,
        parts_are_counted,
        dead_objects_are_not_referenced,
        frontiers_are_ordered,
        holds_are_honoured,
        expired_sessions_are_of_the_past,
        sessions_end_step_by_step,
        holders_are_of_tables,
        history_is_over_when_reads_leave_it_out,
        receipts_follow_one_another,
        references_are_below_upper,
        entries_are_committed_times,
        names_are_unique_at_every_time,
        versions_follow_one_another,
        owners_feed_their_shards,
        what_is_before_since_is_applied,
        entries_are_of_registered_shards,
    )
}
