"""What can be set per table: stored with the table, changeable, with documented defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strandline.errors import UsageError
from strandline.state.model import TableVersion
from strandline.state.plan import STRATEGIES

__all__ = [
    "PROPERTIES",
    "Property",
    "check_properties",
    "duration_micros",
    "is_online",
    "property_of",
]

_UNITS = {
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_DURATION = re.compile(r"^\s*(\d+)\s*(second|minute|hour|day|week)s?\s*$")


@dataclass(frozen=True, slots=True)
class Property:
    """One property: how its text is checked, its default, and what it does."""

    default: str
    check: Callable[[str], object]
    says: str


def duration_micros(text: str) -> int:
    """Microseconds of a text such as "7 days" or "90 seconds"."""
    found = _DURATION.match(text)
    if found is None:
        raise UsageError(f"{text!r} is not a duration; write a number and a unit, such as '7 days'")
    return int(found[1]) * _UNITS[found[2]]


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{text!r} is not a count; write a whole number of at least 1")
    return int(text)


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in words:
            raise UsageError(f"{text!r} is none of {', '.join(words)}")
        return text

    return check


PROPERTIES: dict[str, Property] = {
    "retention": Property(
        "7 days", duration_micros, "how far back in database time an as_of can reach at least"
    ),
    "deletion_delay": Property(
        "15 minutes",
        duration_micros,
        "for how long objects that nothing needs any more stay, for readers without a hold",
    ),
    "strategy": Property(
        "size-ratio", _one_of(STRATEGIES), "which parts of a leaf a compaction merges"
    ),
    "compaction_parts": Property("11", _count, "parts that one merge takes at most"),
    "split_rows": Property("8000000", _count, "rows above which a leaf is split"),
    "online": Property("true", _one_of(("false", "true")), "whether upkeep visits the table"),
}


def check_properties(properties: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """The properties as stored, ascending by name; UsageError for an unknown one or a bad value."""
    stored = {}
    for name, value in properties.items():
        known = PROPERTIES.get(name)
        if known is None:
            raise UsageError(
                f"there is no table property {name!r}; there are {', '.join(sorted(PROPERTIES))}"
            )
        text = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            known.check(text)
        except UsageError as error:
            raise UsageError(f"property {name}: {error}") from None
        stored[name] = text
    return tuple(sorted(stored.items()))


def property_of(version: TableVersion, name: str) -> str:
    """The table's value of the property, or its default."""
    return dict(version.properties).get(name, PROPERTIES[name].default)


def is_online(version: TableVersion) -> bool:
    """Whether upkeep visits the table where none is named."""
    return property_of(version, "online") == "true"
