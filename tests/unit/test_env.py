"""What the machine's own environment promises."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest

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


def test_a_worker_runs_in_so_many_seconds_or_sooner_if_asked_again() -> None:
    runs: SimpleQueue[int] = SimpleQueue()
    worker = RealEnv().start_worker("worker", lambda: runs.put(1))
    worker.wake(after=3600)
    assert runs.empty()
    worker.wake(after=0.01)
    assert runs.get(timeout=60)
    worker.wake(after=3600)
    worker.wake()
    assert runs.get(timeout=60)
    worker.wake(after=3600)
    worker.stop()  # waits for nothing
    assert runs.empty()


def test_processes_of_one_machine_agree_on_its_boot() -> None:
    here = RealEnv().boot_id()
    script = "from strandline.env import RealEnv; print(RealEnv().boot_id())"
    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == here


def test_what_may_be_lost_is_kept_where_the_user_keeps_such_things(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert RealEnv().cache_dir() == tmp_path / "strandline"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert RealEnv().cache_dir() == tmp_path / "home" / ".cache" / "strandline"


def test_an_env_that_nobody_has_any_more_leaves_no_threads() -> None:
    before = set(threading.enumerate())
    for _ in range(5):
        assert RealEnv(threads=4).parallel(str, range(4)) == ["0", "1", "2", "3"]
    gc.collect()
    deadline = time.monotonic() + 120
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, "threads of pools that are gone"
        time.sleep(0.01)


def test_what_is_interruptible_is_stopped_until_it_ends() -> None:
    stops = []
    ended = threading.Event()

    def stop() -> None:
        stops.append(1)
        if len(stops) == 3:  # the first comes before it has begun, for all that is known
            ended.set()

    assert RealEnv().interruptible(lambda: ended.wait(60), stop, seconds=0.001) is True
    assert len(stops) >= 3


def test_what_is_interruptible_runs_on_the_same_thread_as_before() -> None:
    # DuckDB, which runs so, takes three times as long on a thread that is new.
    before = set(threading.enumerate())

    def used() -> set[threading.Thread]:
        env = RealEnv()

        def here() -> threading.Thread:
            return env.interruptible(threading.current_thread, gc.enable, seconds=60)

        helper = here()
        assert helper is not threading.current_thread()
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                env.interruptible(lambda: 1 // 0, gc.enable, seconds=60)
            assert here() is helper
        assert set(threading.enumerate()) - before == {helper}
        inner = env.interruptible(here, gc.enable, seconds=60)
        assert inner is not helper
        return {helper, inner}

    threads = used()
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert not threads & set(threading.enumerate())


def test_what_is_interruptible_lets_go_of_all_that_it_had() -> None:
    class Thing:
        pass

    env, thing = RealEnv(), Thing()
    gone = weakref.ref(thing)
    env.interruptible(partial(id, thing), gc.enable, seconds=60)
    del thing
    assert gone() is None


def test_what_is_interruptible_runs_in_a_process_that_was_forked() -> None:
    env = RealEnv()
    env.interruptible(gc.enable, gc.enable, seconds=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: there are threads
        child = os.fork()
    if not child:
        signal.alarm(30)
        os._exit(env.interruptible(lambda: 7, gc.enable, seconds=60))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_what_is_interruptible_gives_its_result_or_its_error_or_ctrl_c() -> None:
    env = RealEnv()
    stops: list[int] = []
    assert env.interruptible(lambda: 7, stops.clear, seconds=60) == 7
    with pytest.raises(ZeroDivisionError):
        env.interruptible(lambda: 1 // 0, stops.clear, seconds=60)

    main = threading.main_thread().ident
    assert main is not None
    ended = threading.Event()

    def pressed() -> bool:
        signal.pthread_kill(main, signal.SIGINT)
        return ended.wait(60)

    def stop() -> None:
        stops.append(1)
        if len(stops) == 1:
            signal.pthread_kill(main, signal.SIGINT)  # impatient
        ended.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            env.interruptible(pressed, stop, seconds=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()


def test_what_is_interruptible_is_stopped_by_whatever_a_signal_raises() -> None:
    main = threading.main_thread().ident
    assert main is not None
    ended = threading.Event()
    runs = []

    def raising(number: int, frame: object) -> None:
        raise RuntimeError("a signal of the program")

    def function() -> bool:
        runs.append(1)
        signal.pthread_kill(main, signal.SIGUSR1)
        return ended.wait(60)

    before = signal.signal(signal.SIGUSR1, raising)
    try:
        with pytest.raises(RuntimeError, match="a signal of the program"):
            RealEnv().interruptible(function, ended.set, seconds=60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended.is_set()
    assert runs == [1]


def test_what_is_interruptible_sees_the_context_of_the_caller() -> None:
    variable: ContextVar[int] = ContextVar("variable")
    variable.set(3)
    assert RealEnv().interruptible(variable.get, gc.enable, seconds=60) == 3
