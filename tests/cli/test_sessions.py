"""`strandline sessions`: who is there, and how an operator lets go of those who are not."""

from __future__ import annotations

import strandline as sl
from tests.cli.helpers import Run


def test_the_sessions_of_a_worker_are_listed_and_forced_to_end(lake: Run) -> None:
    with sl.connect("lake") as db:
        lease = db.table("readings").attach("worker-1")
        rows = lake("sessions", "--output", "json").json
        (mine,) = [row for row in rows if row["session"] == lease.session]
        assert (mine["worker"], mine["state"], mine["holds"]) == ("worker-1", "open", ["readings"])
        with sl.connect("lake") as other, other.table("readings").attach("worker-2"):
            done = lake("sessions", "--force-ack", lease.session, "--yes", "--output", "json").json
            assert done == [{"acknowledged": lease.session}]
            rows = lake("sessions", "--output", "json").json
            states = {row["session"]: row["state"] for row in rows}
            assert states[lease.session] == "acknowledged"
            said = lake("sessions", "--force-ack-worker", "worker-2", "--yes", "--output", "json")
            done = said.json
            assert len(done) == 1
        lease.release()


def test_what_is_not_there_cannot_be_acknowledged(lake: Run) -> None:
    said = lake("sessions", "--force-ack", "w0123456789abcdef", "--yes", status=2)
    assert "there is no session" in said.err
    said = lake("sessions", "--force-ack", "a", "--force-ack-worker", "b", status=2)
    assert "not both" in said.err
