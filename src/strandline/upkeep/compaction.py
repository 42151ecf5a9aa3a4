"""Compaction: plans from a table's state, merges by the job runner, one command per job.

Jobs run in this process, or on an engine that was registered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from strandline.env import Deadline
from strandline.errors import Fenced, StrandlineError, UsageError
from strandline.settings import Settings
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.shard.merging import Workshop, run_job
from strandline.state.clocks import settled_time
from strandline.state.commands import Claim, Compact, Output, Retain
from strandline.state.model import TableVersion
from strandline.state.plan import (
    STRATEGIES,
    CompactionJob,
    plan_compaction,
    plan_descent,
    plan_sinking,
    plan_small_merge,
)
from strandline.txn.apply import apply_table
from strandline.txn.handle import Handle
from strandline.txn.properties import duration_micros, property_of
from strandline.txn.store import Store

__all__ = [
    "CompactionReport",
    "JobRunner",
    "TableRunner",
    "compact",
    "compact_table",
    "register_engine",
    "shorten",
    "workshop",
]

_ROUNDS = 3
"""How often is planned anew when merges of others, of small parts for instance, came first."""

JobRunner = Callable[[Sequence[CompactionJob]], Iterable[tuple[CompactionJob, tuple[Output, ...]]]]
"""Runs jobs, wherever it likes, and yields each with its outputs as it is done."""

Progress = Callable[[int, int], None]
"""Told (jobs done, jobs in all)."""

TableRunner = Callable[[Store, TableVersion], JobRunner]
"""Makes what runs the jobs of one table."""

_ENGINES: list[tuple[Callable[[object], bool], Callable[[Any], TableRunner]]] = []

_log = logging.getLogger("strandline")


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a compaction of one table did."""

    table: str
    parts_before: int
    parts_after: int
    jobs: int
    discarded: int
    """Jobs whose inputs were replaced by somebody else meanwhile, or whose session was ended: their
    work was for nothing."""
    rows: int
    """Rows in the inputs of the jobs."""
    claimed_by: str | None = None
    """The session that was compacting the table already, so that this one left it alone."""
    why_nothing: str | None = None
    """Why nothing was merged; None where something was, or L0 was taken down into the leaves."""


def compact_table(
    store: Store,
    version: TableVersion,
    deadline: Deadline,
    *,
    strategy: str | None = None,
    force: bool = False,
    runner: JobRunner | None = None,
    progress: Progress | None = None,
) -> CompactionReport:
    """Applies, takes L0 down into the leaves, and merges there what the strategy wants.

    Safe beside anything else, itself included: a job is applied only if exactly its inputs are
    still there. So that no work is done twice, a table that another claimed is left alone, unless
    with `force`. `strategy` None: the table's property. `runner` None: in this process.
    """
    machine = store.data(version.table)
    strategy = strategy or property_of(version, "strategy")
    apply_table(store, version.table, deadline)
    before = machine.look(deadline).ask(lambda s: s.parts.count())
    _descend(machine, deadline)
    _retain(store, version, machine.look(deadline))
    claimed_by = None
    made: list[CompactionJob] = []
    discarded = 0
    if _planned(machine.look(deadline), version, strategy):
        run = runner or partial(_in_process, store, version, deadline)
        with _claimed(store, machine, version, deadline) as claimed_by:
            for _ in range(_ROUNDS if claimed_by is None or force else 0):
                # Planned here: whoever had the claim before may have done some of it.
                jobs = _planned(machine.look(deadline), version, strategy)
                lost = 0
                for done, (job, outputs) in enumerate(run(jobs) if jobs else (), 1):
                    lost += not _replaced(machine, version, job, outputs, deadline)
                    if progress is not None:
                        progress(done, len(jobs))
                made += jobs
                discarded += lost
                if not lost:
                    break
    after = machine.ask(lambda s: s.parts.count())
    rows = sum(job.rows for job in made)
    why = None
    if not made and before == after:
        why = _why_nothing(after, strategy, claimed_by)
    return CompactionReport(
        version.name, before, after, len(made), discarded, rows, claimed_by, why
    )


def _why_nothing(parts: int, strategy: str, claimed_by: str | None) -> str:
    if claimed_by is not None:
        return f"session {claimed_by} is compacting it; with force this goes on beside it"
    if not parts:
        return "it has no parts"
    if strategy == "full":
        return "no leaf has more than one part, or anything to give up"
    return (
        f"no leaf has parts that the strategy {strategy!r} would merge yet: it waits until there "
        "are enough of like size; the strategy 'full' merges all that there are"
    )


def _planned(look: Look, version: TableVersion, strategy: str) -> list[CompactionJob]:
    parts_max = int(property_of(version, "compaction_parts"))
    keyed = version.kind == "keyed"
    return look.ask(lambda s: list(plan_compaction(s, strategy, parts_max=parts_max, keyed=keyed)))


@contextmanager
def _claimed(
    store: Store, machine: Machine, version: TableVersion, deadline: Deadline
) -> Iterator[str | None]:
    """Claims the table meanwhile; gives the session of another that has claimed it, if one has.

    A claim ends with its session, whose owner keeps it alive while it is at work.
    """
    with store.pulse.holding(machine):
        if not machine.submit(Claim(), deadline):
            yield machine.state.meta.claim or None
            return
        try:
            yield None
        finally:
            try:
                # Also when the deadline has passed: the next one shall not have to wait.
                machine.submit(Claim(release=True))
            except StrandlineError as error:
                _log.warning("the claim on %r is left to expire: %s", version.name, error)


