"""Shards under any sequence of writes, reads and compactions, beside a plain dict of updates."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import strandline as sl
from strandline.errors import AsOfTooOld, UpperMismatch
from strandline.settings import Settings
from strandline.shard import Batch, ReadHandle, ShardHold, WriteHandle, read_split
from strandline.shard.alone.compaction import Strategy
from tests.shard.helpers import Update, listed, opened, updates

SMALL = Settings(
    background=False,
    rollup_every_records=4,
    page_items_max=4,
    part_rows_target=8,
    row_group_rows=3,
    timeout_seconds=120,
)

words = st.sampled_from(["", "a", "a\0", "b", "ä", "\U0001f600", "zz"])
diffs = st.sampled_from([-(10**12), -2, -1, 1, 1, 1, 2, 5])
some = st.lists(st.tuples(words, st.integers(0, 4), diffs), max_size=12)
who = st.integers(0, 1)
step = st.integers(1, 5)


class Shards(RuleBasedStateMachine):
    """Two processes' handles on one shard, and what has to be in it."""

    place: ClassVar[str] = "memory"

    @initialize()
    def open(self) -> None:
        self.directory = tempfile.mkdtemp() if self.place == "directory" else ""
        self.location = sl.open_location(self.directory or "memory://")
        pairs = [opened(self.location, settings=SMALL) for _ in range(2)]
        self.writes: list[WriteHandle] = [pair[0] for pair in pairs]
        self.reads: list[ReadHandle] = [pair[1] for pair in pairs]
        self.sinces = [0, 0]
        self.upper = 0
        self.model: Counter[tuple[str, int]] = Counter()
        self.hold: ShardHold | None = None
        self.waiting: list[tuple[Batch, list[Update]]] = []
        self.tokens = 0

    def teardown(self) -> None:
        if not hasattr(self, "location"):
            return
        self.check()
        for read, write in zip(self.reads, self.writes, strict=True):
            read.close()
            write.close()
        self.location.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- the model

    @property
    def since(self) -> int:
        """The least of the holds, but never at upper or beyond."""
        held = [*self.sinces, *([] if self.hold is None else [self.hold.since or 0])]
        return min(*held, max(self.upper - 1, 0))

    def add(self, data: list[Update], lower: int, upper: int) -> None:
        for name, time, diff in data:
            if time >= lower:
                self.model[name, time] += diff
        self.upper = max(self.upper, upper)

    def shifted(self, data: list[Update], lower: int, length: int) -> list[Update]:
        return [(name, lower + time % length, diff) for name, time, diff in data]

    # --- writing

    @rule(who=who, data=some, length=step, streamed=st.booleans())
    def compare_and_append(self, who: int, data: list[Update], length: int, streamed: bool) -> None:
        lower = self.upper
        mine = self.shifted(data, lower, length)
        given = updates(*mine)
        result = self.writes[who].compare_and_append(
            given.to_reader(5) if streamed else given, lower, lower + length
        )
        assert result.upper == lower + length
        self.add(mine, lower, lower + length)

    @rule(who=who, data=some, length=step, late=st.integers(1, 3))
    def append_elsewhere(self, who: int, data: list[Update], length: int, late: int) -> None:
        lower = self.upper + late
        with pytest.raises(UpperMismatch) as refused:
            self.writes[who].compare_and_append(
                updates(*self.shifted(data, lower, length)), lower, lower + length
            )
        assert refused.value.upper == self.upper

    @rule(data=some, length=step, first=st.integers(0, 5))
    def append_replicated(self, data: list[Update], length: int, first: int) -> None:
        lower = self.upper
        mine = self.shifted(data, lower, length)
        cut = min(lower + first, lower + length)
        early = [update for update in mine if update[1] < cut]
        self.writes[0].append(updates(*early), cut, lower=lower)
        self.writes[1].append(updates(*mine), lower + length, lower=lower)
        self.writes[0].append(
            updates(*(update for update in mine if update[1] >= cut)), lower + length, lower=cut
        )
        self.add(mine, lower, lower + length)

    @rule(who=who, data=some, length=step, again=who)
    def append_with_token(self, who: int, data: list[Update], length: int, again: int) -> None:
        lower = self.upper
        mine = self.shifted(data, lower, length)
        self.tokens += 1
        token = ("scope", self.tokens)
        for number, writer in enumerate((who, again)):
            result = self.writes[writer].compare_and_append(
                updates(*mine), lower, lower + length, token=token
            )
            assert (result.upper, result.repeated) == (lower + length, number > 0)
        self.add(mine, lower, lower + length)

    @rule(who=who, data=some, ahead=st.integers(0, 3), length=step)
    def build(self, who: int, data: list[Update], ahead: int, length: int) -> None:
        lower = self.upper + ahead
        mine = self.shifted(data, lower, length)
        with self.writes[who].batch_builder(lower) as builder:
            for update in mine:
                builder.add(updates(update))
            batch = builder.finish(lower + length)
        self.waiting.append((Batch.from_bytes(batch.to_bytes()), mine))

    @precondition(lambda self: self.waiting)
    @rule(who=who)
    def append_batch(self, who: int) -> None:
        batch, data = self.waiting.pop(0)
        assert batch.upper is not None
        if batch.lower > self.upper:
            self.writes[who].advance_upper(batch.lower)
            self.upper = batch.lower
        upper = self.upper
        self.writes[who].append(batch, batch.upper)
        self.add(data, upper, batch.upper)

    @rule(who=who, to=st.integers(0, 20))
    def advance(self, who: int, to: int) -> None:
        self.upper = max(self.upper, to)
        assert self.writes[who].advance_upper(to) == self.upper

    # --- history

    @rule(who=who, ahead=st.integers(-2, 6))
    def downgrade(self, who: int, ahead: int) -> None:
        to = max(self.sinces[who] + ahead, 0)
        self.sinces[who] = max(self.sinces[who], to)
        assert self.reads[who].downgrade_since(to) == self.sinces[who]

    @rule(who=who)
    def hold_or_take(self, who: int) -> None:
        if self.hold is None:
            self.hold = self.reads[who].hold("kept")
            return
        self.hold = self.reads[who].take("kept")

    @precondition(lambda self: self.hold is not None)
    @rule(to=st.integers(0, 40))
    def move_hold(self, to: int) -> None:
        assert self.hold is not None
        before = self.hold.since or 0
        assert self.hold.downgrade_since(to) == max(before, to)

    @precondition(lambda self: self.hold is not None)
    @rule()
    def close_hold(self) -> None:
        assert self.hold is not None
        self.hold.close()
        self.hold = None

    @rule(who=who, strategy=st.sampled_from(["size-ratio", "basic", "full"]))
    def compact(self, who: int, strategy: Strategy) -> None:
        self.writes[who].compact(strategy)
        self.check()

    @rule()
    def delete_what_is_dead(self) -> None:
        """What a vacuum may do at the very worst: without any delay."""
        machine = self.writes[0]._shard.machine
        state = machine.look()
        for key in state.ask(lambda s: [dead.key for _, dead in s.dead.range()]):
            self.location.blob.delete(key, timeout=60)
        self.check()

    # --- reading

    @rule(who=who, back=st.integers(1, 30), splits=st.integers(1, 3))
    def read(self, who: int, back: int, splits: int) -> None:
        as_of = self.upper - back
        read, since = self.reads[who], self.sinces[who]
        if as_of >= since:
            self.check_snapshot(read, as_of, splits)
        elif as_of >= 0:
            with pytest.raises(AsOfTooOld):
                read.snapshot(as_of, splits)
        if as_of >= since or since == 0:
            self.check_listen(read, max(as_of, -1))
        elif as_of >= 0:
            with pytest.raises(AsOfTooOld):
                read.listen(as_of)

    @rule()
    def read_all(self) -> None:
        self.check()

    def check(self) -> None:
        """At the bounds of what can be read, where mistakes show."""
        for read, since in zip(self.reads, self.sinces, strict=True):
            for as_of in {since, since + 1, (since + self.upper) // 2, self.upper - 1}:
                if since <= as_of < self.upper:
                    self.check_snapshot(read, as_of, 1 + as_of % 3)
                    self.check_listen(read, as_of)

    def check_snapshot(self, read: ReadHandle, as_of: int, splits: int) -> None:
        found: Counter[str] = Counter()
        last: bytes | None = None
        for split in read.snapshot(as_of, splits):
            table = read_split(self.location, split, settings=SMALL).read_all()
            for row in table.to_pylist():
                key = row["word"].encode()
                assert last is None or key > last
                last = key
                found[row["word"]] = row["__diff"]
        expected: Counter[str] = Counter()
        for (name, time), diff in self.model.items():
            if time <= as_of:
                expected[name] += diff
        assert found == Counter({name: diff for name, diff in expected.items() if diff})

    def check_listen(self, read: ReadHandle, as_of: int) -> None:
        found: Counter[tuple[str, int]] = Counter()
        progress = as_of + 1
        for event in read.listen(as_of, until=self.upper, timeout=60):
            assert event.progress is not None
            for name, time, diff in listed(event.updates):
                assert progress <= time < event.progress
                found[name, time] += diff
            progress = event.progress
        assert progress == max(self.upper, as_of + 1)
        expected = {key: n for key, n in self.model.items() if n and key[1] > as_of}
        assert {key: n for key, n in found.items() if n} == expected

    @rule(who=who)
    def uppers_agree(self, who: int) -> None:
        assert self.writes[who].fetch_upper() == self.upper
        state = self.writes[who]._shard.machine.look()
        assert state.meta.since is not None
        assert state.meta.since <= self.since

    @rule(who=who)
    def reopen(self, who: int) -> None:
        """Another process takes the place of one; batches of it that wait are lost."""
        self.waiting = []
        write, read = opened(self.location, settings=SMALL)
        since = read.since
        assert since is not None
        assert since <= self.since
        self.reads[who].close()
        self.writes[who].close()
        self.writes[who], self.reads[who], self.sinces[who] = write, read, since
        if self.hold is not None:
            before = self.hold.since
            self.hold = read.take("kept")
            assert self.hold.since == before


class ShardsInADirectory(Shards):
    place: ClassVar[str] = "directory"


class ShardsForLong(Shards):
    """The same, for the slow tests."""


profile = settings(max_examples=25, stateful_step_count=25, suppress_health_check=list(HealthCheck))
TestShards = Shards.TestCase
TestShards.settings = profile
TestShardsInADirectory = ShardsInADirectory.TestCase
TestShardsInADirectory.settings = settings(profile, max_examples=12)
TestShardsForLong = pytest.mark.slow(ShardsForLong.TestCase)
TestShardsForLong.settings = settings(profile, max_examples=800, stateful_step_count=40)
