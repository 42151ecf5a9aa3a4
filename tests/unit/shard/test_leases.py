"""Who is silent is ended and who lives is not, whatever the clocks of others say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import DeadlineExceeded, Fenced, LocationError
from strandline.ids import ObjectKey, PartId
from strandline.settings import Settings
from strandline.shard.leases import Lookout, Pulse, credit
from strandline.shard.machine import Machine
from strandline.shard.notebook import Notebook, Observation
from strandline.state.commands import (
    Apply,
    Claim,
    Commit,
    Expire,
    Heartbeat,
    KeepReceipts,
    MoveHold,
    OpenHold,
    Write,
)
from strandline.state.model import Batch, Hold, Part, Receipt
from tests.support.deadlines import within
from tests.support.shards import SHARD, TABLE, Place, StillEnv, create, everything, texts, write

LEASE = 1000.0
QUARTER = LEASE / 4


# --- the credit


def looks(*times: float, counts: list[int] | None = None) -> list[int]:
    """At which looks at these times, answered at once, a session of these counts is silent."""
    seen: dict[str, Observation] = {}
    silent = []
    for number, (time, count) in enumerate(zip(times, counts or [1] * len(times), strict=True)):
        seen, found = credit(seen, {"w": count}, time, time, LEASE)
        silent += [number] if found else []
    return silent


def test_who_is_silent_for_the_lease_time_is_silent_at_the_fifth_look() -> None:
    assert looks(0, 250, 500, 750, 1000) == [4]
    assert looks(0, 250, 500, 750, 999) == []
    assert looks(*range(0, 1100, 100)) == [10]


def test_an_outage_counts_a_quarter_of_the_lease_however_long_it_was() -> None:
    assert looks(0, 1e9) == []
    assert looks(0, 200, 1e6, 1e6 + 200, 1e6 + 400) == []
    assert looks(0, 1e6, 2e6, 3e6, 4e6) == [4]


def test_a_count_that_moved_begins_anew() -> None:
    times = [0.0, 250, 500, 750, 1000, 1250, 1500, 1750]
    assert looks(*times, counts=[1, 1, 1, 2, 2, 2, 2, 2]) == [7]


def test_waiting_for_an_answer_counts_for_nobody() -> None:
    seen: dict[str, Observation] = {}
    for asked, answered in [(0, 240), (250, 490), (500, 740), (750, 990), (1000, 1240)]:
        seen, silent = credit(seen, {"w": 1}, asked, answered, LEASE)
    assert seen["w"] == Observation(1, 40.0, 1240)
    assert not silent


def test_who_is_gone_is_forgotten() -> None:
    seen, _ = credit({}, {"a": 1, "b": 1}, 0, 0, LEASE)
    seen, _ = credit(seen, {"b": 1}, 100, 100, LEASE)
    assert seen == {"b": Observation(1, 100.0, 100)}


@given(st.lists(st.tuples(st.floats(0, 3 * LEASE), st.booleans()), max_size=30))
def test_nobody_is_silent_who_wrote_in_the_lease_time_or_was_looked_at_less_than_five_times(
    steps: list[tuple[float, bool]],
) -> None:
    seen: dict[str, Observation] = {}
    now, count, wrote, looked = 0.0, 1, 0.0, 0
    for pause, writes in steps:
        now += pause
        if writes:
            count, wrote, looked = count + 1, now, 0
        seen, silent = credit(seen, {"w": count}, now, now, LEASE)
        looked += 1
        if silent:
            assert now - wrote >= LEASE * 0.999_999
            assert looked >= 5


# --- what is kept between processes


@dataclass
class Kept(StillEnv):
    """An environment with a cache directory."""

    folder: Path = field(default_factory=Path)
    boot: str = "boot"

    def __post_init__(self) -> None:
        super().__init__()

    def boot_id(self) -> str:
        return self.boot

    def cache_dir(self) -> Path | None:
        return self.folder


SEEN = {"w1": Observation(3, 12.5, 100.0), "w2": Observation(1, 0.0, 90.0)}


@pytest.fixture(name="env")
def _env(tmp_path: Path) -> Kept:
    env = Kept(folder=tmp_path / "cache")
    env.seconds = 200.0
    return env


def notebook(env: Kept, location: str = "/data", lease: float = LEASE) -> Notebook:
    return Notebook(env, location, lease)


def test_what_one_process_saw_the_next_one_knows(env: Kept) -> None:
    assert notebook(env).read(SHARD) == {}
    notebook(env).write(SHARD, SEEN)
    assert notebook(env).read(SHARD) == SEEN
    assert [path.suffix for path in (env.folder / "lookout").iterdir()] == [".json"]
    notebook(env).write(SHARD, {})
    assert notebook(env).read(SHARD) == {}
    assert list((env.folder / "lookout").iterdir()) == []


def _rebooted(env: Kept) -> Notebook:
    env.boot = "another"
    return notebook(env)


def _set_back(env: Kept) -> Notebook:
    env.seconds = 95.0
    return notebook(env)


@pytest.mark.parametrize(
    "another",
    [
        _rebooted,
        _set_back,
        lambda env: notebook(env, lease=10.0),
        lambda env: notebook(env, "/elsewhere"),
    ],
)
def test_what_was_seen_under_other_conditions_is_no_observation(
    env: Kept, another: Callable[[Kept], Notebook]
) -> None:
    notebook(env).write(SHARD, SEEN)
    assert another(env).read(SHARD) == {}


def test_a_file_in_the_place_of_another_is_no_observation(env: Kept) -> None:
    notebook(env).write(SHARD, SEEN)
    (path,) = (env.folder / "lookout").iterdir()
    mine = path.read_bytes()
    notebook(env, "/elsewhere").write(SHARD, SEEN)
    for other in (env.folder / "lookout").iterdir():
        other.write_bytes(mine)
    assert notebook(env, "/elsewhere").read(SHARD) == {}
    assert notebook(env).read(SHARD) == SEEN


def test_a_damaged_file_is_no_observation(env: Kept) -> None:
    notebook(env).write(SHARD, SEEN)
    (path,) = (env.folder / "lookout").iterdir()
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place])
        assert notebook(env).read(SHARD) == {}
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert notebook(env).read(SHARD) == {}
    path.write_bytes(whole)
    assert notebook(env).read(SHARD) == SEEN


def test_where_nothing_can_be_kept_nothing_is(env: Kept) -> None:
    env.folder.parent.mkdir(exist_ok=True)
    env.folder.write_text("a file")
    notebook(env).write(SHARD, SEEN)
    assert notebook(env).read(SHARD) == {}
    env.folder.unlink()
    for book in (notebook(env, "memory://x"), _unnamed_boot(env)):
        book.write(SHARD, SEEN)
        assert not env.folder.exists()
        assert book.read(SHARD) == {}


def _unnamed_boot(env: Kept) -> Notebook:
    env.boot = ""
    return notebook(env)


# --- looking


@pytest.fixture(name="place")
def _place(env: Kept) -> Place:
    settings = Settings(background=False, lease_seconds=LEASE, rollup_every_records=8)
    place = Place(settings, env=env)
    create(place.machine())
    return place


def lookout(place: Place) -> Lookout:
    """As a process has it that was just started."""
    assert isinstance(place.env, Kept)
    return Lookout(place.env, place.settings, notebook(place.env))


def looked(place: Place, look: Lookout, machine: Machine, times: int = 5) -> list[str]:
    """Who was ended in so many looks, a quarter of the lease apart."""
    ended = []
    for _ in range(times):
        ended += look.look(machine, within(9, place.env))
        place.env.seconds += QUARTER
    return ended


def expire(place: Place, machine: Machine) -> None:
    """Ends the machine's session as a lookout would."""
    session = everything(machine)["sessions"][machine.session,]
    other = place.machine()
    other.look()
    assert other.submit(Expire(machine.session, session.count)) is True


