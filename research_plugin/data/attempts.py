"""Repeated attempts at questions until the first right one, with a log that a killed run goes on from."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from research_plugin.errors import DataError
from research_plugin.resumable import JsonlLog, refuse_other_settings, work_through


class AttemptLog(JsonlLog):
    """The settings in the first line, then one attempt a line.

    Raises:
        ConfigError: another process has it open, or it was begun with other settings.
        DataError: a line other than the last one cannot be read.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.tried: dict[str, int] = {}
        """Attempts made, by question id."""
        self.first_right: dict[str, int] = {}
        """Number, from 1, of the first right attempt, by question id."""
        super().__init__(path)
        try:
            self._read(json.loads(json.dumps(settings)))
        except BaseException:
            self.close()
            raise

    def decided(self, question: str, most: int) -> bool:
        """Tell whether a question needs no further attempt."""
        return question in self.first_right or self.tried.get(question, 0) >= most

    def add(self, question: str, right: bool, **facts: Any) -> None:
        """Write down one attempt."""
        self._count(question, right)
        line = {"id": question, "attempt": self.tried[question], "right": right, **facts}
        self.write(json.dumps(line, ensure_ascii=False))

    def _count(self, question: str, right: bool) -> None:
        self.tried[question] = self.tried.get(question, 0) + 1
        if right:
            self.first_right.setdefault(question, self.tried[question])

    def _read(self, settings: Mapping[str, Any]) -> None:
        if not self.lines:
            self.write(json.dumps({"settings": settings}, ensure_ascii=False))
        for number, line in enumerate(self.lines, start=1):
            try:
                record = json.loads(line)
                if number > 1:
                    self._count(record["id"], record["right"])
                else:
                    refuse_other_settings(self.path, record["settings"], settings)
            except (KeyError, TypeError, json.JSONDecodeError) as error:
                raise DataError(f"{self.path}, line {number}: {error!r}; remove the line to go on") from error


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

    async def decide(question: str) -> None:
        while not log.decided(question, most):
            log.add(question, **await attempt(question))
        on_decided()

    await work_through([question for question in questions if not log.decided(question, most)], decide, concurrency)
