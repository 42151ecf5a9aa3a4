"""The command about those who write."""

from __future__ import annotations

from typing import Annotated

import pyarrow as pa
import typer

import strandline as sl
from strandline.cli.app import Yes, command, confirm, open_database
from strandline.cli.output import Form, Output, emit

__all__ = ["sessions"]

_ACKNOWLEDGED = pa.schema([("acknowledged", pa.string())])


@command("sessions", example="strandline sessions", panel="Reports")
def sessions(
    ctx: typer.Context,
    force_ack: Annotated[
        str | None,
        typer.Option(
            "--force-ack", metavar="SESSION", help="Say that its owner writes nothing any more."
        ),
    ] = None,
    force_ack_worker: Annotated[
        str | None,
        typer.Option(
            "--force-ack-worker", metavar="WORKER", help="The same of all sessions of a worker."
        ),
    ] = None,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """Show who writes, or wrote, to each shard, and what they have not committed.

    A session is open; ended, because it was silent or another attached its table; acknowledged,
    when it is certain that its owner writes no objects any more; swept, once of two times. One of
    no table is of the shard that commits. Of an owner that is gone for good, --force-ack lets the
    next vacuum delete what it left, without waiting for its lease and grace to pass: make sure
    first that it is stopped.
    """
    if force_ack is not None and force_ack_worker is not None:
        raise sl.UsageError("pass --force-ack or --force-ack-worker, not both")
    if force_ack is None and force_ack_worker is None:
        with open_database(ctx) as db:
            rows = db.sessions()
        emit(rows, output, title=f"{rows.num_rows} sessions", whole=True)
        return
    whose = f"session {force_ack}" if force_ack else f"all sessions of {force_ack_worker}"
    confirm(f"Is the owner of {whose} stopped for good?", yes=yes)
    with open_database(ctx, write=True) as db:
        done = db.force_ack(session=force_ack, worker=force_ack_worker)
    emit(pa.table({"acknowledged": done}, schema=_ACKNOWLEDGED), output, whole=True)