def test_looks_end_who_is_silent_and_nobody_else(place: Place) -> None:
    watcher, silent, busy = place.machine(), place.machine(), place.machine()
    write(silent)
    write(busy)
    look = lookout(place)
    ended = []
    for _ in range(5):
        ended += look.look(watcher, within(9, place.env))
        place.env.seconds += QUARTER
        write(busy)
    creator = watcher.records()[0].session
    assert sorted(ended) == sorted([creator, silent.session])
    sessions = everything(watcher)["sessions"]
    assert sessions[silent.session,].expired is not None
    assert sessions[busy.session,].expired is None
    assert look.look(watcher, within(9, place.env)) == []


def test_a_look_that_is_not_answered_credits_nothing(place: Place) -> None:
    machine, look = place.machine(), lookout(place)
    assert looked(place, look, machine, 2) == []
    for _ in range(20):
        place.consensus.failing_scans = 100
        with pytest.raises(LocationError):
            look.look(machine, within(0.5, place.env))
        place.env.seconds += QUARTER
    place.consensus.failing_scans = 0
    assert looked(place, look, machine, 2) == []
    assert len(looked(place, look, machine, 1)) == 1


def test_two_cron_runs_end_nobody_and_five_do(place: Place) -> None:
    ended: list[str] = []
    for run in range(5):
        assert ended == [], run
        ended = lookout(place).look(place.machine(), within(9, place.env))
        place.env.seconds += 10 * LEASE
    assert len(ended) == 1


