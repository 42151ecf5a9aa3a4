"""A session that asked to be ended is ended, however its request was answered."""

from __future__ import annotations

from strandline.settings import Settings
from tests.support.shards import SHARD, Place, create, texts, write


def test_a_close_that_was_truncated_past_before_its_answer_came_is_done() -> None:
    # The session is gone then, because closing removed it; that went for an unknown outcome.
    place = Place(Settings(background=False, rollup_every_records=4))
    machine, rival = place.machine(), place.machine()
    create(machine)
    rival.look()

    def others_go_on() -> None:
        slot = place.log[-1].seqno
        for number in range(12):
            write(rival, b"%d" % number)
        rollup = rival.records(place.log[-1].seqno)[0].rollup
        assert rollup is not None
        assert rollup.seqno > slot
        place.consensus.truncate(SHARD, rollup.seqno, timeout=1)

    place.consensus.plan = ["done"]
    place.consensus.before_scan = [others_go_on]
    machine.close()
    assert rival.look().state.sessions.get((machine.session,)) is None
    assert len(texts(rival.state)) == 12
