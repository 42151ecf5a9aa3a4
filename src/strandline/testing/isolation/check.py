"""Whether what transactions saw and wrote is what their isolation promises.

A history says of each transaction when it began and ended, what it read and saw, what it wrote, and
its commit time. Every row says who wrote it, and the commit times are the order of versions, so
that nothing has to be guessed: a history is searched for what is not allowed, in one pass.

- all levels: no row of one that aborted or was not finished, or that its writer replaced (aborted
  and dirty reads); all reads are of one moment (fuzzy and fractured reads), which never goes back
  within a process; of two that read and then write a row, the later saw the earlier (lost update).
- "serializable": no cycle of dependencies (Adya): who wrote a version before or after another, who
  saw whose version, and who did not see what another changed in what it asked for, rows that were
  not there included (write skew, phantoms). What a snapshot did not see is no dependency.
- "strict serializable": the same with real time: what had ended when it began is before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from strandline.testing.isolation.dependencies import Dependencies
from strandline.testing.isolation.history import Did, Findings, Saw, Versions, Violation
from strandline.testing.isolation.moments import START, Limit, Moments, Reads

__all__ = ["violations"]


def violations(history: Iterable[Did]) -> list[Violation]:
    """What is wrong with a history; empty if nothing is."""
    found = Findings()
    versions = Versions(list(history))
    transactions = versions.all
    _check_times(transactions, found)
    reads = Reads(versions, found)
    moments = {
        name: moments
        for name, did in transactions.items()
        if (moments := _moments(did, reads, found)) is not None
    }
    _check_monotonic(transactions, moments, found)
    moment = {name: _moment(transactions[name], seen) for name, seen in moments.items()}
    dependencies = Dependencies(versions, moment, found)
    for name in moments:
        dependencies.check_lost_updates(transactions[name])
    dependencies.check_cycles()
    return found


def _moments(did: Did, reads: Reads, found: Findings) -> Moments | None:
    """The moments that its reads may be of; said if the one that it is said to have is not."""
    moments = reads.moments(did)
    if moments is None or did.at is None or did.at in moments:
        return moments
    if any(isinstance(step, Saw) for step in did.steps):
        found.say(
            "wrong moment",
            f"{did.name} is said to have read at {did.at}, and saw what was there from "
            f"{moments.first.time} to {moments.last}",
            did.name,
        )
    return moments


def _moment(did: Did, moments: Moments) -> int:
    """The one that its reads are taken to be of."""
    return did.at if did.at is not None and did.at in moments else moments.last


def _check_times(transactions: Mapping[str, Did], found: Findings) -> None:
    taken: dict[int, str] = {}
    for did in transactions.values():
        if did.counts and did.time is not None and did.writes:
            other = taken.setdefault(did.time, did.name)
            if other != did.name:
                found.say(
                    "one time",
                    f"{other} and {did.name} both have the time {did.time}",
                    *(other, did.name),
                )


def _check_monotonic(
    transactions: Mapping[str, Did], moments: Mapping[str, Moments], found: Findings
) -> None:
    """Whoever saw or wrote something never sees an earlier moment with the same handle."""
    processes: dict[str, list[Did]] = defaultdict(list)
    for did in transactions.values():
        processes[did.process].append(did)
    for several in processes.values():
        known = START
        for did in sorted(several, key=lambda did: did.begin):
            seen = moments.get(did.name)
            if seen is None:
                continue
            if seen.last < known.time:
                found.say(
                    "non-monotonic read",
                    f"{did.name} saw nothing later than {seen.last}, after {known.by} of the "
                    f"same process {known.what} {known.time}",
                    *(did.name, known.by),
                )
            reached = [known, Limit(seen.first.time, did.name, "saw what was written at")]
            if did.counts and did.time is not None and did.writes:
                reached.append(Limit(did.time, did.name, "committed at"))
            known = max(reached, key=lambda limit: limit.time)
