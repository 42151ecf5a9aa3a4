"""Many real threads or processes at one thing at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

__all__ = ["in_processes", "side_by_side"]

T = TypeVar("T")


def side_by_side(functions: Sequence[Callable[[], T]]) -> list[T]:
    """What the functions return, each run on a thread of its own and all let go at one moment."""
    gate = threading.Barrier(len(functions))

    def run(function: Callable[[], T]) -> T:
        gate.wait(timeout=300)
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


def in_processes(functions: Sequence[Callable[[], T]]) -> list[T]:
    """What the functions return, each run in a fresh process. They have to be picklable."""
    with ProcessPoolExecutor(len(functions), mp_context=get_context("spawn")) as pool:
        return [future.result() for future in [pool.submit(f) for f in functions]]
