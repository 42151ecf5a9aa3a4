"""A simulated database of which it is seen what really happens: every record says."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from strandline.ids import DatabaseId, ShardId
from strandline.state.clocks import SKEW_MICROS
from strandline.state.model import Meta, TableVersion
from strandline.state.replay import initial
from strandline.state.tables import tidied_through
from strandline.testing.holders import Upstream
from strandline.testing.litter import check_parts_of_open_sessions
from strandline.testing.reference import DatabaseModel
from strandline.testing.simulation import Simulation
from strandline.testing.watch import Broken, Seen
from strandline.txn.properties import PROPERTIES, duration_micros

__all__ = ["DATABASE", "TXNS", "Observed", "holds"]

DATABASE = DatabaseId("d" + "0" * 32)
TXNS = ShardId("s" + "0" * 16)

_NEVER = 1 << 62


class Observed:
    """What really is there and was there, for actors to hold against what they are told."""

    def __init__(self, seed: int, guests: Collection[str]) -> None:
        self.seed = seed
        self.guests = guests
        """Who is there besides: "attachers", "litterers", "jumper"."""
        self.reference = DatabaseModel(observed=True)
        self.sim = Simulation(seed, on_record=self._on_record)
        self.upstream = Upstream()
        self._commits: list[int] = []
        random = self.sim.character
        self.vacuums = random.random() < 0.7
        self.properties = {
            "retention": random.choice(["0 seconds", "1 second", "7 days"]),
            "deletion_delay": random.choice(["0 seconds", "0 seconds", "1 second", "15 minutes"]),
        }
        if "litterers" in guests:
            self.vacuums = True
            # Longer than a request of somebody who is gone is under way.
            self.properties["deletion_delay"] = random.choice(["1 minute", "15 minutes"])
        self.sim.watch.deletion_delay = self._deletion_delay
        self.sim.watch.on_news = self._check_shards

    def table_id(self, name: str, as_of: int | None = None) -> str | None:
        self.sim.watch.look()
        for version in self.versions():
            if version.name == name and holds(version, as_of):
                return version.table
        return None

    def latest(self) -> int:
        self.sim.watch.look()
        return (self.meta().upper or 0) - 1

    def times(self) -> list[int]:
        return self._commits

    def since(self, table: str) -> int:
        state = self.sim.watch.states.get(table)
        if state is None:
            return 0
        return _NEVER if state.meta.since is None else state.meta.since

    def versions(self) -> Sequence[TableVersion]:
        """All versions of all tables that are known."""
        state = self.sim.watch.states.get(TXNS)
        return () if state is None else [version for _, version in state.tables.range()]

    def meta(self) -> Meta:
        """Of the txns shard."""
        return self.sim.watch.states.get(TXNS, initial()).meta

    def cuts(self) -> dict[str, int]:
        """Where each log may be cut."""
        cuts = {}
        for shard, state in sorted(self.sim.watch.states.items()):
            rollups = [key[0] for key, _ in state.rollups.range()]
            if len(rollups) > 1:
                cuts[shard] = rollups[-2]
        return cuts

    # --- what really happens

    def _on_record(self, seen: Seen) -> None:
        if seen.shard == TXNS:
            check_parts_of_open_sessions(seen)
            self.upstream.on_record(seen)
            self._on_commit(seen)
        elif seen.after.meta.since != seen.before.meta.since:
            self._check_since(seen)

    def _check_since(self, seen: Seen) -> None:
        """History goes by a time that has come: not by that of a clock which jumped."""
        since = seen.after.meta.since
        retention = duration_micros(self.properties["retention"])
        kept = self.sim.scheduler.now + SKEW_MICROS - retention
        if since is None:  # it was dropped, and is over
            state = self.sim.watch.states[TXNS]
            since = max(v.valid_until or 0 for _, v in state.tables.prefix((seen.shard,)))
        if since > max(kept, seen.before.meta.since or 0):
            raise Broken(f"{seen.shard} gives up what was before {since}; kept is from {kept} on")

    def _check_shards(self) -> None:
        """No table is ahead of the commits, and nothing was tidied that is not applied."""
        states = self.sim.watch.states
        txns = states.get(TXNS)
        if txns is None or txns.meta.upper is None:
            return
        for shard, state in states.items():
            upper = state.meta.upper
            if shard == TXNS or upper is None:  # or dropped, and over
                continue
            if upper > txns.meta.upper:
                raise Broken(f"{shard} is at {upper}, beyond the database at {txns.meta.upper}")
            tidied = tidied_through(txns, shard)
            if tidied >= upper:
                raise Broken(f"{shard} is at {upper}, and tidied through {tidied}")

    def _on_commit(self, seen: Seen) -> None:
        for diff in seen.record.diffs:
            version = diff.after
            if isinstance(version, TableVersion) and version.table not in self.reference.tables:
                keys = len(version.row_keys) + len(version.sort_keys)
                assert version.kind != "aggregate"
                self.reference.create(version.table, version.kind, keys)
        for said in seen.commits:
            self._commits.append(said["time"])
            op = said.get("metadata", {}).get("op")
            if op is not None:
                self.reference.committed(op, said["time"])

    def _deletion_delay(self, shard: str) -> int:
        text = PROPERTIES["deletion_delay"].default
        return duration_micros(text if shard == TXNS else self.properties["deletion_delay"])


def holds(version: TableVersion, as_of: int | None) -> bool:
    """Whether it was the version at that time; None: whether it is now."""
    if as_of is None:
        return version.valid_until is None
    until = version.valid_until
    return version.valid_from <= as_of and (until is None or as_of < until)
