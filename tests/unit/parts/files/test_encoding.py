"""How a column is to be stored is tried out, at a price in proportion."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from strandline.parts.files import encoding
from strandline.parts.files.encoding import choose_encoding


def table(count: int) -> pa.Table:
    rng = random.Random(count)
    return pa.table(
        {
            "n": range(count),
            "word": [f"word-{rng.randrange(16)}" for _ in range(count)],
            "noise": [rng.random() for _ in range(count)],
        }
    )


@pytest.mark.parametrize("count", [1, 600, 3_000, 8_191, 8_192, 20_000, 100_000])
def test_a_trial_stores_less_than_half_of_what_is_written(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, stored = 0, encoding._stored

    def counted(sample: pa.Table, way: encoding.Encoding) -> object:
        nonlocal tried
        tried += sample.num_rows
        return stored(sample, way)

    monkeypatch.setattr(encoding, "_stored", counted)
    choose_encoding(table(count))
    assert tried <= 3 * count / 8


@pytest.mark.parametrize("count", [8_192, 100_000])
def test_each_column_is_stored_as_it_suits(count: int) -> None:
    found = choose_encoding(table(count))
    assert found.encodings == {"n": "DELTA_BINARY_PACKED"}
    assert found.dictionary == ["word"]
    assert isinstance(found.compression, dict)
    assert found.compression["noise"] == "none"