def test_cron_runs_with_a_boot_between_them_begin_anew(place: Place) -> None:
    assert isinstance(place.env, Kept)
    for _ in range(4):
        assert lookout(place).look(place.machine(), within(9, place.env)) == []
        place.env.seconds += LEASE
    place.env.boot = "after"
    for _ in range(4):
        assert lookout(place).look(place.machine(), within(9, place.env)) == []
        place.env.seconds += LEASE
    assert len(lookout(place).look(place.machine(), within(9, place.env))) == 1


def test_who_writes_between_look_and_expiry_lives(place: Place) -> None:
    silent, watcher = place.machine(), place.machine()
    write(silent)
    look = lookout(place)
    looked(place, look, watcher, 4)
    first = watcher.records()[0].session
    consensus = place.consensus
    inner = consensus.compare_and_set

    def too_late(shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        consensus.compare_and_set = inner  # type: ignore[method-assign]
        write(silent, b"alive")
        return inner(shard, expected, data, timeout=timeout)

    # While the first of the two that were silent is being ended, the other writes.
    consensus.compare_and_set = too_late  # type: ignore[method-assign]
    assert look.look(watcher, within(9, place.env)) == [first]
    assert everything(watcher)["sessions"][silent.session,].expired is None


# --- living


class Ticker:
    """A worker that runs when a test says so."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.wakes: list[float] = []
        self.stopped = False

    def wake(self, *, after: float = 0.0) -> None:
        self.wakes.append(after)

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(name="tickers")
def _tickers(monkeypatch: pytest.MonkeyPatch) -> list[Ticker]:
    tickers: list[Ticker] = []

    def start(_: StillEnv, __: str, function: Callable[[], None]) -> Ticker:
        tickers.append(Ticker(function))
        return tickers[-1]

    monkeypatch.setattr(StillEnv, "start_worker", start)
    return tickers


def pulse(place: Place) -> Pulse:
    return Pulse(place.env, Settings(lease_seconds=LEASE))


def test_who_holds_something_is_not_ended(place: Place, tickers: list[Ticker]) -> None:
    holder, watcher = place.machine(), place.machine()
    write(holder)
    look, beats = lookout(place), pulse(place)
    release = beats.hold(holder)
    (ticker,) = tickers
    for _ in range(100):
        assert ticker.wakes == [LEASE / 8]
        place.env.seconds += ticker.wakes.pop()
        ticker.function()
        assert holder.session not in look.look(watcher, within(9, place.env))
    release()
    release()
    place.env.seconds += ticker.wakes.pop()
    ticker.function()
    assert ticker.wakes == []
    assert holder.session in looked(place, look, watcher, 6)


def test_who_holds_nothing_costs_no_request(place: Place, tickers: list[Ticker]) -> None:
    machine, beats = place.machine(), pulse(place)
    write(machine)
    assert tickers == []
    with beats.holding(machine):
        pass
    (ticker,) = tickers
    requests = place.consensus.scans, len(place.consensus.puts)
    place.env.seconds += LEASE
    ticker.wakes.clear()
    ticker.function()
    assert ticker.wakes == []
    assert (place.consensus.scans, len(place.consensus.puts)) == requests
    with beats.holding(machine):
        assert ticker.wakes == [LEASE / 8]


def test_who_writes_anyway_writes_no_heartbeats(place: Place, tickers: list[Ticker]) -> None:
    machine, beats = place.machine(), pulse(place)
    with beats.holding(machine):
        for _ in range(20):
            write(machine)
            place.env.seconds += LEASE / 16
            tickers[0].function()
    assert not any(record.command == "Heartbeat" for record in machine.records())


def test_what_is_held_for_a_time_is_held_no_longer(place: Place, tickers: list[Ticker]) -> None:
    machine, beats = place.machine(), pulse(place)
    beats.hold(machine, seconds=LEASE)
    for _ in range(16):
        place.env.seconds += LEASE / 8
        tickers[0].function()
    beating = [r.command for r in machine.records()].count("Heartbeat")
    assert 4 <= beating <= 8
    place.env.seconds += LEASE
    tickers[0].function()
    assert [r.command for r in machine.records()].count("Heartbeat") == beating


def test_a_heartbeat_that_fails_is_tried_again(place: Place, tickers: list[Ticker]) -> None:
    machine, beats = place.machine(), pulse(place)
    write(machine)
    with beats.holding(machine):
        place.env.seconds += LEASE / 8
        place.consensus.plan = ["refused"] * 10_000
        tickers[0].function()
        place.consensus.plan = []
        assert tickers[0].wakes[-1] == LEASE / 8
        tickers[0].function()
    assert machine.records()[-1].command == "Heartbeat"
    beats.close()
    assert tickers[0].stopped


# --- what ends with a session


def part(session: str, number: int = 1) -> Part:
    key = ObjectKey(session, SHARD, "part", PartId(f"p{number:016x}"))  # type: ignore[arg-type]
    return Part(str(key), 10, 1, b"a", b"b")


def staged(machine: Machine) -> Commit:
    parts = (part(machine.session),)
    return Commit(0, (Write(TABLE, Batch(parts, rows=1, lower=b"a", upper=b"b")),))


def test_a_stalled_owner_of_staged_parts_is_fenced_and_told_what_to_do(place: Place) -> None:
    machine = place.machine()
    write(machine)
    command = staged(machine)
    expire(place, machine)
    for _ in range(2):
        with pytest.raises(Fenced, match="write the data again"):
            machine.submit(command)
    machine.submit(staged(machine))
    (entry,) = machine.ask(lambda s: [e for _, e in s.entries.range() if e.batch.parts])
    assert entry.session == machine.session


def test_objects_of_an_ended_session_are_not_applied_either(place: Place) -> None:
    machine = place.machine()
    write(machine)
    upper = machine.state.meta.upper
    assert upper is not None
    command = Apply(upper, upper + 1, ((upper, part(machine.session)),))
    expire(place, machine)
    for _ in range(2):
        with pytest.raises(Fenced, match="write them again"):
            machine.submit(command)
    assert machine.state.meta.upper == upper
    again = Apply(upper, upper + 1, ((upper, part(machine.session, 2)),))
    assert machine.submit(again).upper == upper + 1


def test_a_receipt_of_an_ended_session_is_not_entered(place: Place) -> None:
    machine = place.machine()
    write(machine)

    def receipt() -> KeepReceipts:
        key = ObjectKey(machine.session, SHARD, "receipt", PartId("c" + "0" * 16))
        return KeepReceipts(added=((1, Receipt(2, str(key), 9)),))

    command = receipt()
    expire(place, machine)
    for _ in range(2):
        with pytest.raises(Fenced, match="write them again"):
            machine.submit(command)
    assert machine.submit(receipt()) == 1


def test_a_token_that_was_committed_is_told_though_the_session_of_its_parts_ended(
    place: Place,
) -> None:
    machine = place.machine()
    command = Commit(0, staged(machine).writes, token=("scope", 1))
    first = machine.submit(command)
    expire(place, machine)
    again = machine.submit(command)
    assert (again.time, again.repeated) == (first.time, True)


def test_leased_holds_and_the_claim_end_with_the_session(place: Place) -> None:
    machine, other = place.machine(), place.machine()
    machine.submit(OpenHold("h", Hold(None, kind="reader"), leased=True))
    machine.submit(OpenHold("kept", Hold(None, kind="tag"), leased=False))
    assert machine.submit(Claim()) is True
    assert other.submit(Claim()) is False
    look = lookout(place)
    assert machine.session in looked(place, look, other)
    assert set(everything(other)["holds"]) == {("kept",)}
    assert other.submit(Claim()) is True
    with pytest.raises(Fenced, match="open a new one"):
        machine.submit(MoveHold("h", 1, None))
    assert machine.submit(Claim()) is False
    assert machine.submit(Claim(release=True)) is False
    assert other.look().meta.claim == other.session


def test_an_ended_id_never_comes_back(place: Place) -> None:
    machine, twin = place.machine(), place.machine()
    write(machine)
    ended = twin.own.id = machine.session
    expire(place, machine)
    for each in (machine, twin):
        write(each)
        each.submit(Heartbeat())
        assert each.session != ended
    newer = [record.session for record in machine.records() if record.seqno > 3]
    assert ended not in newer
    assert machine.session != twin.session
    assert everything(machine)["sessions"][ended,].count == 1


def test_a_heartbeat_of_an_ended_session_registers_no_other(place: Place) -> None:
    machine = place.machine()
    write(machine)
    expire(place, machine)
    seqno = machine.look().seqno
    assert machine.submit(Heartbeat()) is False
    assert machine.look().seqno == seqno
    assert machine.submit(Heartbeat()) is True


# --- before objects are written


def test_a_session_that_was_silent_shows_that_it_is_open_before_it_writes_objects(
    place: Place,
) -> None:
    machine = place.machine()
    assert machine.live_session() == machine.session  # nobody knows it: nobody can end it
    write(machine)
    before = machine.session
    assert machine.live_session() == before
    assert machine.records()[-1].command == "Commit"
    place.env.seconds += QUARTER
    assert machine.live_session(brief=True) == before
    assert machine.records()[-1].command == "Commit"
    assert machine.live_session() == before
    assert machine.records()[-1].command == "Heartbeat"
    place.env.seconds += QUARTER
    expire(place, machine)
    assert machine.live_session() != before
    machine.submit(staged(machine))


def test_an_end_that_is_known_is_heeded_however_briefly_the_session_is_wanted(
    place: Place,
) -> None:
    machine = place.machine()
    write(machine)
    before = machine.session
    expire(place, machine)
    assert machine.live_session(brief=True) == before
    machine.look()
    assert machine.live_session(brief=True) != before


def test_a_rollup_of_an_ended_session_is_not_named(place: Place) -> None:
    machine = place.machine(Settings(background=True, rollup_every_records=4))
    for _ in range(6):
        write(machine)
    assert machine.rollup_due
    expire(place, machine)
    assert machine.maybe_rollup() is True
    write(machine)
    state = machine.look()
    assert state.ask(lambda s: list(s.rollups.range())) == []
    # One that is under way when the session is followed by another comes too late.
    for _ in range(6):
        write(machine)
    expire(place, machine)
    place.blob.before_put = [lambda: write(machine)]
    assert machine.maybe_rollup() is False
    write(machine)
    assert machine.ask(lambda s: list(s.rollups.range())) == []
    # The next one is of the new session.
    for _ in range(20):
        write(machine)
    assert machine.maybe_rollup() is True
    write(machine)
    ((_, rollup),) = machine.ask(lambda s: list(s.rollups.range()))
    assert rollup.key.startswith(machine.session)


# --- outcomes that are not known


def pass_by(place: Place, rival: Machine, session: str, count: int) -> None:
    """Others end the session and write on; the log is truncated up to a rollup after that."""
    assert rival.submit(Expire(session, count)) is True
    for number in range(24):
        write(rival, b"rival %d" % number)
    rollup = rival.records(place.log[-1].seqno)[0].rollup
    assert rollup is not None
    place.consensus.truncate(SHARD, rollup.seqno, timeout=1)


@pytest.mark.parametrize("fate", ["done", "late"])
def test_a_commit_whose_session_expired_before_it_was_settled_is_settled_by_its_count(
    place: Place, fate: str
) -> None:
    machine, rival = place.machine(), place.machine()
    write(machine, b"before")
    rival.look()
    session = machine.session
    count = 2 if fate == "done" else 1
    place.consensus.plan = [fate]
    place.consensus.before_scan = [lambda: pass_by(place, rival, session, count)]
    write(machine, b"a")
    assert not any(place.consensus.land() for _ in range(len(place.consensus.late)))
    assert place.machine().ask(texts).count(b"a") == 1
    assert (machine.session == session) is (fate == "done")
    write(machine, b"b")
    assert machine.session != session
    assert everything(machine)["sessions"][session,].count == count


def test_a_writer_that_sleeps_past_its_expiry_and_a_truncation_is_refused_and_goes_on(
    place: Place,
) -> None:
    """CASES S16: its old compare-and-set is refused, whenever it comes."""
    machine, rival = place.machine(), place.machine()
    write(machine, b"before")
    rival.look()
    ended = machine.session
    consensus = place.consensus
    awake = consensus.compare_and_set
    old: list[tuple[str, int, bytes]] = []

    def asleep(shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        consensus.compare_and_set = awake  # type: ignore[method-assign]
        old.append((shard, expected, data))
        place.env.seconds += 10 * LEASE
        pass_by(place, rival, ended, 1)
        return awake(shard, expected, data, timeout=timeout)

    consensus.compare_and_set = asleep  # type: ignore[method-assign]
    with pytest.raises(DeadlineExceeded) as caught:
        write(machine, b"a")
    assert caught.value.may_have_happened is False  # its count says so
    write(machine, b"b")
    shard, expected, data = old[0]
    assert consensus.compare_and_set(shard, expected, data, timeout=1) is False
    assert machine.session != ended
    found = place.machine().ask(texts)
    assert (found.count(b"a"), found.count(b"b")) == (0, 1)
