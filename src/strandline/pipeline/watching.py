"""Follows a Spark job while it runs: tells of its progress, and ends it at the deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark import SparkContext, StatusTracker
from pyspark.sql import SparkSession
from rich.progress import Progress as Bar
from rich.progress import TaskID

from strandline.env import Deadline, Env, RealEnv
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
            tasks: dict[str, TaskID] = {}

            def show(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bar.add_task(what)
                bar.update(tasks[what], completed=done, total=total)

            yield show


def _to_nobody(what: str, done: int, total: int) -> None:
    """Ignores it."""


@contextmanager
def watched(
    spark: SparkSession, what: str, progress: Progress, deadline: Deadline
) -> Iterator[None]:
    """Runs its body, which starts Spark jobs in this thread, and tells of their tasks meanwhile.

    Raises `DeadlineExceeded` if the jobs had to be ended. What they did is then for nothing.
    """
    context = getattr(spark, "_sc", None)
    if context is None:  # Spark Connect tells nothing of its tasks
        yield
        return
    env = RealEnv()
    look = _Look(context, f"strandline-{env.token_hex(8)}", what, progress, deadline)
    before = context.getLocalProperty("spark.jobGroup.id")
    context.setJobGroup(look.group, f"strandline: {what}", interruptOnCancel=True)
    watcher = env.start_worker("strandline-spark", lambda: look.until_ended(env))
    watcher.wake()
    try:
        yield
    except Exception as error:
        if look.late:
            raise DeadlineExceeded(
                f"{what} did not end in time and was ended; pass a larger timeout= to wait longer",
                may_have_happened=False,
            ) from error
        raise
    finally:
        look.ended = True
        watcher.stop()
        context.setLocalProperty("spark.jobGroup.id", before)
        context.setLocalProperty("spark.job.description", None)
    if look.failed is not None:
        raise look.failed
    progress(what, 1, 1)


@dataclass
class _Look:
    """Looks at a group of Spark jobs, again and again."""

    context: SparkContext
    group: str
    what: str
    progress: Progress
    deadline: Deadline
    ended: bool = False
    """Whether the jobs have ended."""
    late: bool = False
    """Whether they were ended, at the deadline."""
    failed: Exception | None = None
    """An error of looking, or of the caller's function; raised when the jobs have ended."""

    def until_ended(self, env: Env) -> None:
        while not self.ended and self.failed is None:
            try:
                self._once()
            except Exception as error:  # noqa: BLE001  raised when the jobs have ended
                self.failed = error
            env.sleep(_LOOK_SECONDS)

    def _once(self) -> None:
        _tell(self.context.statusTracker(), self.group, self.what, self.progress)
        if self.deadline.remaining() <= 0:
            self.late = True
            # Each time: jobs that start after a first one are ended by the next.
            self.context.cancelJobGroup(self.group)


def _tell(tracker: StatusTracker, group: str, what: str, progress: Progress) -> None:
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
