"""Strandline: a transactional table store on object storage, for Python and Spark."""

from importlib import import_module
from typing import Any

from strandline.changes.subscription import Change, Subscription, TablesChange, TablesSubscription
from strandline.connect import connect, open_location
from strandline.database import Database
from strandline.errors import (
    AsOfInFuture,
    AsOfTooOld,
    ClockSkew,
    Conflict,
    Corruption,
    DeadlineExceeded,
    Fenced,
    Held,
    LocationError,
    SchemaMismatch,
    StrandlineError,
    TransactionConflict,
    UnknownTable,
    UpperMismatch,
    UsageError,
)
from strandline.location import Location
from strandline.query import Scan
from strandline.settings import Settings
from strandline.sql.relation import Relation
from strandline.table import Lease, Table
from strandline.times import Commit, Micros, Progress
from strandline.upkeep.compaction import register_engine
from strandline.write.staged import Staged

__version__ = "0.1.0"

__all__ = [
    "AsOfInFuture",
    "AsOfTooOld",
    "Change",
    "ClockSkew",
    "Commit",
    "Conflict",
    "Corruption",
    "Database",
    "DeadlineExceeded",
    "Fenced",
    "Held",
    "Lease",
    "Location",
    "LocationError",
    "Micros",
    "Progress",
    "Relation",
    "Scan",
    "SchemaMismatch",
    "Settings",
    "Staged",
    "StrandlineError",
    "Subscription",
    "Table",
    "TablesChange",
    "TablesSubscription",
    "TransactionConflict",
    "UnknownTable",
    "UpperMismatch",
    "UsageError",
    "__version__",
    "connect",
    "open_location",
]


def __getattr__(name: str) -> Any:
    """`sl.spark`, loaded when it is first asked for: pyspark takes long and may be missing."""
    if name == "spark":
        return import_module("strandline.spark")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# A Spark session passed as `engine=` brings `strandline.spark` in, however the session was made.
register_engine(
    lambda engine: type(engine).__module__.startswith("pyspark."),
    lambda engine: import_module("strandline.spark").runner(engine),
)
