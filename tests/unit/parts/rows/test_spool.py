"""Rows that wait come back as they went, or an error says what is in the way."""

import pyarrow as pa
import pytest

from strandline.errors import LocationError
from strandline.parts.rows.spool import Spool

ARROW = pa.schema([("k", pa.int64()), ("tags", pa.list_(pa.string()))])


def batches(count: int) -> list[pa.RecordBatch]:
    return [
        pa.record_batch([pa.array([n]), pa.array([[str(n), None]], pa.list_(pa.string()))], ARROW)
        for n in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 5, 200])
@pytest.mark.parametrize("memory", [0, 100, 1 << 20])
def test_rows_come_back_in_order(monkeypatch: pytest.MonkeyPatch, count: int, memory: int) -> None:
    monkeypatch.setattr("strandline.parts.rows.spool._MEMORY_BYTES", memory)
    monkeypatch.setattr("strandline.parts.rows.spool._BATCH_ROWS", 7)
    with Spool(ARROW) as spool:
        for batch in batches(count):
            spool.add(batch)
        next(iter(spool.batches()), None)  # whoever was interrupted reads them again
        for _ in range(2):
            found = pa.Table.from_batches(spool.batches(), ARROW)
            assert found.equals(pa.Table.from_batches(batches(count), ARROW))


def test_a_full_disk_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.parts.rows.spool._BATCH_ROWS", 1)
    with Spool(ARROW) as spool:

        def full(_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(spool._file, "write", full)
        with pytest.raises(LocationError, match="TMPDIR"):
            spool.add(batches(1)[0])
