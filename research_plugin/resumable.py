"""Long work that a kill cannot spoil: files that appear whole or are only appended to, workers that stop together."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from research_plugin.errors import ConfigError

Self = TypeVar("Self", bound="JsonlLog")
T = TypeVar("T")


class JsonlLog:
    """Lines that one process at a time appends to a file. A context manager.

    A torn last line (the run was killed while it wrote) is cut off when the file is opened.

    Attributes:
        lines: What stood in the file when it was opened, without line ends.

    Raises:
        ConfigError: another process has the file open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a+b")
        try:
            self._lock()
        except BaseException:
            self._file.close()
            raise
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        os.truncate(self._file.fileno(), whole)
        self.lines = content[:whole].splitlines()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; another process may then have it."""
        self._file.close()

    def write(self, line: str) -> None:
        """Append one line, at once on disk as far as the operating system is concerned."""
        self._file.write(line.encode("utf-8", "replace") + b"\n")
        self._file.flush()

    def _lock(self) -> None:
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.path} is written by another process; wait for it, or choose another --out"
            ) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a place to write to that becomes ``path`` at the end of the block, and is removed if that is an error."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file for people to read, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8", "backslashreplace")


def refuse_other_settings(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise ConfigError, with every difference, unless ``new`` equals what ``path`` was begun with."""
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if keys:
        changed = "; ".join(f"{key}: {old.get(key)!r} there, {new.get(key)!r} now" for key in keys)
        raise ConfigError(f"{path} was begun with other settings ({changed}); use those, or choose another --out")


async def work_through(items: Iterable[T], work: Callable[[T], Awaitable[object]], concurrency: int) -> None:
    """Await ``work`` for every item, ``concurrency`` at a time; an error ends all of it."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    workers = [asyncio.ensure_future(worker()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
