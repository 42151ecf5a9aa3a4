"""Upkeep that users ask for: compaction, in this process or on an engine that was registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.state.model import TableVersion
from strandline.state.plan import STRATEGIES
from strandline.txn.handle import Handle
from strandline.txn.properties import property_of
from strandline.txn.store import Store
from strandline.upkeep.compaction import CompactionReport, JobRunner, Progress, compact_table

__all__ = ["CompactionReport", "RunnerFactory", "compact", "register_engine"]

RunnerFactory = Callable[[Any, Store, TableVersion], JobRunner]
"""Makes what runs the jobs of one table: from the engine that the user passed."""

_ENGINES: list[tuple[Callable[[object], bool], RunnerFactory]] = []


def register_engine(recognises: Callable[[object], bool], factory: RunnerFactory) -> None:
    """Lets `engine=` take objects that `recognises` is true of. Shells such as Spark call this."""
    _ENGINES.append((recognises, factory))


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
    state = store.txns.refresh(timeout=deadline.remaining())
    if names is None:
        versions = [v for v in store.txns.tables(state) if property_of(v, "online") == "true"]
    else:
        versions = [store.txns.table(state, name) for name in names]
    # Whoever died while it had a claim gives it back.
    store.look_out([version.table for version in versions], timeout=deadline.remaining())
    return [
        compact_table(
            store,
            version,
            strategy=strategy,
            force=force,
            timeout=deadline.remaining(),
            runner=_runner(engine, store, version),
            progress=progress,
        )
        for version in versions
    ]


def _runner(engine: object, store: Store, version: TableVersion) -> JobRunner | None:
    if engine == "local":
        return None
    for recognises, factory in _ENGINES:
        if recognises(engine):
            return factory(engine, store, version)
    raise UsageError(
        f'engine={engine!r}: pass "local", or a Spark session after `import strandline.spark`'
    )
