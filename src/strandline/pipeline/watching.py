"""Follows a Spark job while it runs: tells of its progress, and ends it at the deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from rich.progress import Progress as Bar

from strandline.env import Deadline, Env
from strandline.errors import DeadlineExceeded

__all__ = ["Progress", "progress_of", "watched"]

Progress = Callable[[str, int, int], None]
"""Told (what is being done, tasks done, tasks in all)."""

_LOOK_SECONDS = 0.05


@contextmanager
def progress_of(
    progress: Progress | bool | None,  # noqa: FBT001  as users pass it
) -> Iterator[Progress]:
    """What to tell: a caller's function, nobody, or with True a bar on the terminal."""
    if not isinstance(progress, bool):
        yield progress or _to_nobody
    elif not progress:
        yield _to_nobody
    else:
        with Bar() as bar:
            tasks: dict[str, Any] = {}

            def show(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bar.add_task(what)
                bar.update(tasks[what], completed=done, total=total)

            yield show


def _to_nobody(what: str, done: int, total: int) -> None:
    """Ignores it."""


@contextmanager
def watched(
    spark: SparkSession, env: Env, what: str, progress: Progress, deadline: Deadline
) -> Iterator[None]:
    """Runs its body, which starts Spark jobs in this thread, and tells of their tasks meanwhile.

    Raises `DeadlineExceeded` if the jobs had to be ended. What they did is then for nothing.
    """
    context = getattr(spark, "_sc", None)
    if context is None:  # Spark Connect tells nothing of its tasks
        yield
        return
    group = f"strandline-{env.token_hex(8)}"
    ended = late = False
    failed: list[Exception] = []

    def look() -> None:
        while not ended and not failed:
            try:
                look_once()
            except Exception as error:  # noqa: BLE001  raised when the jobs have ended
                failed.append(error)
            env.sleep(_LOOK_SECONDS)

    def look_once() -> None:
        nonlocal late
        _tell(context.statusTracker(), group, what, progress)
        if deadline.remaining() <= 0 and not late:
            late = True
            context.cancelJobGroup(group)

    before = context.getLocalProperty("spark.jobGroup.id")
    context.setJobGroup(group, f"strandline: {what}", interruptOnCancel=True)
    watcher = env.start_worker("strandline-spark", look)
    watcher.wake()
    try:
        yield
    except Exception as error:
        if late:
            raise DeadlineExceeded(
                f"{what} did not end in time and was ended; pass a larger timeout= to wait longer",
                may_have_happened=False,
            ) from error
        raise
    finally:
        ended = True
        watcher.stop()
        context.setLocalProperty("spark.jobGroup.id", before)
        context.setLocalProperty("spark.job.description", None)
    if failed:
        raise failed[0]
    progress(what, 1, 1)


def _tell(tracker: Any, group: str, what: str, progress: Progress) -> None:
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage_id in info.stageIds if info else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
    if total:
        progress(what, done, total)
