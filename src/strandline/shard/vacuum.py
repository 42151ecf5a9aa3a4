"""One run of a vacuum over one shard: verifies, copies, truncates, deletes, in that order.

`strandline.state.garbage` plans; here is what touches the location. Every step rests on a record
that is in the log before the next begins, so that a run may end anywhere: what it had not done is
planned again by the next one, and deleting what is gone already changes nothing. It fails closed:
a look that is not answered, or a listing that is not complete, ends the run, and nothing that comes
after it is deleted. An object whose delete is not answered stays dead, and is told of as left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

from strandline.env import Deadline, Env
from strandline.errors import Corruption
from strandline.location import BlobMissing, Location
from strandline.shard.deleting import deletions
from strandline.shard.machine import Machine
from strandline.shard.opening import Log
from strandline.shard.probe import location_time
from strandline.shard.receipts import parts_named, write_receipt
from strandline.shard.sweeping import Sweep
from strandline.state.codec import Manifest, decode_page, decode_rollup
from strandline.state.commands import (
    Collect,
    Command,
    Heartbeat,
    KeepReceipts,
    R,
    RetireRollups,
)
from strandline.state.garbage import VacuumPlan, doubtful_receipts, parts_there, plan_vacuum
from strandline.state.model import Dead, Key, Mark, Receipt, Rollup
from strandline.state.pages import Page
from strandline.state.replay import State

__all__ = ["ShardVacuum", "Vacuum"]

A = TypeVar("A")

_log = logging.getLogger("strandline")


@dataclass(frozen=True, slots=True)
class ShardVacuum:
    """What one run did to one shard, or with `dry_run` what it would do."""

    shard: str
    objects: int
    """Objects deleted."""
    bytes: int
    """Bytes of them."""
    waiting: Mapping[str, int]
    """Dead objects that stay for now, by what they wait for: "rollup" (one that was read back and
    is later than the death), "hold", "delay" (the deletion delay), "receipt"."""
    rollups: int
    """Rollups retired."""
    records: int
    """Records truncated; with `dry_run` the seqno before which they would be."""
    damaged: tuple[str, ...] = ()
    """Rollups, by key, that could not be read back; nothing rests on them."""
    left: int = 0
    """Objects that were to be deleted, and may still be there: of some no delete was answered, and
    after too many of those the rest was not tried. The next run goes on with them."""
    swept: Sweep | None = None
    """What was done about sessions that ended: only of a shard that is vacuumed by itself."""

    @property
    def complete(self) -> bool:
        """Whether everything that could go is gone."""
        return not self.left and (self.swept is None or not self.swept.left)


class Vacuum:
    """Vacuums one shard. For one thread."""

    def __init__(
        self,
        machine: Machine,
        location: Location,
        env: Env,
        *,
        delay_micros: int,
        deadline: Deadline,
        records_min: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """`records_min`: so many records stay in the log for people to look at."""
        self._machine = machine
        self._location = location
        self._env = env
        self._delay = delay_micros
        self._deadline = deadline
        self._records_min = records_min
        self._progress = progress
        self._log = Log(location, machine.shard, env)
        self._damaged: set[str] = set()
        self._manifests: dict[str, Manifest] = {}

    def plan(self) -> ShardVacuum:
        """What a run would do. Asks nothing of the location's clock, and writes nothing."""
        plan = self._planned(self._env.now_micros())
        return self._report(plan.delete, plan, len(plan.retire), self._log_begin(plan))

    def run(self) -> ShardVacuum:
        """Deletes what nobody can need any more.

        Errors: LocationError, Corruption (the state cannot be read); what was done until then
        stands.
        """
        first = self._planned(self._env.now_micros())
        if not first.seqno or not self._has_work(first):
            return self._report((), first, 0, 0)
        # SUBTLE: the state first, then the clock, and the mark is of that state: what was dead in
        # it was dead by then. What a newer state has may have died after the clock was read.
        now = self._location_time()
        plan = self._planned(now)
        if plan.mark:
            self._submit(Collect(mark=(first.seqno, Mark(now)), marks=plan.stale_marks))
        plan = self._planned(now)
        if plan.roll_up:
            self._roll_up()
        if not self._verify_newest() and "rollup" in self._planned(now).waiting:
            # Nothing rests on a rollup that cannot be read; another takes its place.
            self._roll_up()
            self._verify_newest()
        retired = self._retire(now)
        records = self._truncate(self._copy(now))
        dead = self._planned(now).delete
        deleted = self._delete(dead)
        if deleted:  # else what receipts tell of is as it was; it takes a look at every part
            self._drop_receipts()
        left = len(dead) - len(deleted)
        return self._report(deleted, self._planned(now), retired, records, left)

    # --- what there is to do

    def _planned(self, now: int) -> VacuumPlan:
        """The plan on the newest state."""
        return self._look(lambda state: plan_vacuum(state, now, self._delay))

    def _look(self, function: Callable[[State], A]) -> A:
        """What `function` makes of the newest state."""
        # Not of one that was fetched before: the newest heals, should a page of it be damaged.
        self._machine.look(self._deadline)
        return self._machine.ask(function, self._deadline)

    def _has_work(self, plan: VacuumPlan) -> bool:
        unverified = any(not rollup.verified for rollup in plan.keep[-2:])
        return bool(plan.delete or plan.waiting or plan.retire or plan.roll_up or unverified)

    def _submit(self, command: Command[R]) -> R:
        return self._machine.submit(command, self._deadline)

    def _report(
        self,
        deleted: Sequence[tuple[Key, Dead]],
        plan: VacuumPlan,
        rollups: int,
        records: int,
        left: int = 0,
    ) -> ShardVacuum:
        return ShardVacuum(
            shard=self._machine.shard,
            objects=len(deleted),
            bytes=sum(dead.size for _, dead in deleted),
            waiting=plan.waiting,
            rollups=rollups,
            records=records,
            damaged=tuple(sorted(self._damaged)),
            left=left,
        )

    # --- the location's clock

    def _location_time(self) -> int:
        """Now, by the clock that the location gives its objects; µs since the Unix epoch.

        The machine's own clock is compared with nothing: several machines vacuum one shard.
        """
        return location_time(self._location, self._machine, self._env, self._deadline)

    # --- rollups

    def _roll_up(self) -> None:
        """Writes a rollup: nothing dies for good before there is one."""
        # Rollups are written by sessions of the shard; any record names one.
        self._submit(Heartbeat())
        if self._machine.roll_up(self._deadline):
            self._submit(Heartbeat())

    def _verify_newest(self) -> bool:
        """Reads back the two newest rollups; whether the newest is whole, if there is one."""
        rollups = self._look(lambda s: [rollup for _, rollup in s.rollups.range()])
        known = self._known_pages(rollups)
        new = [r for r in rollups[-2:] if not r.verified and self._is_whole(r, known)]
        if new:
            # Refused if another rollup came meanwhile: the next run sees to it.
            self._submit(RetireRollups((), _keys(rollups), verified=_keys(new)))
        return not rollups or rollups[-1].verified or rollups[-1] in new

    def _known_pages(self, rollups: Sequence[Rollup]) -> set[str]:
        """Pages that were read back before: they are not read again."""
        known: set[str] = set()
        for rollup in rollups:
            if rollup.verified:
                manifest = self._readable(rollup)
                known |= set() if manifest is None else _pages_of(manifest).keys()
        return known

    def _is_whole(self, rollup: Rollup, known: AbstractSet[str]) -> bool:
        """Whether all of a rollup can be read; what a verified one shares with it was."""
        manifest = self._readable(rollup)
        if manifest is None:
            return False
        try:
            wanted = [item for item in _named(manifest) if item[1] not in known]
            for pages in _bites(wanted, 64):
                self._env.parallel(self._read_page, pages)
        except (Corruption, BlobMissing) as error:
            self._is_damaged(rollup, error)
            # What is in memory may share the page; the next rollup shall not.
            key = error.key if isinstance(error, BlobMissing) else error.object
            self._machine.distrust(key, str(error), self._deadline)
            return False
        return True

    def _readable(self, rollup: Rollup) -> Manifest | None:
        """The manifest of a rollup; None if it is damaged or gone."""
        try:
            return self._manifest(rollup)
        except (Corruption, BlobMissing) as error:
            self._is_damaged(rollup, error)
            return None

    def _is_damaged(self, rollup: Rollup, error: Exception) -> None:
        _log.warning("rollup %s cannot be read back: %s", rollup.key, error)
        self._damaged.add(rollup.key)

    def _retire(self, now: int) -> int:
        """Lets go of the rollups before the two newest that were read back; how many."""
        plan = self._planned(now)
        if not plan.retire:
            return 0
        kept = [self._readable(rollup) for rollup in plan.keep]
        # SUBTLE: which pages a damaged one shares with those that go is not known, and it may only
        # have been read badly. So all stay, until two that are whole come after it.
        if None in kept:
            return 0
        needed = {key for manifest in kept if manifest for key in _pages_of(manifest)}
        objects: dict[str, Dead] = {}
        for rollup in plan.retire:
            objects[rollup.key] = Dead(rollup.key, rollup.seqno, 0, rollup.size)
            manifest = self._readable(rollup)
            if manifest is None:
                continue  # its pages are not known any more; the sweep of its session finds them
            for key, size in _pages_of(manifest).items():
                if key not in needed:
                    objects.setdefault(key, Dead(key, rollup.seqno, 0, size))
        command = RetireRollups(_keys(plan.retire), _keys(plan.keep), tuple(objects.values()))
        return len(plan.retire) if self._submit(command) else 0

    def _read_page(self, item: tuple[str, str]) -> None:
        collection, key = item
        decode_page(collection, self._machine.shard, self._log.get(key, self._deadline), key)

    def _manifest(self, rollup: Rollup) -> Manifest:
        found = self._manifests.get(rollup.key)
        if found is None:
            data = self._log.get(rollup.key, self._deadline)
            found = self._manifests[rollup.key] = decode_rollup(data, rollup.key)
        return found

    # --- the log

    def _copy(self, now: int) -> VacuumPlan:
        """Writes the receipts that are missing; the plan of a state that has them."""
        while True:
            # SUBTLE: planned anew after each receipt. That of another may have come first, and
            # what counts as covered is what the state says, not what was written here.
            plan = self._planned(now)
            first = plan.receipts_from
            if first > plan.receipts_through:
                return plan
            self._deadline.check("writing receipts", may_have_happened=True)
            written = write_receipt(
                self._machine,
                self._location,
                self._log,
                self._env,
                first=first,
                through=plan.receipts_through,
                deadline=self._deadline,
            )
            if not written:
                return plan

    def _truncate(self, plan: VacuumPlan) -> int:
        """Removes the records that are not needed, now that their receipts exist."""
        before = self._log_begin(plan)
        if plan.retire:
            # SUBTLE: they were to be retired, and stayed: one that is kept could not be read, or
            # another came. As long as the state has them a record may name one of them, written by
            # a process that trusts no later one; whoever opens the shard then replays from there.
            before = min(before, plan.retire[0].seqno)
        if before <= 1:
            return 0
        return self._location.consensus.truncate(
            self._machine.shard, before, timeout=self._deadline.remaining()
        )

    def _log_begin(self, plan: VacuumPlan) -> int:
        """Records before this seqno go."""
        return max(0, min(plan.truncate_before, plan.seqno + 1 - self._records_min))

    # --- objects

    def _delete(self, dead: Sequence[tuple[Key, Dead]]) -> list[tuple[Key, Dead]]:
        """Deletes objects and then forgets them, some at a time; those that are gone now."""
        done: list[tuple[Key, Dead]] = []
        for gone in deletions(
            self._location, self._env, dead, lambda item: item[1].key, deadline=self._deadline
        ):
            if gone:
                # SUBTLE: not before: what is forgotten and still there would be found by nobody.
                self._submit(Collect(tuple(key for key, _ in gone)))
            done += gone
            if self._progress is not None:
                self._progress(len(done), len(dead))
        return done

    def _drop_receipts(self) -> None:
        """Lets go of receipts none of whose objects is there any more."""
        doubtful = self._look(doubtful_receipts)
        needless = [first for first, receipt in doubtful if self._is_needless(receipt)]
        if needless:
            self._submit(KeepReceipts(dropped=tuple(needless)))

    def _is_needless(self, receipt: Receipt) -> bool:
        """Whether no part that its records name is there any more."""
        try:
            named = parts_named(self._log.get(receipt.key, self._deadline), receipt)
        except (Corruption, BlobMissing) as error:
            _log.warning("receipt %s cannot be read: %s", receipt.key, error)
            return False
        return not self._look(lambda s: parts_there(s, named))


def _named(manifest: Manifest) -> Iterable[tuple[str, str]]:
    """The pages of a rollup: collection and key."""
    for collection, pages in manifest.pages.items():
        if not isinstance(pages, Page):
            for ref in pages:
                yield collection, ref.key


def _keys(rollups: Iterable[Rollup]) -> tuple[str, ...]:
    return tuple(rollup.key for rollup in rollups)


def _pages_of(manifest: Manifest) -> dict[str, int]:
    """The keys of a rollup's pages, with their sizes."""
    return {
        ref.key: ref.size
        for pages in manifest.pages.values()
        if not isinstance(pages, Page)
        for ref in pages
    }


def _bites(items: Sequence[A], size: int) -> Iterable[Sequence[A]]:
    return (items[start : start + size] for start in range(0, len(items), size))
