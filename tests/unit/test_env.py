"""What the machine's own environment promises."""

from __future__ import annotations

from strandline.env import RealEnv


def test_work_side_by_side_may_itself_work_side_by_side() -> None:
    env = RealEnv(threads=2)

    def inner(number: int) -> int:
        return sum(env.parallel(lambda n: n, range(number)))

    def streamed(number: int) -> int:
        return sum(env.stream(lambda n: n, range(number), ahead=2))

    # More at once than there are threads: each waits for others if they share the pool blindly.
    assert env.parallel(inner, [3] * 8) == [3] * 8
    assert env.parallel(streamed, [4] * 8) == [6] * 8
    assert list(env.stream(inner, [3] * 8, ahead=4)) == [3] * 8
