"""Opens a shard that is used by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from strandline.env import Env
from strandline.location import Location
from strandline.settings import Settings
from strandline.shard.alone.read import ReadHandle
from strandline.shard.alone.shard import Shard
from strandline.shard.alone.write import WriteHandle

__all__ = ["open_shard"]


def open_shard(
    location: Location,
    shard_id: str,
    *,
    schema: pa.Schema | None = None,
    row_keys: Sequence[str] | str | None = None,
    settings: Settings | None = None,
    timeout: float | None = None,
    env: Env | None = None,
) -> tuple[WriteHandle, ReadHandle]:
    """Handles on the shard with that id (`new_shard_id`), which is made if there is none.

    A shard is a multiset of rows that changes over time: updates `(row, time, diff)`. `schema` says
    what a new shard's rows look like; later it is not needed, and checked if it is given.
    `row_keys`: the columns that rows are sorted by, never null; None: all that can be keys. Both
    handles share one session, which ends when both are expired; they are not for use in a fork of
    the process.

    Errors: SchemaMismatch for another schema than the shard's; UsageError for a shard that belongs
    to a database, one that is finished and deleted, or one that is not there, without `schema` or
    on a read-only location; LocationError, Corruption.
    """
    shard = Shard(location, shard_id, settings, env)
    deadline = shard.deadline(timeout)
    try:
        shard.open(schema, row_keys, deadline)
        shard.look_out(deadline)
        return WriteHandle(shard), ReadHandle(shard, deadline)
    except BaseException:
        shard.close(deadline)
        raise
