"""Sweeps: what sessions that ended left behind, and nothing needs, is deleted.

An ended session commits nothing any more, so of its objects only those are needed that something
names already. docs/design/0010-ends-of-sessions.md says why the order of the steps matters. It
fails closed: a request that is not answered, or a state that cannot be read, ends the sweep before
anything is deleted that it might have named.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

from strandline.env import Deadline, Env
from strandline.errors import Corruption, UsageError
from strandline.ids import ObjectKey
from strandline.location import BlobInfo, BlobMissing, Location
from strandline.shard.deleting import deletions
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.shard.opening import Log
from strandline.shard.probe import location_time
from strandline.state.codec import decode_rollup
from strandline.state.commands import Swept
from strandline.state.model import Session
from strandline.state.pages import Page
from strandline.state.replay import State
from strandline.state.tables import called, tidied_through

__all__ = [
    "Registered",
    "Sweep",
    "entered",
    "listed_of",
    "needed_by",
    "registered",
    "sweep_sessions",
]

_log = logging.getLogger("strandline")

Needed = Callable[[Sequence[ObjectKey]], tuple[set[str], set[str]]]
"""Which of these objects, listed before, something names; and the shards that named all that was
listed of their state, because a rollup of them could not be read."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one sweep did, or with `dry_run` what it would do."""

    sessions: int = 0
    """Ended sessions whose objects were looked through."""
    finished: int = 0
    """Those of them that are forgotten now."""
    objects: int = 0
    """Objects deleted."""
    bytes: int = 0
    """Bytes of them."""
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Other ended sessions by what they wait for: "acknowledgement", "delay"."""
    left: int = 0
    """Objects that were to be deleted, and may be there: no answer said that they are gone."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A session, and the machine of the shard where it is registered."""

    machine: Machine
    name: str
    session: Session

    def comes_again(self, now: int, delay: int) -> bool:
        """Whether it was swept before, at least `delay` ago. A mark that lies ahead is none."""
        return self.session.swept is not None and now - self.session.swept >= delay

    def is_due(self, now: int, delay: int) -> bool:
        """Whether it is to be swept now."""
        swept = self.session.swept
        return swept is None or swept > now or self.comes_again(now, delay)


def registered(machine: Machine, deadline: Deadline) -> list[Registered]:
    """All sessions of a shard, by its newest state."""
    found = machine.look(deadline).ask(lambda s: list(s.sessions.range()))
    return [Registered(machine, key[0], session) for key, session in found]


