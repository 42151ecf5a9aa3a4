"""Compaction of a shard that is used by itself: fewer parts, and no history that nobody reads.

The plans are those of tables, the merge is not: here diffs are of any size and sign, so updates
are added up, and none is taken for the end of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from strandline.env import LONG_SECONDS, Deadline, Env
from strandline.errors import UsageError
from strandline.location import BlobMissing, Location
from strandline.parts.files.write import write_parts
from strandline.parts.plain import int64
from strandline.parts.rows.consolidate import consolidated_stream
from strandline.parts.schema import DIFF, END, TIME, without_plain_diff
from strandline.settings import Settings
from strandline.shard.alone.changes import updates_of
from strandline.shard.alone.shard import Shard
from strandline.shard.missing import state_without
from strandline.state.commands import Compact, Output
from strandline.state.model import Reference
from strandline.state.plan import STRATEGIES, CompactionJob, plan_compaction, plan_descent
from strandline.state.replay import State
from strandline.times import TIME_MAX

__all__ = ["ShardCompaction", "compact", "compact_shard", "plan_jobs"]

Strategy = Literal["size-ratio", "basic", "full"]

_PARTS_MAX = 11
_THREADS_MAX = 4


@dataclass(frozen=True, slots=True)
class ShardCompaction:
    """What a compaction of a shard did."""

    parts_before: int
    parts_after: int
    jobs: int
    discarded: int
    """Jobs whose inputs were replaced by somebody else meanwhile: their work was for nothing."""
    rows: int
    """Updates in the inputs of the jobs."""


def compact(
    location: Location,
    shard_id: str,
    *,
    strategy: Strategy = "size-ratio",
    settings: Settings | None = None,
    timeout: float | None = None,
    env: Env | None = None,
) -> ShardCompaction:
    """Merges parts of a shard, and moves times before its since up to it.

    Safe beside anything else, itself included. Nothing that can be read from since on changes;
    what is given up is what no hold asks for. `strategy` "full" merges everything there is, the
    others what makes reads cheaper by enough. `timeout` (seconds) is for all of it, and defaults to
    a day; what was merged until then stays so. Errors: as `open_shard`; UsageError where diffs of a
    row add up to more than 64 bits hold: what has such rows stays as it is, the rest is merged.
    """
    shard = Shard(location, shard_id, settings, env)
    deadline = shard.deadline(timeout, LONG_SECONDS)
    try:
        shard.describe_from(deadline)
        return compact_shard(shard, strategy, deadline)
    finally:
        shard.close()


def compact_shard(shard: Shard, strategy: Any, deadline: Deadline) -> ShardCompaction:
    """The same for a shard that is open."""
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise UsageError(f"strategy={strategy!r}: choose of {', '.join(STRATEGIES)}")
    machine = shard.machine
    # Whoever died gives up what it held; and so what is given up below is more.
    shard.look_out(deadline)
    look = machine.look(deadline)
    before = look.ask(lambda s: s.parts.count())
    descent = look.ask(lambda s: list(plan_descent(s)))
    for command in descent:
        machine.submit(command, deadline)
    jobs = machine.ask(lambda s: plan_jobs(s, strategy), deadline)
    applied, refused = [], []
    for job in jobs:
        try:
            applied.append(_run(shard, job, deadline))
        except UsageError as error:
            refused.append(error)  # a sum that cannot be told: that does not keep the others
    if refused:
        raise refused[0]
    after = machine.ask(lambda s: s.parts.count(), deadline)
    rows = sum(job.rows for job in jobs)
    return ShardCompaction(before, after, len(jobs), applied.count(False), rows)


def plan_jobs(state: State, strategy: str) -> list[CompactionJob]:
    """The merges that the strategy wants; by "full" also of a part by itself, if that may gain."""
    jobs = [
        # Nothing is kept apart: that is for rows that come once and go once.
        replace(job, split_at=None)
        for job in plan_compaction(state, strategy, parts_max=_PARTS_MAX)
        if len(job.inputs) > 1
    ]
    since = state.meta.since
    if strategy != "full" or since is None:
        return jobs
    taken = {key for job in jobs for key, _ in job.inputs}
    for _, leaf in state.leaves.range():
        for key, reference in state.references.prefix((1, leaf.interval.lower)):
            if key not in taken and _may_gain(reference, since):
                jobs.append(CompactionJob(leaf, ((key, reference),), since))
    return jobs


def _may_gain(reference: Reference, since: int) -> bool:
    """Whether there may be less of a part once it is merged by itself.

    A part has equal rows of one time added up when it is written. What since has passed is of one
    time then: that adds up if it was of several before, and not all rows are different. What was
    merged has nothing before since, so this is not done again until since moves.
    """
    part = reference.part
    first, last = part.time_min, part.time_max
    if first is None or last is None:
        return False
    return reference.is_cut or (not part.distinct and first < min(since, last))


def _run(shard: Shard, job: CompactionJob, deadline: Deadline) -> bool:
    """Whether the job's result is in the shard: not if another replaced one of its inputs."""
    deadline.check(f"compacting shard {shard.id}", may_have_happened=True)
    machine = shard.machine
    with shard.pulse.holding(machine):
        try:
            outputs = _merged(shard, job, deadline)
        except BlobMissing as error:
            state_without(machine, error, deadline)
            return False
        command = Compact(tuple(key for key, _ in job.inputs), outputs)
        return machine.submit(command, deadline)


def _merged(shard: Shard, job: CompactionJob, deadline: Deadline) -> tuple[Output, ...]:
    """The references that shall replace the job's inputs; their parts are durable by then."""
    schema, settings = shard.schema, shard.settings
    session = shard.machine.live_session(deadline)
    threads = min(_THREADS_MAX, settings.threads)
    arrow = schema.stored(time=True, diff=True)
    rows = consolidated_stream(
        _updates(shard, job, arrow, deadline),
        arrow,
        schema.keys,
        memory_bytes=settings.sort_memory_bytes,
        threads=threads,
    )
    parts = write_parts(
        shard.location.blob,
        lambda: shard.new_part_key(session),
        _plain(rows),
        schema,
        identity=shard.identity(session),
        settings=settings,
        deadline=deadline,
        env=shard.env,
        threads=threads,
    )
    if job.leaf is None:
        raise AssertionError("a merge of a shard is one of a leaf")
    leaf = job.leaf
    return tuple(
        Output(
            leaf.id, leaf.interval.lower, part, TIME_MAX if part.time_max is None else part.time_max
        )
        for part in parts
    )


def _updates(
    shard: Shard, job: CompactionJob, arrow: pa.Schema, deadline: Deadline
) -> Iterator[pa.RecordBatch]:
    """The inputs' updates, those before since moved up to it."""
    columns = [*shard.schema.arrow.names, TIME, DIFF, END]
    at = arrow.get_field_index(TIME)
    since = int64(job.since)
    for _, reference in job.inputs:
        for batch in shard.reader.batches(
            reference.part,
            shard.schema,
            columns=columns,
            intervals=[reference.place],
            deadline=deadline,
        ):
            for found in updates_of(batch, reference, arrow, -1, TIME_MAX):
                moved = pc.max_element_wise(found.column(TIME), since)
                yield found.set_column(at, arrow.field(TIME), moved)


def _plain(
    batches: Iterator[pa.RecordBatch],
) -> Sequence[pa.RecordBatch] | Iterator[pa.RecordBatch]:
    """Few rows without a `__diff` that says nothing; of many it cannot be known beforehand."""
    first = next(batches, None)
    if first is None:
        return []
    second = next(batches, None)
    return [without_plain_diff(first)] if second is None else chain([first, second], batches)
