"""A world in which the same calls store the same bytes: its clock stands still, ids are counted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, TypeVar
from unittest.mock import patch

from strandline.env import Env, RealEnv, Worker
from strandline.location.local.blob import FileBlob

__all__ = ["BEGIN", "World"]

A = TypeVar("A")
B = TypeVar("B")

BEGIN = 1_767_225_600_000_000
"""2026-01-01 00:00 UTC, in µs."""


class World:
    """An `Env` whose clock moves when it is told to, and a little at each look."""

    def __init__(self) -> None:
        self._passed = 0
        self._ahead = 0
        self._drawn = 0
        self._real = RealEnv()

    def wait(self, seconds: float) -> None:
        """Time passes, on all clocks."""
        # Rounded up: a pause of less than a microsecond must not last for ever.
        self._passed += int(seconds * 1_000_000) + 1

    def set_wall_clock(self, *, ahead: float) -> None:
        """The machine's wall clock, and the location's, show so many seconds more."""
        self._ahead = int(ahead * 1_000_000)

    def now_micros(self) -> int:
        self._passed += 1
        return BEGIN + self._passed + self._ahead

    def monotonic(self) -> float:
        return self._passed / 1_000_000

    def sleep(self, seconds: float) -> None:
        self.wait(seconds)

    def random(self) -> float:
        return 0.5

    def token_hex(self, nbytes: int) -> str:
        self._drawn += 1
        return hashlib.sha256(f"drawn {self._drawn}".encode()).hexdigest()[: 2 * nbytes]

    def parallel(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        return [function(item) for item in items]

    def stream(self, function: Callable[[A], B], items: Iterable[A], *, ahead: int) -> Iterator[B]:
        yield from map(function, items)

    def interruptible(
        self, function: Callable[[], B], stop: Callable[[], None], *, seconds: float
    ) -> B:
        return function()

    def start_worker(self, name: str, function: Callable[[], None]) -> Worker:
        return self._real.start_worker(name, function)

    def process_id(self) -> int:
        return 1

    def boot_id(self) -> str:
        return ""

    def cache_dir(self) -> Path | None:
        return None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What is opened inside is in this world, and its files get this world's times."""
        world = self

        class Blob(FileBlob):
            def __init__(self, root: str | os.PathLike[str], env: Env) -> None:
                super().__init__(root, world)
                self._path_of = Path(root)

            @contextmanager
            def upload(self, key: str, *, timeout: float) -> Iterator[BinaryIO]:
                with super().upload(key, timeout=timeout) as sink:
                    yield sink
                now = world.now_micros() * 1_000
                os.utime(self._path_of / key, ns=(now, now))

        with ExitStack() as stack:
            for name in ("connect", "shard.alone.shard", "txn.alone.handle"):
                module = import_module(f"strandline.{name}")
                stack.enter_context(patch.object(module, "RealEnv", lambda: world))
            stack.enter_context(patch.object(import_module("strandline.connect"), "FileBlob", Blob))
            yield
