"""The contract of a Blob, as tests that any adapter can be held to.

Subclass `BlobContract` in a test module, and say how to open a handle::

    class TestMyBlob(BlobContract):
        @pytest.fixture(autouse=True)
        def _place(self, tmp_path):
            self.opener = functools.partial(open_my_blob, tmp_path)
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator

import pytest

from strandline.errors import UsageError
from strandline.location.blob import Blob, BlobExists, BlobMissing
from strandline.testing.processes import in_processes, side_by_side

__all__ = ["BlobContract"]

TIMEOUT = 30.0

# In ascending order of their UTF-8 bytes. The tempting mistakes: UTF-16 order puts U+1F300 before
# U+FF5E, a directory walk puts "a/b" before "a-b", and both ignore case somewhere.
KEYS_IN_ORDER = [
    "A",
    "a-b",
    "a.b",
    "a/b",
    "a/b0/c",
    "a/c/d",
    "a0",
    "b/0",
    "b~",
    "z\u007f",
    "z\u0080",
    "z\u00e9",
    "z\u07ff",
    "z\u0800",
    "z\ud7ff",
    "z\uff5e",
    "z\U0001f300",
    "z\U0010ffff",
]

BAD_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/..",
    "a/./b",
    ".hidden",
    "a/.hidden",
    "a\0b",
    "\ud800",
    "a" * 1_025,
]


class BlobContract:
    """Every test gets handles on one empty location from `opener`."""

    opener: Callable[[], Blob]
    """Opens a further handle on the location of this test; picklable if `processes`."""

    processes = False
    """Whether other processes reach the location by calling `opener`."""

    @pytest.fixture(name="blob")
    def _blob(self) -> Iterator[Blob]:
        blob = self.opener()
        yield blob
        blob.close()

    @pytest.fixture(name="other")
    def _other(self) -> Iterator[Blob]:
        other = self.opener()
        yield other
        other.close()

    def test_what_was_put_is_there_for_every_handle(self, blob: Blob, other: Blob) -> None:
        for key, data in [("a/b", b"\x00\xff" * 1000), ("empty", b"")]:
            blob.put(key, data, timeout=TIMEOUT)
            for handle in (blob, other):
                assert handle.get(key, timeout=TIMEOUT) == data
                with handle.open(key, timeout=TIMEOUT) as file:
                    assert file.read() == data

    def test_an_absent_key_is_missing(self, blob: Blob) -> None:
        blob.put("a/b/c", b"x", timeout=TIMEOUT)
        # "a/b" is a prefix of a key, "a/b/c/d" continues one: neither is one.
        for key in ("nothing", "a/b", "a/b/c/d"):
            with pytest.raises(BlobMissing) as caught:
                blob.get(key, timeout=TIMEOUT)
            assert caught.value.key == key
            assert caught.value.may_have_happened is False
            with pytest.raises(BlobMissing):
                blob.get_range(key, 0, 1, timeout=TIMEOUT)
            with pytest.raises(BlobMissing):
                blob.open(key, timeout=TIMEOUT)
            assert blob.delete(key, timeout=TIMEOUT) is False
        assert blob.get("a/b/c", timeout=TIMEOUT) == b"x"

    def test_a_key_is_written_once(self, blob: Blob, other: Blob) -> None:
        blob.put("a", b"first", timeout=TIMEOUT)
        for handle in (blob, other):
            for data in (b"second", b"first"):
                with pytest.raises(BlobExists) as caught:
                    handle.put("a", data, timeout=TIMEOUT)
                assert caught.value.key == "a"
                assert caught.value.may_have_happened is False
            with pytest.raises(BlobExists), handle.upload("a", timeout=TIMEOUT) as sink:
                sink.write(b"third")
        assert other.get("a", timeout=TIMEOUT) == b"first"

    def test_of_many_puts_at_once_exactly_one_wins(self, blob: Blob, other: Blob) -> None:
        def put(handle: Blob, key: str, data: bytes) -> bool:
            try:
                handle.put(key, data, timeout=TIMEOUT)
            except BlobExists:
                return False
            return True

        for attempt in range(10):
            key = f"race/{attempt}"
            contents = [bytes([n]) * 20_000 for n in range(8)]
            won = side_by_side(
                [
                    functools.partial(put, (blob, other)[n % 2], key, data)
                    for n, data in enumerate(contents)
                ]
            )
            assert sum(won) == 1
            assert blob.get(key, timeout=TIMEOUT) == contents[won.index(True)]

    def test_of_many_processes_exactly_one_wins(self, blob: Blob) -> None:
        if not self.processes:
            pytest.skip("no other process reaches this location")
        keys = [f"race/{n}" for n in range(50)]
        won = in_processes([functools.partial(_put_all, self.opener, keys, n) for n in range(4)])
        for index, key in enumerate(keys):
            winners = [n for n in range(4) if won[n][index]]
            assert len(winners) == 1
            assert blob.get(key, timeout=TIMEOUT) == bytes(winners) * 10_000

    def test_a_reader_sees_nothing_or_all(self, blob: Blob, other: Blob) -> None:
        data = bytes(range(256)) * 4_000
        done = threading.Event()

        def watch() -> int:
            seen = 0
            while True:
                last = done.is_set()
                for info in other.list("whole/", timeout=TIMEOUT):
                    assert info.size == len(data)
                for n in range(20):
                    try:
                        assert other.get(f"whole/{n}", timeout=TIMEOUT) == data
                    except BlobMissing:
                        break
                    seen = max(seen, n + 1)
                if last:
                    return seen

        def write() -> int:
            try:
                for n in range(20):
                    blob.put(f"whole/{n}", data, timeout=TIMEOUT)
            finally:
                done.set()
            return 20

        assert side_by_side([watch, write]) == [20, 20]

    def test_ranges_are_cut_off_at_the_ends(self, blob: Blob) -> None:
        data = bytes(range(10))
        blob.put("a", data, timeout=TIMEOUT)
        blob.put("empty", b"", timeout=TIMEOUT)

        def part(start: int, length: int, key: str = "a") -> bytes:
            return blob.get_range(key, start, length, timeout=TIMEOUT)

        assert part(0, 10) == data
        assert part(0, 0) == b""
        assert part(3, 4) == data[3:7]
        assert part(8, 100) == data[8:]
        assert part(10, 1) == b""
        assert part(99, 1) == b""
        assert part(-3, 2) == data[7:9]
        assert part(-3, 3) == data[7:]
        assert part(-3, 99) == data[7:]
        assert part(-99, 4) == data[:4]
        assert part(-1, 1, key="empty") == b""
        with pytest.raises(UsageError):
            part(0, -1)

    def test_an_open_file_seeks(self, blob: Blob) -> None:
        data = bytes(range(256)) * 100
        blob.put("a", data, timeout=TIMEOUT)
        with blob.open("a", timeout=TIMEOUT) as file:
            assert file.size() == len(data)
            file.seek(-8, 2)
            assert file.read(8) == data[-8:]
            assert file.read_at(10, 500) == data[500:510]

    def test_deleting_twice_is_harmless(self, blob: Blob, other: Blob) -> None:
        blob.put("a/b", b"x", timeout=TIMEOUT)
        assert other.delete("a/b", timeout=TIMEOUT) is True
        assert blob.delete("a/b", timeout=TIMEOUT) is False
        with pytest.raises(BlobMissing):
            blob.get("a/b", timeout=TIMEOUT)
        assert list(blob.list("", timeout=TIMEOUT)) == []

    def test_of_many_deletes_at_once_none_fails(self, blob: Blob, other: Blob) -> None:
        blob.put("a", b"x", timeout=TIMEOUT)
        found = side_by_side(
            [functools.partial((blob, other)[n % 2].delete, "a", timeout=TIMEOUT) for n in range(6)]
        )
        assert any(found)
        with pytest.raises(BlobMissing):
            other.get("a", timeout=TIMEOUT)

    def test_a_listing_is_in_the_order_of_utf8_bytes(self, blob: Blob, other: Blob) -> None:
        assert sorted(KEYS_IN_ORDER, key=str.encode) == KEYS_IN_ORDER
        for key in reversed(KEYS_IN_ORDER):
            blob.put(key, key.encode(), timeout=TIMEOUT)
        assert self._keys(other, "") == KEYS_IN_ORDER

    def test_a_listing_knows_any_prefix(self, blob: Blob) -> None:
        for key in KEYS_IN_ORDER:
            blob.put(key, b"", timeout=TIMEOUT)
        prefixes = ["a", "a/", "a/b", "a/b0", "a/b0/", "a/b0/c", "a/b0/cd", "z", "z\u00e9", "~"]
        prefixes += ["../", "/", "a//", "..", "a/../a", "A/", "\ud800"]
        for prefix in prefixes:
            expected = [key for key in KEYS_IN_ORDER if key.startswith(prefix)]
            assert self._keys(blob, prefix) == expected, prefix

    def test_a_listing_starts_after_any_key(self, blob: Blob) -> None:
        for key in KEYS_IN_ORDER:
            blob.put(key, b"", timeout=TIMEOUT)
        for prefix in ("", "a", "a/", "z"):
            for after in [*KEYS_IN_ORDER, "", "a", "a/", "a/b/", "a/b0", "a/zz", "y", "\U0010ffff"]:
                expected = [
                    key
                    for key in KEYS_IN_ORDER
                    if key.startswith(prefix) and key.encode() > after.encode()
                ]
                assert self._keys(blob, prefix, after) == expected, (prefix, after)

    def test_a_listing_tells_size_and_time(self, blob: Blob) -> None:
        blob.put("a", b"12345", timeout=TIMEOUT)
        (info,) = blob.list("", timeout=TIMEOUT)
        assert (info.key, info.size) == ("a", 5)
        assert info.modified >= 0

    def test_a_listing_shows_what_stays_while_others_come_and_go(
        self, blob: Blob, other: Blob
    ) -> None:
        staying = [f"s/{n:03d}/stay" for n in range(30)]
        for key in staying:
            blob.put(key, b"", timeout=TIMEOUT)

        def churn() -> None:
            for n in range(60):
                key = f"s/{n % 30:03d}/{'ar'[n % 2]}"
                blob.put(key, b"", timeout=TIMEOUT)
                blob.delete(key, timeout=TIMEOUT)

        def watch() -> None:
            for _ in range(20):
                keys = self._keys(other, "s/")
                assert keys == sorted(set(keys))
                assert [key for key in keys if key.endswith("stay")] == staying

        side_by_side([churn, watch])

    def test_an_upload_appears_whole_at_the_end(self, blob: Blob, other: Blob) -> None:
        piece = bytes(range(256)) * 4_096
        with blob.upload("big", timeout=TIMEOUT) as sink:
            for _ in range(20):
                assert sink.write(piece) == len(piece)
            with pytest.raises(BlobMissing):
                other.get("big", timeout=TIMEOUT)
            assert self._keys(other, "") == []
        assert other.get("big", timeout=TIMEOUT) == piece * 20
        assert self._keys(other, "") == ["big"]

    def test_neither_an_object_nor_an_upload_under_way_is_left_over(
        self, blob: Blob, other: Blob
    ) -> None:
        blob.put("a", b"x", timeout=TIMEOUT)
        with blob.upload("b", timeout=TIMEOUT) as sink:
            sink.write(b"y")
            for delete in (False, True):
                assert not other.leftovers(1 << 60, delete=delete, timeout=TIMEOUT)
        assert other.get("b", timeout=TIMEOUT) == b"y"
        assert self._keys(other, "") == ["a", "b"]

    def test_an_upload_survives_its_sink_being_closed(self, blob: Blob) -> None:
        with blob.upload("a", timeout=TIMEOUT) as sink:
            sink.write(b"x")
            sink.close()
        assert blob.get("a", timeout=TIMEOUT) == b"x"

    def test_an_aborted_upload_leaves_nothing(self, blob: Blob, other: Blob) -> None:
        def fail() -> None:
            with blob.upload("a", timeout=TIMEOUT) as sink:
                sink.write(b"x" * 100_000)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert self._keys(other, "") == []
        with pytest.raises(BlobMissing):
            other.get("a", timeout=TIMEOUT)
        blob.put("a", b"y", timeout=TIMEOUT)
        assert other.get("a", timeout=TIMEOUT) == b"y"

    def test_of_an_upload_and_a_put_the_first_to_end_wins(self, blob: Blob, other: Blob) -> None:
        def lose() -> None:
            with blob.upload("a", timeout=TIMEOUT) as sink:
                sink.write(b"slow")
                other.put("a", b"fast", timeout=TIMEOUT)

        with pytest.raises(BlobExists):
            lose()
        assert blob.get("a", timeout=TIMEOUT) == b"fast"

    @pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: repr(key[:9]))
    def test_what_is_no_key_is_refused(self, blob: Blob, key: str) -> None:
        blob.put("a", b"x", timeout=TIMEOUT)
        with pytest.raises(UsageError):
            blob.put(key, b"y", timeout=TIMEOUT)
        with pytest.raises(UsageError), blob.upload(key, timeout=TIMEOUT):
            pass
        with pytest.raises(UsageError):
            blob.get(key, timeout=TIMEOUT)
        with pytest.raises(UsageError):
            blob.get_range(key, 0, 1, timeout=TIMEOUT)
        with pytest.raises(UsageError):
            blob.open(key, timeout=TIMEOUT)
        with pytest.raises(UsageError):
            blob.delete(key, timeout=TIMEOUT)
        assert self._keys(blob, "") == ["a"]

    @staticmethod
    def _keys(blob: Blob, prefix: str, start_after: str | None = None) -> list[str]:
        listed = blob.list(prefix, start_after=start_after, timeout=TIMEOUT)
        return [info.key for info in listed]


def _put_all(opener: Callable[[], Blob], keys: list[str], writer: int) -> list[bool]:
    blob = opener()
    won = []
    for key in keys:
        try:
            blob.put(key, bytes([writer]) * 10_000, timeout=TIMEOUT)
        except BlobExists:
            won.append(False)
        else:
            won.append(True)
    blob.close()
    return won
