"""Strandline: a transactional table store on object storage, for Python and Spark."""

from strandline.connect import connect
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
from strandline.query import Scan
from strandline.settings import Settings
from strandline.sql import Relation
from strandline.table import Table
from strandline.times import Commit, Micros

__version__ = "0.1.0"

__all__ = [
    "AsOfInFuture",
    "AsOfTooOld",
    "ClockSkew",
    "Commit",
    "Conflict",
    "Corruption",
    "Database",
    "DeadlineExceeded",
    "Fenced",
    "Held",
    "LocationError",
    "Micros",
    "Relation",
    "Scan",
    "SchemaMismatch",
    "Settings",
    "StrandlineError",
    "Table",
    "TransactionConflict",
    "UnknownTable",
    "UpperMismatch",
    "UsageError",
    "__version__",
    "connect",
]
