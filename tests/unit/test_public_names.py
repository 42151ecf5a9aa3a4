"""`strandline.__all__` is sorted, complete and true."""

import strandline


def test_public_names_are_sorted_and_unique() -> None:
    assert list(strandline.__all__) == sorted(set(strandline.__all__))


def test_every_public_name_is_there() -> None:
    assert [name for name in strandline.__all__ if not hasattr(strandline, name)] == []


def test_the_public_names_are_these() -> None:
    # A name once published is a promise: this list only ever grows within a major version.
    assert strandline.__all__ == [
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


def test_star_import_brings_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from strandline import *", names)
    assert set(strandline.__all__) <= names.keys()


def test_version_is_the_packages() -> None:
    assert strandline.__version__ == "0.1.0"
