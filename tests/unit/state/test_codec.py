"""What is stored comes back as it was, and nothing else is taken for it."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline
from strandline.errors import Corruption, UsageError
from strandline.state.codec import (
    LogRecord,
    Manifest,
    decode_batch,
    decode_page,
    decode_record,
    decode_rollup,
    encode_batch,
    encode_item,
    encode_page,
    encode_record,
    encode_rollup,
    record_hash,
    seal_page,
)
from strandline.state.model import (
    COLLECTIONS,
    FORMAT,
    Batch,
    Diff,
    Interval,
    Leaf,
    Meta,
    Part,
    Reference,
    Rollup,
    Session,
)
from strandline.state.pages import Page, PageRef
from tests.unit.state_values import ITEMS, batches, blobs, diffs, numbers, rollups, words

SHARD = "s0123456789abcdef"
PAGE_KEY = "w0123456789abcdef/s0123456789abcdef/page/g0123456789abcdef01234567.page"
ROLLUP_KEY = "w0123456789abcdef/s0123456789abcdef/rollup/00000000000000000007-r01.rollup"
RECORD = LogRecord(
    SHARD,
    8,
    "w0123456789abcdef",
    3,
    bytes(range(32)),
    "Commit",
    "a note",
    Rollup(7, ROLLUP_KEY, 100),
    (Diff("meta", (), Meta(upper=9)), Diff("sessions", ("w0123456789abcdef",), Session(3, 1))),
)
PAGE = Page({("a",): Session(1, 1), ("b",): Session(2, 5)})
MANIFEST = Manifest(
    SHARD,
    ROLLUP_KEY,
    7,
    bytes(range(32)),
    {
        "meta": Page({(): Meta()}),
        "sessions": (PageRef(PAGE_KEY, (), 2, 90), PageRef(PAGE_KEY + "2", ("c",), 5, 80)),
    },
)

# Per kind of stored thing: its bytes, the way back, and what the way back gives.
Form = tuple[bytes, Callable[[bytes], Any]]


def _page_back(data: bytes) -> Any:
    return decode_page("sessions", SHARD, data, PAGE_KEY)


FORMS: dict[str, Form] = {
    "record": (encode_record(RECORD), lambda data: decode_record(data, "record 8")),
    "page": (encode_page("sessions", SHARD, PAGE_KEY, PAGE), _page_back),
    "rollup": (encode_rollup(MANIFEST), lambda data: decode_rollup(data, ROLLUP_KEY)),
    "batch": (encode_batch(Batch(inline=b"rows", rows=4)), decode_batch),
}
OBJECTS = {"record": "record 8", "page": PAGE_KEY, "rollup": ROLLUP_KEY}
each_form = pytest.mark.parametrize("form", FORMS)


def same(left: Page[Any], right: Page[Any]) -> bool:
    return left.items == right.items and left.order == right.order


# --- round trips


@given(
    st.builds(
        LogRecord,
        words,
        numbers,
        words,
        numbers,
        blobs,
        words,
        words,
        st.none() | rollups,
        st.lists(diffs, max_size=4).map(tuple),
    )
)
def test_a_record_comes_back_as_it_was(record: LogRecord) -> None:
    assert decode_record(encode_record(record), "x") == record


@pytest.mark.parametrize("collection", sorted(COLLECTIONS))
@given(data=st.data())
def test_a_page_of_any_collection_comes_back_as_it_was(collection: str, data: Any) -> None:
    page = Page(dict(data.draw(st.lists(ITEMS[collection], max_size=4))))
    stored = encode_page(collection, SHARD, PAGE_KEY, page)
    assert same(decode_page(collection, SHARD, stored, PAGE_KEY), page)


@given(batches)
def test_a_batch_comes_back_as_it_was(batch: Batch) -> None:
    assert decode_batch(encode_batch(batch)) == batch


@given(st.data())
def test_a_rollup_comes_back_as_it_was(data: Any) -> None:
    pages: dict[str, Any] = {}
    for name in data.draw(st.sets(st.sampled_from(sorted(COLLECTIONS)))):
        items = data.draw(st.lists(ITEMS[name], min_size=1, max_size=3))
        if data.draw(st.booleans()):
            pages[name] = Page(dict(items))
        else:
            firsts = [(), *(key for key, _ in items)]
            pages[name] = tuple(PageRef(f"page {n}", key, n, n) for n, key in enumerate(firsts))
    manifest = Manifest(SHARD, ROLLUP_KEY, 3, b"h", pages)
    back = decode_rollup(encode_rollup(manifest), ROLLUP_KEY)
    assert replace(back, pages={}) == replace(manifest, pages={})
    assert back.pages.keys() == pages.keys()
    for name, before in pages.items():
        after = back.pages[name]
        assert same(after, before) if isinstance(after, Page) else after == before


def test_absent_and_empty_are_told_apart() -> None:
    part = Part("p", 1, 1, b"", b"", None, 0)
    diffs = (
        Diff("meta", (), Meta(upper=None, since=0)),
        Diff("meta", (), Meta(upper=0, since=None)),
        Diff("leaves", (b"",), Leaf(1, Interval(b"", None), None)),
        Diff("leaves", (b"",), Leaf(1, Interval(b"", b""), 0)),
        Diff("references", (0, b"", 1), Reference(1, 0, Interval(b"", None), part, 0)),
        Diff("references", (0, b"", 1), Reference(1, 0, Interval(b"", b""), part, 0)),
        Diff("sessions", ("",), Session(0, 0)),
        Diff("sessions", ("",), None),
    )
    record = replace(RECORD, diffs=diffs, rollup=None)
    assert decode_record(encode_record(record), "x").diffs == diffs
    zero = replace(RECORD, rollup=Rollup(0, "", 0))
    assert decode_record(encode_record(zero), "x").rollup == Rollup(0, "", 0)


def test_items_encoded_one_by_one_make_the_same_page() -> None:
    items = [encode_item("sessions", key, PAGE.items[key]) for key in PAGE.order]
    assert seal_page("sessions", SHARD, PAGE_KEY, items) == FORMS["page"][0]


def test_a_key_that_contradicts_its_value_is_not_stored() -> None:
    wrong = replace(RECORD, diffs=(Diff("rollups", (8,), Rollup(7, "k", 1)),))
    with pytest.raises(ValueError, match="says"):
        encode_record(wrong)


# --- damage


def assert_refused(form: str, data: bytes) -> None:
    with pytest.raises(Corruption) as caught:
        FORMS[form][1](data)
    if form in OBJECTS:
        assert caught.value.object == OBJECTS[form]
        assert OBJECTS[form] in str(caught.value)


@each_form
def test_every_flipped_bit_is_noticed(form: str) -> None:
    data = FORMS[form][0]
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            assert_refused(form, bytes(flipped))


@each_form
def test_every_truncation_and_any_growth_is_noticed(form: str) -> None:
    data = FORMS[form][0]
    for length in range(len(data)):
        assert_refused(form, data[:length])
    assert_refused(form, data + b"\0")


@each_form
@given(data=st.binary(max_size=64))
def test_garbage_is_refused(form: str, data: bytes) -> None:
    assert_refused(form, data)


@each_form
def test_another_kind_of_object_is_refused_by_name(form: str) -> None:
    for other in FORMS.keys() - {form}:
        assert_refused(form, FORMS[other][0])


def test_a_page_under_another_key_is_refused() -> None:
    data = FORMS["page"][0]
    for collection, shard, key in [
        ("sessions", SHARD, "elsewhere"),
        ("parts", SHARD, PAGE_KEY),
        ("sessions", "sffffffffffffffff", PAGE_KEY),
    ]:
        with pytest.raises(Corruption, match="another page"):
            decode_page(collection, shard, data, key)


def test_a_rollup_under_another_key_is_refused() -> None:
    with pytest.raises(Corruption, match="another rollup"):
        decode_rollup(FORMS["rollup"][0], "elsewhere")


def _sealed(magic: bytes, version: int, payload: bytes) -> bytes:
    signed = struct.pack("<4sI", magic, version)
    return signed + struct.pack("<I", zlib.crc32(signed + payload)) + payload


@each_form
def test_a_newer_format_is_refused_with_the_remedy(form: str) -> None:
    data = FORMS[form][0]
    newer = _sealed(data[:4], FORMAT + 1, b"whatever a newer format holds")
    with pytest.raises(UsageError, match=f"newer Strandline, format {FORMAT + 1}.*upgrade"):
        FORMS[form][1](newer)


@each_form
def test_intact_bytes_that_are_no_message_are_refused(form: str) -> None:
    assert_refused(form, _sealed(FORMS[form][0][:4], FORMAT, b"\xff" * 9))


def test_a_value_of_another_collection_is_refused() -> None:
    item = encode_item("sessions", ("a",), Session(1, 1))
    data = seal_page("parts", SHARD, PAGE_KEY, [item])
    with pytest.raises(Corruption, match="kind session in the collection parts"):
        decode_page("parts", SHARD, data, PAGE_KEY)
    broken = seal_page("sessions", SHARD, PAGE_KEY, [b"\xff\xff"])
    with pytest.raises(Corruption, match="item"):
        decode_page("sessions", SHARD, broken, PAGE_KEY)


def test_the_hash_is_over_every_stored_byte() -> None:
    data = FORMS["record"][0]
    assert len({record_hash(data[:n]) for n in range(len(data) + 1)}) == len(data) + 1


# --- the generated module


def test_the_generated_module_is_fresh(tmp_path: Path) -> None:
    package = Path(strandline.__file__).parent
    source = package / "state" / "strandline.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(package.parent)]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    for name in ("strandline_pb2.py", "strandline_pb2.pyi"):
        made = (tmp_path / "strandline" / "state" / name).read_text(encoding="utf-8")
        kept = (package / "state" / name).read_text(encoding="utf-8")
        assert made == kept, f"{name} is stale: run `make proto`"


def test_every_field_of_the_format_is_explained() -> None:
    source = Path(strandline.__file__).parent / "state" / "strandline.proto"
    lines = [line.strip() for line in source.read_text(encoding="utf-8").splitlines()]
    declared = [n for n, line in enumerate(lines) if line.endswith(("{", ";"))]
    beginnings = ("syntax", "package", "oneof")
    unexplained = [
        lines[n]
        for n in declared
        if not lines[n].startswith(("//", *beginnings)) and not lines[n - 1].startswith("//")
    ]
    assert unexplained == []
