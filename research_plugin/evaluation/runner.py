"""Runs a method over questions: every one once, across kills and restarts, and none scored that no one could answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from research_plugin.data.rows import Row
from research_plugin.errors import ModelError, SearchError
from research_plugin.records import RolloutRecord, parse_record
from research_plugin.resumable import JsonlLog, work_through

_FAULTS_IN_A_ROW = 20  # and at least one for each question under way: then nothing works any more


class RecordLog(JsonlLog):
    """The records of a run, one a question.

    Raises:
        ConfigError: another process has it open.
        DataError: a line is no record.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.records: dict[str, RolloutRecord] = {}
        """By question id."""
        try:
            for number, line in enumerate(self.lines, start=1):
                record = parse_record(line, f"{path}, line {number}")
                self.records.setdefault(record.id, record)
        except BaseException:
            self.close()
            raise

    def add(self, record: RolloutRecord) -> None:
        """Write down one record."""
        self.records[record.id] = record
        self.write(record.to_line())


async def answer_all(
    rows: Sequence[Row],
    attempt: Callable[[Row], Awaitable[RolloutRecord]],
    log: RecordLog,
    *,
    concurrency: int,
    on_done: Callable[[RolloutRecord | None], object] = lambda record: None,
) -> dict[str, str]:
    """Attempt every question that ``log`` has no record of.

    A fault of model server or retriever leaves its question without a record, for the next run. When nothing but faults
    comes back any more, the rest is not attempted. ``on_done`` is called with each record, and with None for a fault.

    Returns:
        The faults, by question id.
    """
    faults: dict[str, str] = {}
    in_a_row = 0

    async def answer(row: Row) -> None:
        nonlocal in_a_row
        if in_a_row >= max(_FAULTS_IN_A_ROW, concurrency):
            return
        try:
            record = await attempt(row)
        except (SearchError, ModelError) as error:
            faults[row["extra_info"]["id"]] = str(error)
            in_a_row += 1
            on_done(None)
            return
        in_a_row = 0
        log.add(record)
        on_done(record)

    await work_through([row for row in rows if row["extra_info"]["id"] not in log.records], answer, concurrency)
    return faults
