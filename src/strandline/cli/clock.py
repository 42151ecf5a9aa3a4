"""The command for operators who have looked at a clock."""

from __future__ import annotations

import pyarrow as pa
import typer

from strandline.cli.app import command, open_database
from strandline.cli.output import Form, Output, emit

__all__ = ["confirm_clock"]

CONFIRMED = pa.schema([("retention_goes_by", pa.timestamp("us", "UTC"))])


@command("confirm-clock", example="strandline confirm-clock", panel="Upkeep")
def confirm_clock(ctx: typer.Context, output: Output = Form.TABLE) -> None:
    """Say that this machine's clock is right, where the log's time made it doubtful.

    After a jump of time by more than a day, retention waits for this (or for 16 commits over a
    day). After commits by a clock that was ahead, everybody who writes does.
    """
    with open_database(ctx, write=True) as db:
        time = db.confirm_clock()
    rows = pa.Table.from_pylist([{"retention_goes_by": time.time}], schema=CONFIRMED)
    emit(rows, output)
