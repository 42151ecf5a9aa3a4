"""A txns shard under any sequence of what its users do, beside a model that is a plain dict.

Several handles, as if of several processes, work on one location. Some are dropped without a word,
and of some operations the answer is lost, or the process ends amid them, before or after any of
their records. What the model does not know then, the next look at the shard tells: a commit either
is there, wholly, or it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.env import RealEnv
from strandline.errors import (
    AsOfTooOld,
    LocationError,
    StrandlineError,
    UnknownTable,
    UpperMismatch,
    UsageError,
)
from strandline.location import Location
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.settings import Settings
from strandline.shard import ReadHandle, WriteHandle, compact, open_shard
from strandline.state.invariants import broken
from strandline.testing.faults import FAIL_AFTER, LOST, Call, Fault, Faults, FaultyConsensus
from strandline.txn import Txn, TxnsHandle
from tests.shard.helpers import WORDS
from tests.support.deadlines import within
from tests.txn.helpers import TXNS

SHARDS = [f"s00000000000000d{n}" for n in range(3)]
SMALL = Settings(
    background=False,
    inline_bytes_max=700,
    rollup_every_records=7,
    page_items_max=6,
    apply_backlog_commits=2,
    timeout_seconds=120.0,
)

Words = dict[str, int]

writes = st.dictionaries(
    st.sampled_from("abcdef"), st.sampled_from([-1, 1, 2]), min_size=1, max_size=4
)
transactions = st.one_of(
    st.dictionaries(st.sampled_from(SHARDS), writes, min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(SHARDS), writes, max_size=2),
)
handles = st.integers(0, 2)
shards = st.sampled_from(SHARDS)
skips = st.integers(0, 2)


class Crash(BaseException):
    """The process ends here."""


@dataclass
class Model:
    """One data shard: all updates that there are, and who may write."""

    updates: list[tuple[int, Words]] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    """Times of commits to it, whoever registered it then."""
    registered: list[tuple[int, int | None]] = field(default_factory=list)
    upper: int = 0
    """Of its own, while it is not registered."""

    @property
    def is_registered(self) -> bool:
        return bool(self.registered) and self.registered[-1][1] is None

    def at(self, as_of: int) -> Words:
        found: Counter[str] = Counter()
        for time, words in self.updates:
            if time <= as_of:
                found.update(words)
        return {word: count for word, count in found.items() if count}

    def was_registered(self, time: int) -> bool:
        return any(a <= time and (b is None or time < b) for a, b in self.registered)


class Weather:
    """What goes wrong with the next operation: told before it, and over with it."""

    def __init__(self) -> None:
        self.plan: tuple[int, str] | None = None
        self.seen = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def decide(self, call: Call) -> Fault | None:
        if self.plan is None:
            return None
        at, word = self.plan
        if word == "others apply":
            self.seen += 1
            if self.seen == at + 1:
                self.plan = None
                self.meanwhile()
            return None
        if call.kind != "compare_and_set":
            return None
        self.seen += 1
        if word.startswith("dies") and self.seen > at + 1:
            return Fault(before=lambda _: Crash())
        if self.seen != at + 1:
            return None
        return {
            "answer lost": FAIL_AFTER,
            "request lost": LOST,
            "dies before": Fault(before=lambda _: Crash()),
            "dies after": Fault(after=lambda _: Crash()),
        }[word]


weathers = st.one_of(
    st.none(),
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(["answer lost", "request lost", "dies before", "dies after"]),
    ),
    st.tuples(st.integers(0, 12), st.just("others apply")),
)


blows = st.one_of(
    st.none(),
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["answer lost", "request lost", "dies before", "dies after"]),
    ),
)
"""For what is one record."""


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.env = RealEnv()
        self.weather = Weather()
        self.models = {shard: Model() for shard in SHARDS}
        self.upper = 1
        self.since = 0
        self.handles: list[TxnsHandle] = []
        self.pairs: dict[str, tuple[WriteHandle, ReadHandle]] = {}
        self.sent: list[tuple[bytes, int]] = []
        """Transactions that were sent, and committed at that time."""
        self.waiting: list[tuple[Txn, dict[str, Words], bool]] = []
        """Transactions that were refused, what is in them, whether they may be committed."""

    @initialize(registered=st.sampled_from([SHARDS, SHARDS[:2], []]))
    def begin(self, registered: list[str]) -> None:
        store = MemoryStore()
        blob, consensus = MemoryBlob(store, self.env), MemoryConsensus(store)
        self.location = Location(blob, consensus, "memory://", "memory://")
        self.weather.meanwhile = self.others_apply
        faults = Faults(self.weather.decide)
        self.stormy = replace(self.location, consensus=FaultyConsensus(consensus, faults))
        for shard in SHARDS:
            self.pairs[shard] = open_shard(self.location, shard, schema=WORDS, settings=SMALL)
        self.handles = [self.opened() for _ in range(3)]
        self.judge = TxnsHandle.open(self.location, TXNS, settings=SMALL)
        for shard in registered:
            self.register(0, shard, 0, None)

    def opened(self) -> TxnsHandle:
        return TxnsHandle.open(self.stormy, TXNS, settings=SMALL)

    # --- operations that may go wrong

    def attempt(self, which: int, weather: tuple[int, str] | None, act: Any) -> Any:
        """What `act` makes of the handle; a `Crash` or LocationError if it was cut off."""
        self.weather.plan, self.weather.seen = weather, 0
        try:
            return act(self.handles[which])
        except Crash as crash:
            self.handles[which] = None  # type: ignore[call-overload]  # dropped without close
            self.weather.plan = None
            self.handles[which] = self.opened()
            return crash
        finally:
            self.weather.plan = None

    def others_apply(self) -> None:
        self.judge.apply_le(self.upper)
        self.judge.tidy()
        for shard in SHARDS:
            compact(self.location, shard, strategy="full", settings=SMALL)

    def new_time(self, skip: int) -> int:
        return self.upper + skip

    def passed(self, time: int) -> None:
        self.upper = time + 1

    def settle(self) -> int:
        """The upper of the shard, which may have moved by what was cut off."""
        return self.judge.fetch_upper()

    # --- registering

    @rule(which=handles, shard=shards, skip=skips, weather=weathers)
    def register(self, which: int, shard: str, skip: int, weather: Any) -> None:
        model = self.models[shard]
        least = self.upper if model.is_registered else max(self.upper, model.upper)
        time = least + skip
        found = self.attempt(which, weather, lambda txns: txns.register(shard, time))
        if found is None or self.settle() > self.upper:
            assert self.settle() == time + 1
            self.passed(time)
            if not model.is_registered:
                model.registered.append((time, None))
            return
        assert isinstance(found, Crash)
        if not model.is_registered:
            # Perhaps joined and not registered: nobody may append until it is one or the other.
            self.judge.forget(shard, self.upper + 1)
            self.passed(self.upper + 1)

    @rule(which=handles, shard=shards, skip=skips, weather=weathers)
    def forget(self, which: int, shard: str, skip: int, weather: Any) -> None:
        model = self.models[shard]
        time = self.new_time(skip)
        found = self.attempt(which, weather, lambda txns: txns.forget(shard, time))
        done = found is None or self.settle() > self.upper
        if not done:
            assert isinstance(found, Crash)
            return
        assert self.settle() == time + 1
        self.passed(time)
        if model.is_registered:
            model.registered[-1] = (model.registered[-1][0], time)
            model.upper = time
        if found is not None:
            # Perhaps not given back yet: repeated, that is done.
            self.judge.forget(shard, self.upper)
            self.passed(self.upper)

    # --- commits

    def written(self, txns: TxnsHandle, data: dict[str, Words]) -> Txn | None:
        txn = txns.begin()
        known = [shard for shard in data if self.models[shard].is_registered]
        for shard in set(data) - set(known) if known else ():
            del data[shard]  # the rest is a transaction, too
        for shard, found in data.items():
            rows = {"word": list(found), "__diff": list(found.values())}
            if not self.models[shard].is_registered:
                txns.fetch_upper()  # what it remembers may be older
                with pytest.raises(UnknownTable, match="not registered"):
                    txn.write(shard, rows)
                txn.close()
                return None
            txn.write(shard, rows)
        return txn

    def happened(self, time: int, data: dict[str, Words]) -> None:
        self.passed(time)
        for shard, found in data.items():
            self.models[shard].updates.append((time, found))
            self.models[shard].commits.append(time)

    @rule(which=handles, data=transactions, skip=skips, weather=blows, sent=st.booleans())
    def commit(
        self, which: int, data: dict[str, Words], skip: int, weather: Any, *, sent: bool
    ) -> None:
        txn = self.written(self.handles[which], data)
        if txn is None:
            return
        bytes_of = b""
        if sent:
            bytes_of = txn.to_bytes()
            txn = Txn.from_bytes(bytes_of)
        before = self.upper
        self.try_commit(which, txn, data, skip, weather)
        if sent and data and self.upper > before:
            self.sent.append((bytes_of, self.upper - 1))

    def try_commit(
        self, which: int, txn: Txn, data: dict[str, Words], skip: int, weather: Any
    ) -> None:
        time = self.new_time(skip)
        found = self.attempt(which, weather, lambda txns: committed(txn, txns, time))
        if self.settle() > self.upper:
            assert self.settle() == time + 1
            self.happened(time, data)
            if isinstance(found, LocationError | Crash) and data:
                # Whoever tries it again learns that it was committed.
                again = txn.commit_at(self.judge, self.upper + 3)
                assert (again.time, again.repeated) == (time, True)
            return
        assert isinstance(found, LocationError | Crash), found
        if data and isinstance(found, LocationError):
            self.waiting.append((txn, data, True))

    @rule(which=handles, shard=shards, data=transactions, skip=skips)
    def times_that_are_taken(
        self, which: int, shard: str, data: dict[str, Words], skip: int
    ) -> None:
        time = max(0, self.upper - 1 - skip)
        with pytest.raises(UpperMismatch) as refused:
            self.handles[which].register(shard, time)
        model = self.models[shard]
        least = self.upper if model.is_registered else max(self.upper, model.upper)
        assert refused.value.upper in (self.upper, least)
        txn = self.written(self.handles[which], data)
        if txn is None:
            return
        with pytest.raises(UpperMismatch) as refused:
            txn.commit_at(self.handles[which], time)
        assert refused.value.upper == self.upper
        self.waiting.append((txn, data, False))

    @precondition(lambda self: self.waiting)
    @rule(which=handles, skip=skips, weather=weathers, data=st.data())
    def try_again(self, which: int, skip: int, weather: Any, data: Any) -> None:
        """What was refused, or cut off, before; by any handle, at a later time."""
        number = data.draw(st.integers(0, len(self.waiting) - 1))
        txn, writes, unknown = self.waiting.pop(number)
        if unknown and self.judge.since > 0:
            # It may be too old by now to be known; then it is refused, and nothing happens.
            done = guarded(lambda: txn.commit_at(self.judge, self.upper), UsageError)
            if not isinstance(done, UsageError):
                assert not done.repeated
                self.happened(done.time, writes)
            return
        if not all(self.models[shard].is_registered for shard in writes):
            with pytest.raises(UnknownTable, match="not registered"):
                txn.commit_at(self.judge, self.upper)
            return
        self.try_commit(which, txn, writes, skip, weather)

    @rule(which=handles, data=st.lists(transactions, min_size=2, max_size=3), skip=skips)
    def merge(self, which: int, data: list[dict[str, Words]], skip: int) -> None:
        """Transactions of several handles, committed as one."""
        whole = self.handles[which].begin()
        total: list[dict[str, Words]] = []
        sent: list[bytes] = []
        for number, each in enumerate(data):
            txn = self.written(self.handles[number], each)
            if txn is None:
                continue
            total.append(each)
            if number == which:
                whole.merge(txn)
                continue
            bytes_of = txn.to_bytes()
            whole.merge(Txn.from_bytes(bytes_of))
            if each:
                sent.append(bytes_of)
        time = self.new_time(skip)
        self.sent += [(bytes_of, time) for bytes_of in sent]
        whole.commit_at(self.handles[which], time)
        self.passed(time)
        for each in total:
            self.happened(time, each)

    @precondition(lambda self: self.sent)
    @rule(which=handles, data=st.data(), within=st.booleans())
    def commit_once_more(self, which: int, data: Any, *, within: bool) -> None:
        """What another process committed, by itself or within another: it stays as it was."""
        number = data.draw(st.integers(0, len(self.sent) - 1))
        bytes_of, time = self.sent[number]
        txns, txn = self.handles[which], Txn.from_bytes(bytes_of)
        if within:
            whole = txns.begin()
            whole.merge(txn)
            with pytest.raises(UsageError, match=r"already|not known any more|not registered"):
                whole.commit_at(txns, self.upper)
            return
        again = guarded(lambda: txn.commit_at(txns, self.upper), UsageError)
        if not isinstance(again, UsageError):
            assert (again.time, again.repeated) == (time, True)
            return
        assert time < self.since, again

    # --- applying, and upkeep

    @rule(which=handles, back=st.integers(-2, 6), weather=weathers)
    def apply_le(self, which: int, back: int, weather: Any) -> None:
        time = max(0, self.upper - back)
        self.attempt(which, weather, lambda txns: guarded(lambda: txns.apply_le(time)))

    @rule(which=handles, weather=weathers)
    def tidy(self, which: int, weather: Any) -> None:
        self.attempt(which, weather, lambda txns: guarded(txns.tidy))

    @rule(which=handles, back=st.integers(-1, 8), weather=weathers)
    def compact_to(self, which: int, back: int, weather: Any) -> None:
        time = max(0, self.upper - back)
        found = self.attempt(which, weather, lambda txns: guarded(lambda: txns.compact_to(time)))
        self.judge.fetch_upper()
        since = self.judge.since
        assert self.since <= since <= max(self.since, min(time, self.upper - 1))
        assert found == since or isinstance(found, LocationError | Crash)
        self.since = since

    @rule(shard=shards, back=st.integers(1, 5))
    def compact_a_shard(self, shard: str, back: int) -> None:
        self.pairs[shard][1].downgrade_since(max(0, self.upper - back))
        compact(self.location, shard, strategy="full", settings=SMALL)

    # --- the shards themselves

    @rule(shard=shards, words=writes, skip=skips)
    def append_directly(self, shard: str, words: Words, skip: int) -> None:
        model = self.models[shard]
        write = self.pairs[shard][0]
        upper = write.fetch_upper()
        assert upper is not None
        rows = {"word": list(words), "__diff": list(words.values())}
        if model.is_registered:
            with pytest.raises(UsageError, match="registered with"):
                write.compare_and_append(rows, upper, upper + 1, time=upper)
            with pytest.raises(UsageError, match="registered with"):
                write.advance_upper(upper + 1)
            return
        assert upper == model.upper
        time = upper + skip
        write.compare_and_append(rows, upper, time + 1, time=time)
        model.updates.append((time, words))
        model.upper = time + 1

    @rule(which=handles, clean=st.booleans())
    def a_handle_ends(self, which: int, *, clean: bool) -> None:
        """Or is dropped without a word. Another process takes its place."""
        if clean:
            self.handles[which].close()
            self.waiting = [each for each in self.waiting if not stored(each[0])]
        self.handles[which] = self.opened()

    # --- what has to hold

    @rule(which=handles, shard=shards, words=writes, back=st.integers(0, 2), at=st.integers(0, 3))
    def read(self, which: int, shard: str, words: Words, back: int, at: int) -> None:
        """What was committed just before or earlier, while others apply it at some moment."""
        if self.models[shard].is_registered:
            data = {shard: words}
            txn = self.written(self.judge, data)
            assert txn is not None
            self.try_commit(which, txn, data, 0, None)
        as_of = max(0, self.upper - 1 - back)
        self.attempt(which, (at, "others apply"), lambda txns: self.check_read(txns, shard, as_of))

    def check_read(self, txns: TxnsHandle, shard: str, as_of: int) -> None:
        model = self.models[shard]
        if not model.registered:
            return
        if not (as_of < self.upper and model.was_registered(as_of)) and as_of >= model.upper:
            return  # not known yet, and waited for
        try:
            found = txns.snapshot(shard, as_of, timeout=60).read_all().to_pylist()
        except AsOfTooOld:
            since = self.pairs[shard][1].since
            assert since is not None
            assert as_of < since
            return
        assert {row["word"]: row["__diff"] for row in found} == model.at(as_of)
        assert len(found) == len({row["word"] for row in found})

    @invariant()
    def reads_agree(self) -> None:
        if not self.pairs:
            return
        assert self.settle() == self.upper
        for shard, model in self.models.items():
            for as_of in {self.upper - 1, self.upper - 4, self.since}:
                if as_of >= 0:
                    self.check_read(self.judge, shard, as_of)
            for time in {self.upper - 1, (self.upper + self.since) // 2, self.since}:
                if self.since <= time < self.upper:
                    known = max((c for c in model.commits if c <= time), default=None)
                    assert self.judge.latest_write(shard, time) == known, (shard, time)
            owner = self.judge._store.data(shard).look(within(60)).meta.owner
            assert (owner == TXNS) == model.is_registered
        for time in {self.upper - 1, self.since}:
            there = tuple(s for s, model in self.models.items() if model.was_registered(time))
            assert self.judge.registered(time) == there

    @invariant()
    def states_are_sound(self) -> None:
        if self.pairs:
            for machine in self.judge._store.machines():
                machine.look(within(60))
                assert machine.ask(broken) == []

    def teardown(self) -> None:
        if not self.pairs:
            return
        # Nothing lost, nothing doubled: all of it, through the shards themselves.
        self.judge.apply_le(self.upper)
        self.judge.tidy()
        for shard, model in self.models.items():
            self.check_read(self.judge, shard, self.upper - 1)
            _, read = self.pairs[shard]
            upper = read.fetch_upper()
            if upper and read.since is not None and read.since < upper:
                rows = read.read(upper - 1, timeout=60).read_all().to_pylist()
                assert {row["word"]: row["__diff"] for row in rows} == model.at(upper - 1)
                assert upper > max((time for time, _ in model.updates), default=0)
        for each in [*self.handles, self.judge]:
            each.close()
        for write, read in self.pairs.values():
            write.close()
            read.close()


def guarded(act: Any, kind: type[StrandlineError] = LocationError) -> Any:
    """What it returns, or the error of that kind that it raises."""
    try:
        return act()
    except kind as error:
        return error


def committed(txn: Txn, txns: TxnsHandle, time: int) -> Any:
    return guarded(lambda: txn.commit_at(txns, time))


def stored(txn: Txn) -> bool:
    """Whether it has parts, which are those of a session."""
    return any(write.batch.parts for write in txn._rows.writes)


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=30, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)


class ForLong(Transactions):
    """The same, for the slow tests."""


TestTransactionsForLong = pytest.mark.slow(ForLong.TestCase)
TestTransactionsForLong.settings = settings(
    max_examples=1_500, stateful_step_count=60, suppress_health_check=list(HealthCheck)
)
