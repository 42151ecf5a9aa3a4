"""Moments are exact, and `as_of` takes what its documentation says and nothing else."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import UsageError
from strandline.times import Commit, Micros, Progress, datetime_of, micros_of, parse_as_of, told

MOMENT = datetime(2026, 11, 20, 10, 0, 0, 123_456, tzinfo=UTC)
MICROS = 1_795_168_800_123_456


class NoOffset(tzinfo):
    def utcoffset(self, dt: datetime | None) -> None:
        return None

    def __repr__(self) -> str:  # the ids of tests have to be the same in every process
        return "NoOffset"

    def dst(self, dt: datetime | None) -> None:
        return None

    def tzname(self, dt: datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    "value",
    [
        MOMENT,
        MOMENT.astimezone(timezone(timedelta(hours=5, minutes=30))),
        pd.Timestamp(MOMENT),
        pd.Timestamp(MOMENT).tz_convert("America/New_York"),
        "2026-11-20T10:00:00.123456Z",
        "2026-11-20 10:00:00.123456+00:00",
        "2026-11-20T12:00:00.123456+02:00",
        "20261120T100000.123456Z",
        Micros(MICROS),
        Commit(MICROS, 3, ("t",)),
        Commit(MICROS).id,
        told(MICROS),
    ],
    ids=repr,
)
def test_every_accepted_form_names_the_same_moment(value: object) -> None:
    assert parse_as_of(value) == MICROS


@pytest.mark.parametrize(
    "value",
    [
        MICROS,
        0,
        1.5,
        True,
        b"2026-11-20T10:00:00Z",
        datetime(2026, 11, 20),  # noqa: DTZ001  that it is naive is the point
        datetime(2026, 11, 20, tzinfo=NoOffset()),
        MOMENT.date(),
        pd.Timestamp("2026-11-20"),
        pd.NaT,
        "2026-11-20",
        "2026-11-20T10:00:00",
        "yesterday",
        "now",
        "",
        str(MICROS),
        "c0006610",
        "C0006610C0F3E2640",
        "c8000000000000000",
        "10:00Z",
        timedelta(days=1),
        [MOMENT],
    ],
    ids=repr,
)
def test_every_other_form_is_refused_and_the_accepted_ones_are_shown(value: object) -> None:
    with pytest.raises(UsageError, match=r"as_of cannot be .*ISO string.*Micros.*Commit"):
        parse_as_of(value)


def test_a_tag_is_refused_because_there_are_none_yet() -> None:
    with pytest.raises(UsageError, match="no tags yet"):
        parse_as_of("tag:release-1")


@pytest.mark.parametrize("value", [-1, 253_402_300_800_000_000, 1 << 63, 1.0, True, "5"], ids=repr)
def test_micros_takes_only_times(value: object) -> None:
    with pytest.raises(UsageError, match="Micros"):
        Micros(value)  # type: ignore[arg-type]


def test_micros_are_whole_numbers_of_any_kind() -> None:
    number: Any = np.int64(5)
    micros = Micros(number)
    assert micros == Micros(5)
    assert type(micros.value) is int


def test_progress_is_a_moment_or_refused() -> None:
    with pytest.raises(UsageError, match="out of range"):
        Progress.parse("pffffffffffffffff")


@given(st.integers(0, 253_402_300_799_999_999))
def test_micros_and_datetimes_convert_without_loss(micros: int) -> None:
    assert micros_of(datetime_of(micros)) == micros
    assert Micros(micros).time == datetime_of(micros)


def test_a_commit_is_named_by_its_time() -> None:
    commit = Commit(255, 1, ("t",))
    assert commit.id == "c00000000000000ff"
    assert commit.time == datetime(1970, 1, 1, 0, 0, 0, 255, tzinfo=UTC)
    assert commit == Commit(255, 1, ("t",))
