"""The contract of a Consensus, as tests that any adapter can be held to.

Subclass `ConsensusContract` in a test module, and say how to open a handle::

    class TestMyConsensus(ConsensusContract):
        @pytest.fixture(autouse=True)
        def _place(self, tmp_path):
            self.opener = functools.partial(open_my_consensus, tmp_path)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.location.consensus import Claims, Consensus, Record
from strandline.testing.processes import in_processes, side_by_side

__all__ = ["ConsensusContract", "append_until"]

TIMEOUT = 30.0


class ConsensusContract:
    """Every test gets handles on one empty location from `opener`."""

    opener: Callable[[], Consensus]
    """Opens a further handle on the location of this test; picklable if `processes`."""

    processes = False
    """Whether other processes reach the location by calling `opener`."""

    @pytest.fixture(name="log")
    def _log(self) -> Iterator[Consensus]:
        log = self.opener()
        yield log
        log.close()

    @pytest.fixture(name="other")
    def _other(self) -> Iterator[Consensus]:
        other = self.opener()
        yield other
        other.close()

    def test_an_empty_log_has_no_head(self, log: Consensus) -> None:
        assert log.head("s", timeout=TIMEOUT) is None
        assert list(log.scan("s", 0, 10, timeout=TIMEOUT)) == []
        assert log.truncate("s", 10, timeout=TIMEOUT) == 0
        assert list(log.keys(timeout=TIMEOUT)) == []

    def test_what_was_set_is_there_for_every_handle(self, log: Consensus, other: Consensus) -> None:
        records = [Record(1, b""), Record(2, b"\x00\xff"), Record(3, b"x" * 100_000)]
        for n, record in enumerate(records):
            writer = (log, other)[n % 2]
            assert writer.compare_and_set("s", n, record.data, timeout=TIMEOUT) is True
            for handle in (log, other):
                assert handle.head("s", timeout=TIMEOUT) == record
                assert list(handle.scan("s", 1, 10, timeout=TIMEOUT)) == records[: n + 1]
        head = other.head("s", timeout=TIMEOUT)
        assert head is not None
        assert type(head.data) is bytes

    @pytest.mark.parametrize("expected", [-1, 0, 1, 2, 4, 5, 1_000])
    def test_only_the_newest_seqno_is_accepted(
        self, log: Consensus, other: Consensus, expected: int
    ) -> None:
        self._fill(log, "s", 3)
        assert other.compare_and_set("s", expected, b"late", timeout=TIMEOUT) is False
        assert [r.seqno for r in log.scan("s", 0, 10, timeout=TIMEOUT)] == [1, 2, 3]
        assert other.compare_and_set("s", 3, b"next", timeout=TIMEOUT) is True

    @pytest.mark.parametrize("expected", [-1, 1, 7])
    def test_a_log_begins_at_one(self, log: Consensus, expected: int) -> None:
        assert log.compare_and_set("s", expected, b"x", timeout=TIMEOUT) is False
        assert list(log.keys(timeout=TIMEOUT)) == []
        assert log.compare_and_set("s", 0, b"x", timeout=TIMEOUT) is True
        assert log.head("s", timeout=TIMEOUT) == Record(1, b"x")

    def test_racing_writers_make_one_line_without_gaps(
        self, log: Consensus, other: Consensus
    ) -> None:
        writers = 6
        wins = side_by_side(
            [
                functools.partial(append_until, (log, other)[n % 2], "s", n, 120)
                for n in range(writers)
            ]
        )
        self._is_one_line(log, wins)

    def test_racing_processes_make_one_line_without_gaps(self, log: Consensus) -> None:
        if not self.processes:
            pytest.skip("no other process reaches this location")
        wins = in_processes([functools.partial(_open_and_append, self.opener, n) for n in range(4)])
        self._is_one_line(log, wins)

    def test_a_record_once_seen_stays(self, log: Consensus, other: Consensus) -> None:
        """A reader's head never goes back while a writer appends through another handle."""

        def write() -> int:
            for n in range(200):
                assert log.compare_and_set("s", n, b"%d" % (n + 1), timeout=TIMEOUT)
            return 200

        def read() -> int:
            newest = 0
            while newest < 200:
                head = other.head("s", timeout=TIMEOUT)
                assert (head.seqno if head else 0) >= newest
                for record in other.scan("s", newest + 1, 7, timeout=TIMEOUT):
                    assert record == Record(newest + 1, b"%d" % (newest + 1))
                    newest = record.seqno
            return newest

        assert side_by_side([write, read]) == [200, 200]

    def test_a_scan_begins_and_ends_where_it_is_told(self, log: Consensus) -> None:
        self._fill(log, "s", 9)

        def scan(from_seqno: int, limit: int) -> list[int]:
            return [r.seqno for r in log.scan("s", from_seqno, limit, timeout=TIMEOUT)]

        assert scan(1, 100) == list(range(1, 10))
        assert scan(-5, 2) == [1, 2]
        assert scan(0, 3) == [1, 2, 3]
        assert scan(4, 3) == [4, 5, 6]
        assert scan(9, 3) == [9]
        assert scan(10, 3) == []
        assert scan(1, 0) == []
        assert scan(1, -1) == []

    def test_truncation_removes_from_the_beginning_only(
        self, log: Consensus, other: Consensus
    ) -> None:
        self._fill(log, "s", 9)
        assert log.truncate("s", 4, timeout=TIMEOUT) == 3
        assert log.truncate("s", 4, timeout=TIMEOUT) == 0
        assert log.truncate("s", 2, timeout=TIMEOUT) == 0
        # The caller asked for 1 and notices by the first seqno that it is gone.
        assert [r.seqno for r in other.scan("s", 1, 3, timeout=TIMEOUT)] == [4, 5, 6]
        assert [r.seqno for r in other.scan("s", 8, 3, timeout=TIMEOUT)] == [8, 9]

    def test_truncation_never_takes_the_newest(self, log: Consensus, other: Consensus) -> None:
        self._fill(log, "s", 5)
        assert log.truncate("s", 1_000, timeout=TIMEOUT) == 4
        assert other.head("s", timeout=TIMEOUT) == Record(5, b"5")
        assert log.truncate("s", 1_000, timeout=TIMEOUT) == 0
        assert [r.seqno for r in log.scan("s", 0, 10, timeout=TIMEOUT)] == [5]
        assert list(log.keys(timeout=TIMEOUT)) == ["s"]

    def test_truncation_does_not_unfence(self, log: Consensus, other: Consensus) -> None:
        """A writer that slept through a truncation fails at every seqno that was taken."""
        self._fill(log, "s", 5)
        log.truncate("s", 5, timeout=TIMEOUT)
        for expected in range(5):
            assert other.compare_and_set("s", expected, b"late", timeout=TIMEOUT) is False
        assert [r.seqno for r in other.scan("s", 0, 10, timeout=TIMEOUT)] == [5]
        assert other.compare_and_set("s", 5, b"6", timeout=TIMEOUT) is True

    def test_truncation_beside_appends_leaves_no_gap(
        self, log: Consensus, other: Consensus
    ) -> None:
        def write() -> None:
            for n in range(150):
                assert log.compare_and_set("s", n, b"%d" % (n + 1), timeout=TIMEOUT)

        def cut() -> None:
            newest = 0
            while newest < 150:
                head = other.head("s", timeout=TIMEOUT)
                if head is None:
                    continue
                newest = head.seqno
                other.truncate("s", newest + 1, timeout=TIMEOUT)
                seen = [r.seqno for r in other.scan("s", 0, 1_000, timeout=TIMEOUT)]
                assert seen == list(range(seen[0], seen[0] + len(seen)))
                assert seen[-1] >= newest

        side_by_side([write, cut])
        assert log.head("s", timeout=TIMEOUT) == Record(150, b"150")

    def test_shards_do_not_see_one_another(self, log: Consensus, other: Consensus) -> None:
        names = ["a", "b", "B", "a\u00e9", "a\uff5e", "a\U0001f300", "a b", "a'\"%_", "ab"]
        for n, name in enumerate(names):
            self._fill(log, name, n + 1)
        assert list(other.keys(timeout=TIMEOUT)) == sorted(names, key=str.encode)
        log.truncate("b", 2, timeout=TIMEOUT)
        for n, name in enumerate(names):
            head = other.head(name, timeout=TIMEOUT)
            assert head is not None
            assert head.seqno == n + 1
            first = 2 if name == "b" else 1
            seqnos = [r.seqno for r in other.scan(name, 0, 100, timeout=TIMEOUT)]
            assert seqnos == list(range(first, n + 2))

    # --- the right of way, where it is offered

    @pytest.fixture(name="claims")
    def _claims(self, log: Consensus, other: Consensus) -> tuple[Claims, Claims]:
        if not isinstance(log, Claims) or not isinstance(other, Claims):
            pytest.skip("this Consensus offers no right of way")
        return log, other

    def test_one_has_the_right_of_way_and_all_others_see_it(
        self, claims: tuple[Claims, Claims]
    ) -> None:
        one, two = claims
        assert not one.claimed()
        assert not two.claimed()
        assert one.claim()
        assert one.claim(), "it has it already"
        assert not one.claimed(), "it is nobody else's"
        assert two.claimed()
        assert not two.claim()
        two.release()
        assert two.claimed(), "it was not theirs to release"
        one.release()
        one.release()
        assert not two.claimed()
        assert two.claim()
        assert one.claimed()
        two.release()

    def test_the_right_of_way_is_that_of_a_thread(self, claims: tuple[Claims, Claims]) -> None:
        one, _ = claims
        assert one.claim()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(one.claimed).result()
            assert not pool.submit(one.claim).result()
            pool.submit(one.release).result()
            assert pool.submit(one.claimed).result()
        one.release()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(one.claim).result()
            assert one.claimed()
            pool.submit(one.release).result()
        assert not one.claimed()

    def test_a_handle_that_is_closed_gives_up_the_right_of_way(
        self, claims: tuple[Claims, Claims]
    ) -> None:
        one, two = claims
        assert two.claim()
        two.close()  # type: ignore[attr-defined]  # it is a Consensus, too
        assert not one.claimed()
        assert one.claim()
        one.release()

    def test_writes_need_no_right_of_way(
        self, log: Consensus, other: Consensus, claims: tuple[Claims, Claims]
    ) -> None:
        assert claims[0].claim()
        assert other.compare_and_set("s", 0, b"theirs", timeout=TIMEOUT)
        assert log.compare_and_set("s", 1, b"mine", timeout=TIMEOUT)
        claims[0].release()

    @staticmethod
    def _fill(log: Consensus, shard: str, count: int) -> None:
        for n in range(count):
            assert log.compare_and_set(shard, n, b"%d" % (n + 1), timeout=TIMEOUT)

    @staticmethod
    def _is_one_line(log: Consensus, wins: list[list[int]]) -> None:
        """Every record is the one of the writer that was told so, and nobody was told twice."""
        records = log.scan("s", 1, 1_000, timeout=TIMEOUT)
        assert [r.seqno for r in records] == list(range(1, len(records) + 1))
        writer_of = {seqno: n for n, seqnos in enumerate(wins) for seqno in seqnos}
        assert sum(map(len, wins)) == len(writer_of) == len(records) > 0
        for record in records:
            assert int(record.data) == writer_of[record.seqno]


def append_until(log: Consensus, shard: str, writer: int, last_seqno: int) -> list[int]:
    """Appends the writer's number until the log reached `last_seqno`; the seqnos that it won."""
    won: list[int] = []
    while True:
        head = log.head(shard, timeout=TIMEOUT)
        newest = head.seqno if head else 0
        if newest >= last_seqno:
            return won
        if log.compare_and_set(shard, newest, b"%d" % writer, timeout=TIMEOUT):
            won.append(newest + 1)


def _open_and_append(opener: Callable[[], Consensus], writer: int) -> list[int]:
    log = opener()
    try:
        return append_until(log, "s", writer, 200)
    finally:
        log.close()