def sweep_sessions(
    machines: Sequence[Machine],
    needed_of: Needed,
    location: Location,
    env: Env,
    *,
    delay_micros: int,
    deadline: Deadline,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """One pass for all ended sessions of these machines' shards, the first of which has the clock.

    `needed_of` is asked once all of their prefixes are listed. `progress` is told objects deleted,
    in all.

    A session is forgotten once a pass finds nothing, a deletion delay or longer after one before:
    by then no request of its owner is under way. Errors: LocationError, Corruption; what was
    deleted until then was needed by nobody.
    """
    ended = [
        each
        for machine in machines
        for each in registered(machine, deadline)
        if each.session.expired is not None
    ]
    ready = [each for each in ended if each.session.acknowledged is not None]
    waiting = {"acknowledgement": len(ended) - len(ready), "delay": 0}
    now = env.now_micros()
    if ready and not dry_run:
        now = _location_time(location, machines[0], env, deadline)
    due = [each for each in ready if each.is_due(now, delay_micros)]
    waiting["delay"] = len(ready) - len(due)
    waiting = {reason: count for reason, count in waiting.items() if count}
    if not due:
        return Sweep(waiting=waiting)
    # SUBTLE ◆ (C5, C7 of the sweep's model): the ends are in the log; then all prefixes are
    # listed, then (`needed_by`) the txns shard is read, then each data shard afresh. What was
    # committed moves from entries to references to dead objects. So whatever of the listing was
    # needed when the listing ended is met by one of the looks after it, or has died and was
    # collected since.
    listed = listed_of(location, env, [each.name for each in due], deadline)
    needed, doubtful = needed_of([key for keys in listed.values() for key in keys])
    garbage = {
        name: [info for key, info in keys.items() if str(key) not in needed]
        for name, keys in listed.items()
    }
    if dry_run:
        found = [info for infos in garbage.values() for info in infos]
        return Sweep(len(due), 0, len(found), sum(info.size for info in found), waiting)
    deleted, failed = _delete(location, env, garbage, deadline, progress)
    # After the deletions, so that the delay begins when they were over.
    at = _location_time(location, machines[0], env, deadline)
    finished = 0
    for each in due:
        unsure = any(key.shard in doubtful for key in listed[each.name])
        if each.name not in failed and not unsure:
            # SUBTLE: a second pass that finds something shows that the owner was still writing
            # then, whatever was said of it; so there is a third.
            last = each.comes_again(now, delay_micros) and not garbage[each.name]
            finished += each.machine.submit(Swept(each.name, at, last), deadline) and last
    left = sum(map(len, garbage.values())) - len(deleted)
    size = sum(info.size for info in deleted)
    return Sweep(len(due), finished, len(deleted), size, waiting, left)


def _location_time(location: Location, machine: Machine, env: Env, deadline: Deadline) -> int:
    """Now, by the clock that all machines that sweep have in common."""
    machine.live_session(deadline, brief=True)
    return location_time(location, machine, env, deadline)


def listed_of(
    location: Location, env: Env, sessions: Sequence[str], deadline: Deadline
) -> dict[str, dict[ObjectKey, BlobInfo]]:
    """The objects that each of these sessions wrote, by key.

    What has no key of ours is not ours to delete, and is left out.
    """

    def objects(session: str) -> dict[ObjectKey, BlobInfo]:
        found: dict[ObjectKey, BlobInfo] = {}
        for info in location.blob.list(f"{session}/", timeout=deadline.remaining()):
            try:
                found[ObjectKey.parse(info.key)] = info
            except UsageError:
                _log.warning("%s is not the key of an object, and is left alone", info.key)
        return found

    return dict(zip(sessions, env.parallel(objects, sessions), strict=True))


def needed_by(
    home: Machine,
    machine_of: Callable[[str], Machine],
    keys: Iterable[ObjectKey],
    location: Location,
    env: Env,
    deadline: Deadline,
    *,
    elsewhere: Callable[[], set[str]] = set,
    check: Callable[[str, Look], None] = lambda _, __: None,
) -> tuple[set[str], set[str]]:
    """As `Needed`, of objects whose sessions are registered in `home`, or in the shard they are of.

    `elsewhere`: parts that are committed in other logs than home's; asked in between. `check`
    raises if the newest state of another shard cannot be what home says of it.
    """
    by_shard: dict[str, list[ObjectKey]] = {}
    for key in keys:
        by_shard.setdefault(key.shard, []).append(key)
    look = home.look(deadline)
    needed = look.ask(lambda s: set(entered(s)))
    # SUBTLE: before the data shards, too: what is committed and not applied is named nowhere else.
    needed |= elsewhere()
    doubtful: set[str] = set()
    for shard, listed in by_shard.items():
        machine, data = home, look
        if shard != home.shard:
            machine = machine_of(shard)
            data = machine.look(deadline)
            _check_reaches(look, shard, data)
            check(shard, data)
        names = frozenset(map(str, listed))
        found, rollups = data.ask(partial(_named, names=names))
        needed |= found
        if all(key.kind in {"part", "receipt", "probe"} for key in listed):
            continue
        try:
            log = Log(location, shard, env)
            needed |= {page for rollup in rollups for page in _pages(log, rollup, deadline)}
        except (Corruption, BlobMissing) as error:
            # Which pages it names is not known any more: all may be needed.
            _log.warning("no pages of shard %s are swept: %s", shard, error)
            needed |= {str(key) for key in listed if key.kind in {"page", "rollup"}}
            doubtful.add(shard)
    return needed, doubtful


def entered(state: State) -> Iterator[str]:
    """The parts of what is committed and not tidied."""
    for _, entry in state.entries.range():
        yield from (part.key for part in entry.batch.parts)


def _named(state: State, names: AbstractSet[str]) -> tuple[set[str], list[str]]:
    """Which of these objects a state names itself, and the keys of its rollups."""
    rollups = [rollup.key for _, rollup in state.rollups.range()]
    found = {name for name in names if state.parts.get((name,)) is not None}
    found |= {dead.key for _, dead in state.dead.range()}
    found |= {receipt.key for _, receipt in state.receipts.range()}
    return found.union(rollups), rollups


def _pages(log: Log, rollup: str, deadline: Deadline) -> Iterator[str]:
    manifest = decode_rollup(log.get(rollup, deadline), rollup)
    for pages in manifest.pages.values():
        yield from () if isinstance(pages, Page) else (ref.key for ref in pages)


def _check_reaches(look: Look, shard: str, data: Look) -> None:
    """Corruption if a data shard is behind what was tidied: then it cannot say what is needed."""
    tidied = look.ask(lambda s: tidied_through(s, shard))
    upper = data.meta.upper
    if upper is not None and upper <= tidied:
        which = look.ask(lambda s: called(s, shard))
        raise Corruption(
            f"the log of {which} ends before commits that were tidied as applied: it lost records; "
            "nothing was swept, restore the newest log",
            object=shard,
        )


def _delete(
    location: Location,
    env: Env,
    garbage: Mapping[str, Sequence[BlobInfo]],
    deadline: Deadline,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[BlobInfo], set[str]]:
    """Deletes the objects; those that are gone now, and the sessions of which some may not be."""
    items = [(name, info) for name, infos in garbage.items() for info in infos]
    deleted: list[tuple[str, BlobInfo]] = []
    for gone in deletions(location, env, items, lambda item: item[1].key, deadline=deadline):
        deleted += gone
        if progress is not None:
            progress(len(deleted), len(items))
    failed = {name for name, _ in set(items).difference(deleted)}
    return [info for _, info in deleted], failed
