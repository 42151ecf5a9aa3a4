"""A machine follows one history, decides on the newest state, and notices when the log is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strandline.env import RealEnv
from strandline.errors import (
    Corruption,
    DeadlineExceeded,
    Fenced,
    LocationError,
    UnknownTable,
    UsageError,
)
from strandline.ids import SessionId
from strandline.location import Location, Record
from strandline.location.failures import Refused
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.settings import Settings
from strandline.shard.machine import Machine
from strandline.state.codec import decode_record, encode_record, record_hash
from strandline.state.commands import AdvanceUpper, Command, Expire, Heartbeat, R, Tidy
from strandline.state.decide import Author, Decision, decide
from strandline.state.invariants import broken
from strandline.state.replay import State
from strandline.testing.processes import side_by_side
from tests.support.deadlines import within
from tests.support.shards import SHARD, TABLE, Place, StillEnv, create, everything, texts, write


@pytest.fixture(name="place")
def _place() -> Place:
    return Place()


# --- writing and following


def test_what_one_submits_another_reads(place: Place) -> None:
    one, two = place.machine(), place.machine()
    create(one)
    write(one, b"a")
    assert texts(two.look().state) == [b"a"]
    write(two, b"b")
    write(one, b"c")
    assert texts(one.state) == [b"a", b"b", b"c"]
    assert texts(two.look().state) == [b"a", b"b", b"c"]
    assert everything(one) == everything(two)
    assert broken(one.state) == []


def test_the_log_is_a_chain(place: Place) -> None:
    one, two = place.machine(), place.machine()
    create(one)
    for machine in (one, two, one, two):
        write(machine)
    hashes = [bytes(32), *[record_hash(record.data) for record in place.log]]
    records = [decode_record(record.data, "x") for record in place.log]
    assert [r.predecessor for r in records] == hashes[:-1]
    assert [r.seqno for r in records] == [1, 2, 3, 4, 5]
    assert [(r.session, r.count) for r in records] == [
        (one.session, 1),
        (one.session, 2),
        (two.session, 1),
        (one.session, 3),
        (two.session, 2),
    ]
    assert one.look().state.hash == two.state.hash == hashes[-1]


def test_a_refresh_is_one_request_and_a_warm_submit_none_but_its_own(place: Place) -> None:
    machine = place.machine()
    create(machine)
    place.consensus.scans = 0
    machine.look()
    assert place.consensus.scans == 1
    for _ in range(5):
        write(machine)
    assert place.consensus.scans == 1
    assert len(place.consensus.puts) == 6
    assert place.blob.gets == []


def test_a_result_without_a_record_stands_only_on_a_current_state(place: Place) -> None:
    one, two = place.machine(), place.machine()
    create(one)
    two.look()
    time = write(one).time
    # What two knows has no such entry; the log has.
    assert two.submit(Tidy(((TABLE, time, 0),))) == 1
    assert two.submit(Tidy(((TABLE, time, 0),))) == 0
    one.submit(AdvanceUpper(100))
    # What two knows says that upper has to move; the log says it need not.
    before = len(place.log)
    assert two.submit(AdvanceUpper(50)) == 100
    assert len(place.log) == before


def test_a_refusal_comes_after_a_look_at_the_log(place: Place) -> None:
    machine = place.machine()
    machine.submit(AdvanceUpper(1))
    place.consensus.scans = 0
    with pytest.raises(UnknownTable):
        write(machine)
    assert place.consensus.scans == 1
    assert len(place.log) == 1


def test_a_table_made_by_another_a_moment_ago_is_known(place: Place) -> None:
    one, two = place.machine(), place.machine()
    two.look()
    create(one)
    assert write(two).time >= 0


def test_losers_decide_again_and_sleep_only_after_some_losses(place: Place) -> None:
    machine, rival = place.machine(), place.machine()
    create(machine)
    rival.look()
    losses = [0]

    def contested(state: State, command: Command[R], author: Author) -> Decision[R]:
        if losses[0] < 6:
            losses[0] += 1
            write(rival, b"rival")
        return decide(state, command, author)

    slow = place.machine(decide=contested)
    place.env.slept.clear()
    write(slow, b"mine")
    assert texts(slow.state) == [b"rival"] * 6 + [b"mine"]
    assert len(place.env.slept) == 3
    assert all(0 < seconds <= 0.05 for seconds in place.env.slept)


def test_losing_for_ever_ends_at_the_deadline_with_nothing_written(place: Place) -> None:
    rival = place.machine()
    create(rival)

    def contested(state: State, command: Command[R], author: Author) -> Decision[R]:
        write(rival, b"rival")
        return decide(state, command, author)

    loser = place.machine(decide=contested)
    with pytest.raises(DeadlineExceeded) as caught:
        loser.submit(AdvanceUpper(10**9), within(0.2, place.env))
    assert caught.value.may_have_happened is False
    assert set(texts(rival.look().state)) == {b"rival"}


def test_many_threads_on_one_machine_each_write_once() -> None:
    store, env = MemoryStore(), RealEnv()
    location = Location(MemoryBlob(store, env), MemoryConsensus(store), "memory://", "memory://")
    settings = Settings(background=False, rollup_every_records=16)
    machines = [
        Machine(location, SHARD, session, env, settings)  # type: ignore[arg-type]
        for session in ("w000000000000000a", "w000000000000000b")
    ]
    create(machines[0])

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            machine = machines[number % 2]
            for n in range(25):
                write(machine, f"{number}-{n}".encode())
                machine.look()

        return run

    side_by_side([work(number) for number in range(6)])
    wanted = sorted(f"{number}-{n}".encode() for number in range(6) for n in range(25))
    for machine in machines:
        machine.look()
        assert sorted(machine.ask(texts)) == wanted
    assert everything(machines[0]) == everything(machines[1])
    fresh = Machine(location, SHARD, "w000000000000000c", env, settings)  # type: ignore[arg-type]
    fresh.look()
    assert everything(fresh) == everything(machines[0])
    assert broken(fresh.state) == []


def test_a_refresh_shows_all_that_was_committed_before_it_began(place: Place) -> None:
    writer, reader = place.machine(), place.machine()
    create(writer)
    for n in range(300):  # more than one scan brings
        write(writer, b"%d" % n)
        if n % 97 == 0:
            assert len(texts(reader.look().state)) == n + 1
    late = place.machine()
    assert len(late.ask(texts)) == 300


def test_records_come_decoded_newest_last(place: Place) -> None:
    machine = place.machine()
    create(machine)
    machine.submit(AdvanceUpper(77), note="by hand")
    records = machine.records()
    assert [(r.seqno, r.command, r.note) for r in records] == [
        (1, "Commit", ""),
        (2, "AdvanceUpper", "by hand"),
    ]
    assert [r.seqno for r in machine.records(2)] == [2]
    assert [r.seqno for r in machine.records(1, limit=1)] == [1]
    assert machine.records(3) == []


# --- sessions


def test_a_session_registers_with_its_first_record_and_ends_with_close(place: Place) -> None:
    one, two = place.machine(), place.machine()
    create(one)
    two.look()
    two.close()  # never wrote: nothing to end
    assert len(place.log) == 1
    assert one.state.sessions.get((one.session,)) is not None
    one.close()
    one.close()
    assert [r.command for r in place.machine().records()] == ["Commit", "CloseSession"]
    with pytest.raises(UsageError, match="closed"):
        write(one)


def test_an_owner_of_nothing_whose_session_expired_goes_on_under_another(place: Place) -> None:
    machine, other = place.machine(), place.machine()
    create(machine)
    ended = machine.session
    assert other.submit(Expire(ended, 1)) is True
    write(machine, b"a")
    write(machine, b"b")
    assert machine.session != ended
    assert texts(machine.state) == [b"a", b"b"]
    machine.close()
    assert [(r.command, r.session) for r in machine.records()] == [
        ("Commit", ended),
        ("Expire", other.session),
        ("Commit", machine.session),
        ("Acknowledge", machine.session),
        ("Commit", machine.session),
        ("CloseSession", machine.session),
    ]
    assert set(everything(machine)["sessions"]) == {(ended,), (other.session,)}


def test_a_session_that_expired_is_not_closed_by_its_owner(place: Place) -> None:
    machine, other = place.machine(), place.machine()
    create(machine)
    other.submit(Expire(machine.session, 1))
    machine.close()
    assert [r.command for r in other.records()] == ["Commit", "Expire"]


def test_a_session_that_came_before_and_expired_is_followed_by_another_too(place: Place) -> None:
    create(place.machine())
    again, other = place.machine(), place.machine()
    write(again)
    later = place.machine()  # goes on under the same session
    later.adopt(again.session)
    assert later.submit(Tidy(())) == 0
    assert other.submit(Expire(again.session, 1)) is True
    write(later, b"later")
    assert later.session != again.session
    assert texts(later.state) == [b"rows", b"later"]


def copied(place: Place, machine: Machine) -> Machine:
    """The machine of a copy of its process, made at this moment."""
    copy = place.machine()
    copy.look()
    copy.own.id = machine.session
    if machine.state.sessions.get((machine.session,)) is not None:
        copy.adopt(machine.session)
    return copy


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("which", [0, 1])
def test_of_two_copies_of_a_process_the_first_that_writes_goes_on(
    place: Place, which: int, *, first: bool, looks: bool
) -> None:
    create(place.machine())
    machine = place.machine()
    machine.look()
    if not first:
        write(machine, b"before")
    one, other = (machine, copied(place, machine))[:: -1 if which else 1]
    write(one, b"a")
    if looks:
        other.look()
    for command in (AdvanceUpper(10**9), Heartbeat(), AdvanceUpper(10**9)):
        with pytest.raises(Fenced, match="another process"):
            other.submit(command)
    with pytest.raises(Fenced, match="another process"):
        other.live_session()
    other.close()
    write(one, b"b")
    assert texts(other.look().state) == ([] if first else [b"before"]) + [b"a", b"b"]
    assert [r.command for r in one.records()] == ["Commit"] * len(place.log)
    one.close()
    assert one.records()[-1].command == "CloseSession"


@pytest.mark.parametrize("looks", [True, False])
def test_a_copy_that_never_wrote_may_be_closed_and_the_other_goes_on(
    place: Place, *, looks: bool
) -> None:
    machine = place.machine()
    create(machine)
    shared = machine.session
    copied(place, machine).close()
    if looks:
        machine.look()
    write(machine, b"a")
    assert machine.session != shared
    assert texts(machine.state) == [b"a"]


def test_a_copy_still_learns_what_became_of_a_token(place: Place) -> None:
    machine = place.machine()
    create(machine)
    copy = copied(place, machine)
    done = write(machine, b"a", token=("scope", 1))
    copy.look()
    assert write(copy, b"a", token=("scope", 1)) == replace(done, repeated=True)
    with pytest.raises(Fenced, match="another process"):
        write(copy, b"a", token=("scope", 2))


def test_an_unsettled_record_that_landed_after_all_is_not_taken_for_a_copys(place: Place) -> None:
    machine = place.machine()
    create(machine)
    place.consensus.plan = ["late", *["lost"] * 1_000]
    with pytest.raises(DeadlineExceeded):
        machine.submit(AdvanceUpper(50), within(0.5, place.env))
    assert place.consensus.land()
    place.consensus.plan = ["lost"] * 2
    place.machine().submit(AdvanceUpper(60))  # others have written since
    machine.look()
    write(machine, b"a")
    assert [r.session for r in machine.records()].count(machine.session) == 3


def test_a_fork_of_the_process_is_refused(place: Place) -> None:
    machine = place.machine()
    create(machine)
    place.env.process = 2
    for use in (machine.look, lambda: write(machine), machine.records):
        with pytest.raises(UsageError, match="fork"):
            use()
    machine.close()
    assert len(place.log) == 1


def test_a_location_opened_for_reading_only_reads(place: Place) -> None:
    create(place.machine())
    location = Location(place.blob, place.consensus, "memory://", "memory://", read_only=True)
    reader = Machine(location, SHARD, place.machine().session, place.env, place.settings)
    assert reader.look().seqno == 1
    with pytest.raises(UsageError, match="reading only"):
        write(reader)
    assert not reader.maybe_rollup()
    reader.close()


# --- a log that is not what it was


def _tamper(place: Place, seqno: int, data: bytes) -> None:
    log = place.store.logs[SHARD]
    log[seqno - 1] = Record(seqno, data)


@pytest.fixture(name="written")
def _written(place: Place) -> Place:
    machine = place.machine()
    create(machine)
    for n in range(4):
        write(machine, b"%d" % n)
    return place


def _refused(place: Place, behind: Machine, match: str) -> None:
    for machine in (place.machine(), behind):
        with pytest.raises(Corruption, match=match) as caught:
            machine.look()
        assert caught.value.object.startswith("record ")


def _reader_at(place: Place, seqno: int) -> Machine:
    log = place.store.logs[SHARD]
    later = log[seqno:]
    del log[seqno:]
    machine = place.machine()
    machine.look()
    log += later
    return machine


def test_a_missing_record_is_noticed(written: Place) -> None:
    behind = _reader_at(written, 2)
    del written.store.logs[SHARD][3]
    _refused(written, behind, "record 4 of shard .* is missing")


def test_a_record_in_another_ones_place_is_noticed(written: Place) -> None:
    behind = _reader_at(written, 2)
    _tamper(written, 3, written.log[3].data)
    _refused(written, behind, "record 3 .* wrong seqno: it was written as record 4")


def test_a_record_of_another_shard_is_noticed(written: Place) -> None:
    behind = _reader_at(written, 2)
    record = decode_record(written.log[2].data, "x")
    _tamper(written, 3, encode_record(replace(record, shard="sffffffffffffffff")))
    _refused(written, behind, "belongs to shard sffffffffffffffff")


def test_a_fork_shows_both_hashes(written: Place) -> None:
    behind = _reader_at(written, 2)
    record = decode_record(written.log[2].data, "x")
    _tamper(written, 3, encode_record(replace(record, note="forged")))
    was, now = record_hash(encode_record(record)), record_hash(written.log[2].data)
    _refused(written, behind, f"record 4 .*{was.hex()}.* record 3 has hash {now.hex()}")


def test_a_record_that_is_counted_wrong_is_noticed(written: Place) -> None:
    behind = _reader_at(written, 4)
    record = decode_record(written.log[4].data, "x")
    _tamper(written, 5, encode_record(replace(record, count=9)))
    _refused(written, behind, "record 5 .* is number 9 .* had written 4")


@pytest.mark.parametrize("data", [b"", b"SLrc", b"x" * 200])
def test_a_record_that_cannot_be_decoded_is_named(written: Place, data: bytes) -> None:
    behind = _reader_at(written, 2)
    _tamper(written, 3, data)
    _refused(written, behind, "record 3 of shard")


def test_a_log_restored_from_a_backup_is_noticed_by_a_writer(written: Place) -> None:
    machine = written.machine()
    machine.look()
    del written.store.logs[SHARD][2:]
    with pytest.raises(Corruption, match=r"record 5 .* is missing.*ends with record 2.*backup"):
        write(machine)
    assert len(written.log) == 2


def test_a_gap_that_a_second_look_fills_is_none(written: Place) -> None:
    behind = _reader_at(written, 1)
    log = written.store.logs[SHARD]
    hidden = log.pop(2)
    written.consensus.before_scan = [lambda: None, lambda: log.insert(2, hidden)]
    assert behind.look().seqno == 5


# --- a location that fails


def test_reads_are_tried_again_until_the_deadline(place: Place) -> None:
    machine = place.machine()
    create(machine)
    place.consensus.failing_scans = 3
    assert machine.look().seqno == 1
    assert place.consensus.failing_scans == 0
    place.consensus.failing_scans = 10**9
    with pytest.raises(DeadlineExceeded) as caught:
        machine.look(within(5, place.env))
    assert isinstance(caught.value.__cause__, LocationError)
    assert place.env.seconds < 7


def test_a_put_that_certainly_did_not_happen_is_made_again(place: Place) -> None:
    machine = place.machine()
    create(machine)
    place.consensus.plan = ["refused", "refused"]
    write(machine, b"a")
    assert texts(machine.state) == [b"a"]


def test_what_the_storage_refuses_for_good_is_raised_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = place.machine()
    create(machine)

    def full(*_: Any, **__: Any) -> bool:
        raise Refused("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(place.consensus, "compare_and_set", full)
        with pytest.raises(Refused):
            write(machine)
        assert place.env.slept == []
    write(machine, b"b")
    assert texts(machine.state) == [b"b"]


def test_waiting_for_ones_turn_ends_at_the_deadline(place: Place) -> None:
    waited: list[DeadlineExceeded] = []

    def nested(state: State, command: Command[R], author: Author) -> Decision[R]:
        # While a command is under way, as another thread would find it.
        if not waited:
            with pytest.raises(DeadlineExceeded) as caught:
                machine.submit(AdvanceUpper(5), within(0.0, place.env))
            waited.append(caught.value)
        return decide(state, command, author)

    machine = place.machine(decide=nested)
    machine.submit(AdvanceUpper(3))
    assert [error.may_have_happened for error in waited] == [False]


def test_the_state_is_known_without_asking(place: Place) -> None:
    machine = place.machine()
    assert machine.state.seqno == 0
    create(machine)
    assert machine.state.seqno == 1
    assert isinstance(place.env, StillEnv)
    assert place.env.slept == []


def test_a_session_that_is_handed_over_goes_on_in_another_process(place: Place) -> None:
    planner, committer = place.machine(), place.machine()
    create(planner)
    handed = planner.hand_over()
    assert planner.session != handed
    planner.close()
    state = committer.look()
    session = state.state.sessions.get((handed,))
    assert session is not None, "its old owner does not end it"
    committer.adopt(handed)
    write(committer, b"after")
    after = committer.state.sessions.get((handed,))
    assert after == replace(session, count=session.count + 1)
    with pytest.raises(UsageError, match="at work"):
        committer.adopt(SessionId("w00000000000000aa"))


def test_who_adopts_a_session_counts_on_from_its_newest_record(place: Place) -> None:
    planner, committer = place.machine(), place.machine()
    create(planner)
    committer.look()  # and then no more
    write(planner, b"a")
    handed = planner.hand_over()
    write(planner, b"b")
    committer.adopt(handed)
    write(committer, b"c")
    assert [record.session for record in committer.records()].count(handed) == 4
    again = place.machine()  # the commit is tried again in another process
    again.adopt(handed)
    write(again, b"d")
    assert texts(again.state) == [b"a", b"b", b"c", b"d"]
