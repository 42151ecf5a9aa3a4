"""A Spark session that is ready for Strandline, Java included."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from strandline.errors import UsageError
from strandline.pipeline.java import java_home

__all__ = ["session"]

MIB = 1024 * 1024

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties").as_uri()


def session(
    app_name: str = "strandline",
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the running Spark session, or start one.

    `config` is added to Strandline's own choices, and wins over them. A running session is the
    caller's, and is returned as it is, with the options of `config` set that can still be changed;
    UsageError names the one that differs and cannot be. UsageError also where there is no Java.
    """
    config = dict(config or {})
    running = _running_session()
    if running is not None:
        _change(running, config)
        return running
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in (default_config(master) | config).items():
        builder = builder.config(key, value)
    with _environment(_launch_environment(master)):
        return builder.getOrCreate()


def _running_session() -> SparkSession | None:
    """Return the thread's active session, else the process's, else None."""
    active = SparkSession.getActiveSession()
    # In a thread that has used no session yet there is none active, though the process has one.
    # A builder with options would set them on that one; a builder without leaves it alone.
    if active is None and SparkContext._active_spark_context is not None:  # noqa: SLF001  no public way
        active = SparkSession.builder.getOrCreate()
    return active


def default_config(master: str) -> dict[str, str]:
    """Strandline's choices for a session on that master."""
    config = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f'-Dlog4j2.configurationFile="{LOG_CONFIGURATION}"',
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        # Without it Spark reads damaged pages and returns what they decode to.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    }
    cores = local_cores(master)
    if cores is not None:
        config |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # The default of 200 is made for clusters; twice the cores evens out skew.
            "spark.sql.shuffle.partitions": str(2 * cores),
            # A local master's driver is its executor, too.
            "spark.driver.memory": f"{_driver_memory_mib()}m",
        }
    return config


def local_cores(master: str) -> int | None:
    """Cores that a local master uses, or None if the master is not local."""
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    threads = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,.*)?\])?", master)
    if threads is None:
        return None
    if threads[1] == "*":
        return _available_cores()
    return int(threads[1] or 1)


def _available_cores() -> int:
    # What the process may use, where the system can tell; containers often get less than all.
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _driver_memory_mib() -> int:
    """A quarter of the memory, from 1 to 4 GiB: Python workers need theirs beside it."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        total = 0
    return min(max(total // 4 // MIB, 1024), 4096)


def _launch_environment(master: str) -> dict[str, str]:
    """Environment variables that Spark reads while it starts."""
    variables = {"JAVA_HOME": str(java_home()), "PYSPARK_DRIVER_PYTHON": sys.executable}
    # Workers of a local master are this very Python; elsewhere its path may mean nothing.
    if local_cores(master) is not None:
        variables["PYSPARK_PYTHON"] = sys.executable
    return variables


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while: Spark has no other way to be told."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _change(running: SparkSession, config: Mapping[str, str]) -> None:
    """Set all of the options, or none and raise UsageError."""
    wanted = {k: v for k, v in config.items() if running.conf.get(k, None) != v}
    for key in wanted:
        if not running.conf.isModifiable(key):
            raise UsageError(
                f"{key} cannot be changed while a Spark session runs. "
                "Stop that session first (spark.stop()), or set the option where it is started."
            )
    for key, value in wanted.items():
        running.conf.set(key, value)
