"""The few knobs of a database handle, each with its reason."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

__all__ = ["Settings"]

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Settings:
    """How one process uses a database. Nothing here is stored; two processes may differ."""

    timeout_seconds: float = 60.0
    """Deadline of a call that is given no `timeout=`."""

    lease_seconds: float = 900.0
    """Silence after which others may end a session: a holder gets through once in each quarter.
    Longer than outages and pauses that pass by themselves; a dead one's claim waits no longer.
    Should be the same for all processes of a database."""

    grace_seconds: float = 900.0
    """Silence of an ended session, beyond the lease, after which its objects may be swept: longer
    than a request of its owner can be under way."""

    inline_bytes_max: int = 256 * KIB
    """A batch of at most this many Arrow IPC bytes is committed inside its entry, not as a part: a
    third of the processor time. The log, of which a vacuum leaves 1,000 records, grows by it."""

    rollup_every_records: int = 128
    """Records between two rollups: what opening replays, against bytes written per commit."""

    page_items_max: int = 1_000
    """Items in a page of state: copying one costs about 2 µs, reading one about 20 ms."""

    page_bytes_max: int = 256 * KIB
    """Encoded bytes in a page of state: bounds what a rollup rewrites when one item changed."""

    apply_backlog_commits: int = 128
    """Unapplied commits of a table at which background apply starts; also the size of its bites."""

    backlog_commits_max: int = 1_024
    """Unapplied commits of a table at which the next writer to it applies first."""

    backlog_bytes_max: int = 16 * MIB
    """The same in inline bytes; background apply starts at an eighth of it."""

    background: bool = True
    """Whether this handle applies, rolls up and merges small parts in a thread beside its callers.
    If not, it does all the same: whoever commits does what is due before the call returns."""

    small_parts_max: int = 12
    """Small parts in a leaf or in L0 at which those of like size are merged after a commit: with
    half as many, appends of 5,000 rows cost a quarter more; with twice as many, scans do."""

    level_zero_parts_max: int = 24
    """Parts in L0 at which its oldest go down into the leaves: each lookup has to look at all."""

    sinking_leaf_bytes: int = 64 * KIB
    """Bytes for each leaf that it touches at which a part of L0 goes down before that."""

    small_part_bytes_max: int = 8 * MIB
    """Parts larger than this are left to `compact`: background merging stays in small bites."""

    threads: int = field(default_factory=lambda: os.cpu_count() or 2)
    """Threads of a large sort or merge in this process."""

    part_rows_target: int = 1_000_000
    """Rows at which a part ends: the unit of parallel encoding and scans; some tens of MB."""

    row_group_rows: int = 8_192
    """Rows in a row group: the unit that a lookup decodes (see docs/design)."""

    sort_memory_bytes: int = 256 * MIB
    """What a large sort may hold before it spills to disk."""

    footer_cache_entries: int = 4_096
    """Parsed footers kept per handle."""

    statistics_columns: int = 32
    """Columns whose minimum, maximum and null count are kept in the catalog besides the keys."""
