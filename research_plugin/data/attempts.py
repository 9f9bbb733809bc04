"""Repeated attempts at questions until the first right one, with a log that a killed run goes on from."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from research_plugin.errors import ConfigError, DataError


class AttemptLog:
    """Append-only JSONL: the settings in the first line, then one attempt a line. A context manager.

    A torn last line (the run was killed while it wrote) is cut off; one process at a time may have the log open.

    Raises:
        ConfigError: another process has it open, or it was begun with other settings.
        DataError: a line other than the last one cannot be read.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.tried: dict[str, int] = {}
        """Attempts made, by question id."""
        self.first_right: dict[str, int] = {}
        """Number, from 1, of the first right attempt, by question id."""
        self._file = path.open("a+b")
        try:
            self._lock()
            self._read(json.loads(json.dumps(settings)))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> AttemptLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def decided(self, question: str, most: int) -> bool:
        """Tell whether a question needs no further attempt."""
        return question in self.first_right or self.tried.get(question, 0) >= most

    def add(self, question: str, right: bool, **facts: Any) -> None:
        """Write down one attempt."""
        self._count(question, right)
        self._write({"id": question, "attempt": self.tried[question], "right": right, **facts})

    def _count(self, question: str, right: bool) -> None:
        self.tried[question] = self.tried.get(question, 0) + 1
        if right:
            self.first_right.setdefault(question, self.tried[question])

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        self._file.flush()

    def _lock(self) -> None:
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.path} is written by another process; wait for it, or choose another --out"
            ) from None

    def _read(self, settings: Mapping[str, Any]) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        os.truncate(self._file.fileno(), whole)
        first, *lines = content[:whole].splitlines() or [b""]
        if not first:
            self._write({"settings": settings})
            return
        for number, line in enumerate([first, *lines], start=1):
            try:
                record = json.loads(line)
                if number > 1:
                    self._count(record["id"], record["right"])
                elif record["settings"] != settings:
                    raise ConfigError(_differences(self.path, record["settings"], settings))
            except (KeyError, TypeError, json.JSONDecodeError) as error:
                raise DataError(f"{self.path}, line {number}: {error!r}; remove the line to go on") from error


def _differences(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    changed = [f"{key}: {old.get(key)!r} there, {new.get(key)!r} now" for key in keys]
    return f"{path} was begun with other settings ({'; '.join(changed)}); use those, or choose another --out"


async def sample_until_right(
    questions: Sequence[str],
    attempt: Callable[[str], Awaitable[Mapping[str, Any]]],
    log: AttemptLog,
    *,
    most: int,
    concurrency: int,
    on_decided: Callable[[], object] = lambda: None,
) -> None:
    """Attempt every undecided question, one attempt after another, until one is right or ``most`` are made.

    Args:
        questions: Their ids; ``concurrency`` of them are worked on at a time.
        attempt: Makes one, for a question's id, and returns what `AttemptLog.add` takes. An error ends everything; what
            was finished by then is in the log.
    """
    waiting = iter([question for question in questions if not log.decided(question, most)])

    async def work() -> None:
        for question in waiting:
            while not log.decided(question, most):
                log.add(question, **await attempt(question))
            on_decided()

    workers = [asyncio.ensure_future(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