def _descend(machine: Machine, deadline: Deadline) -> None:
    """Moves the references of L0 into the leaves: metadata only."""
    for command in machine.known(deadline).ask(lambda s: list(plan_descent(s))):
        machine.submit(command, deadline)


def _retain(store: Store, version: TableVersion, data: Look) -> None:
    """Gives up the history that the table's retention does not ask for, if nobody holds it.

    In a record of its own, before a merge is planned: what a merge gives up is never later than
    the since of a state that was there, so a hold that comes meanwhile finds all that it may ask
    for. Since stays below the physical upper: nothing is forwarded past commits that are not
    applied ◆.
    """
    retention = duration_micros(property_of(version, "retention"))
    latest = settled_time(store.txns.machine.state.meta)
    upper, since = data.meta.upper, data.meta.since
    if upper is None or since is None:
        return
    wanted = min(latest - retention, upper - 1)
    if wanted > since:
        store.data(version.table).submit(Retain(wanted), data.deadline)


def _replaced(
    machine: Machine,
    version: TableVersion,
    job: CompactionJob,
    outputs: tuple[Output, ...],
    deadline: Deadline,
) -> bool:
    """Puts the outputs in the place of the inputs; False if those are not all there any more, or if
    the session that wrote the outputs was ended meanwhile.

    Then the outputs are garbage, and what there is can be planned again.
    """
    try:
        return machine.submit(_replacement(job, outputs), deadline)
    except Fenced as error:
        _log.warning("a merge of %r was for nothing: %s", version.name, error)
        return False


def _replacement(job: CompactionJob, outputs: tuple[Output, ...]) -> Compact:
    return Compact(tuple(key for key, _ in job.inputs), outputs)


def _in_process(
    store: Store, version: TableVersion, deadline: Deadline, jobs: Sequence[CompactionJob]
) -> Iterator[tuple[CompactionJob, tuple[Output, ...]]]:
    # One after another: a job's sort is parallel in itself, and memory stays bounded.
    for job in jobs:
        shop = workshop(store, version, deadline, threads=store.settings.threads)
        yield job, run_job(shop, job, deadline)


def workshop(store: Store, version: TableVersion, deadline: Deadline, *, threads: int) -> Workshop:
    """What a job of the table needs when it runs in this process, now."""
    session = store.data(version.table).live_session(deadline)
    return Workshop(
        blob=store.location.blob,
        reader=store.reader,
        env=store.env,
        settings=store.settings,
        version=version,
        identity=store.identity(version, session),
        new_key=lambda: store.new_part_key(version.table, session),
        threads=threads,
    )


# --- between compactions


def shorten(
    store: Store, table: str, lower: bytes | None, deadline: Deadline
) -> frozenset[bytes | None]:
    """Does one thing about many small parts in the leaf at `lower` (None: L0), if there is one.

    What keeps lookups fast between compactions, in bites small enough for the background. Returns
    the leaves that are to be looked at then, perhaps the same one; none when nothing was to be
    done.
    """
    machine, settings = store.data(table), store.settings
    known = machine.known(deadline)
    job = known.ask(
        lambda s: plan_small_merge(
            s,
            lower,
            parts_min=settings.small_parts_max,
            size_max=settings.small_part_bytes_max,
            rows_max=settings.part_rows_target,
        )
    )
    if job is not None:
        version = store.txns.table_by_id(store.txns.machine.known(deadline), table)
        with store.pulse.holding(machine):
            outputs = run_job(workshop(store, version, deadline, threads=1), job, deadline)
            applied = machine.submit(_replacement(job, outputs), deadline)
        again: frozenset[bytes | None] = frozenset({lower})
    else:
        command = None if lower is not None else _sinking(known, settings)
        if command is None:
            return frozenset()
        applied = machine.submit(command, deadline)
        again = frozenset({None, *(output.leaf_lower for output in command.outputs)})
    if not applied:
        machine.look(deadline)
    return again


def _sinking(known: Look, settings: Settings) -> Compact | None:
    return known.ask(
        lambda s: plan_sinking(
            s,
            leaf_bytes_min=settings.sinking_leaf_bytes,
            length_max=settings.level_zero_parts_max,
        )
    )


# --- what users ask for


def register_engine(
    recognises: Callable[[object], bool], runner: Callable[[Any], TableRunner]
) -> None:
    """Lets `engine=` take what `recognises` is true of; `runner` makes of it what runs jobs."""
    _ENGINES.append((recognises, runner))


def compact(
    handle: Handle,
    names: Sequence[str] | None,
    *,
    strategy: str | None,
    force: bool,
    engine: object,
    progress: Progress | None,
    deadline: Deadline,
) -> list[CompactionReport]:
    """Compacts the named tables (None: all that are online), one after another."""
    store = handle.store
    store.check_writable()
    if strategy is not None and strategy not in STRATEGIES:
        raise UsageError(f"strategy={strategy!r}: pass one of {', '.join(STRATEGIES)}")
    versions = store.txns.chosen(store.txns.look(deadline), names)
    # Whoever died while it had a claim gives it back.
    store.look_out([version.table for version in versions], deadline)
    return [
        compact_table(
            store,
            version,
            deadline,
            strategy=strategy,
            force=force,
            runner=_runner(engine, store, version),
            progress=progress,
        )
        for version in versions
    ]


def _runner(engine: object, store: Store, version: TableVersion) -> JobRunner | None:
    if engine == "local":
        return None
    for recognises, runner in _ENGINES:
        if recognises(engine):
            return runner(engine)(store, version)
    raise UsageError(
        f'engine={engine!r}: pass "local", or a Spark session after `import strandline.spark`'
    )
