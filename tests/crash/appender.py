"""Appends batch after batch to a database until it is killed; says which are acknowledged.

    python appender.py PATH FIRST STEP [tokens]

Batch number n has the rows (n, 0) … (n, size_of(n) - 1). A line of a number is written once the
append of that batch returned.
"""

from __future__ import annotations

import sys

import pyarrow as pa

import strandline as sl

SETTINGS = sl.Settings(
    inline_bytes_max=2_500,
    rollup_every_records=6,
    page_items_max=20,
    apply_backlog_commits=4,
    small_parts_max=3,
    part_rows_target=150,
    row_group_rows=50,
)


def size_of(number: int) -> int:
    """Rows in a batch: mostly a few, every fifth enough for parts of its own."""
    return 400 if number % 5 == 4 else 1 + number % 7


def batch(number: int) -> pa.Table:
    size = size_of(number)
    return pa.table({"batch": pa.repeat(pa.scalar(number, pa.int64()), size), "row": range(size)})


def main() -> None:
    path, number, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with_tokens = "tokens" in sys.argv[4:]
    db = sl.connect(path, settings=SETTINGS)
    table = db.create_table("rows", batch(0).schema, row_keys=["batch", "row"], exist_ok=True)
    while True:
        token = ("appender", number) if with_tokens else None
        table.append(batch(number), token=token)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += step


if __name__ == "__main__":
    main()
