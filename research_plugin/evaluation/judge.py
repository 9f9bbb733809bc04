"""An LLM as the judge of answers: what it is asked, and its replies, which stay in a run's ``judge.jsonl``.

A reply is filed under model and prompt, which holds question, right answers and answer, so nothing is asked twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from research_plugin.errors import DataError, ModelError
from research_plugin.evaluation.aggregate import aggregate
from research_plugin.evaluation.prompts import fill
from research_plugin.evaluation.verdict import read_verdict
from research_plugin.records import RolloutRecord
from research_plugin.resumable import JsonlLog, work_through
from research_plugin.served.model import ServedModel

__all__ = ["Replies", "ask_judge", "judge_prompt", "summarise", "summarise_judged"]

_FILE = "judge.jsonl"
_MOST_FAILURES = 10


def judge_prompt(record: RolloutRecord) -> str:
    """Return what the judge is asked about a record; "" where there is no answer to ask about."""
    if not record.pred.strip():
        return ""
    golden = json.dumps(record.golden_answers, ensure_ascii=False)
    return fill("judge", question=record.question, golden=golden, answer=record.pred)


class Replies(JsonlLog):
    """The replies of judges to one run, a line each.

    Raises:
        ConfigError: another process judges this run.
        DataError: a line is no reply.
    """

    def __init__(self, run: Path) -> None:
        super().__init__(run / _FILE)
        self.model = ""
        """The judge of the last reply."""
        self._known: dict[str, str] = {}
        for number, line in enumerate(self.lines, start=1):
            try:
                reply = json.loads(line)
                self._known[reply["key"]], self.model = reply["reply"], reply["model"]
            except (ValueError, TypeError, KeyError) as error:
                self.close()
                raise DataError(f"{self.path}, line {number}: {error!r}; remove the line to go on") from error

    def get(self, model: str, prompt: str) -> str | None:
        """Return a kept reply."""
        return self._known.get(_key(model, prompt))

    def add(self, model: str, prompt: str, reply: str) -> None:
        """Keep a reply."""
        key = _key(model, prompt)
        self._known[key], self.model = reply, model
        self.write(json.dumps({"key": key, "model": model, "reply": reply}, ensure_ascii=False))


def summarise(run: Path, records: Sequence[RolloutRecord]) -> dict[str, Any]:
    """Return `aggregate` of a run's records, with the verdicts of the judge that was asked last, if there is one."""
    if not (run / _FILE).exists():
        return aggregate(records)
    with Replies(run) as replies:
        return summarise_judged(records, replies, replies.model)


def summarise_judged(records: Sequence[RolloutRecord], replies: Replies, judge: str) -> dict[str, Any]:
    """Return `aggregate` of records and of what the model ``judge`` says of them.

    No answer is wrong without being asked about.
    """
    verdicts: dict[str, bool | None] = {}
    for record in records:
        prompt = judge_prompt(record)
        reply = replies.get(judge, prompt)
        if not prompt:
            verdicts[record.id] = False
        elif reply is not None:
            verdicts[record.id] = read_verdict(reply)
    return {**aggregate(records, verdicts), "judge_model": judge}


async def ask_judge(
    server: ServedModel,
    prompts: Sequence[str],
    keep: Callable[[str, str], object],
    *,
    max_tokens: int,
    concurrency: int,
    on_done: Callable[[], object] = lambda: None,
) -> list[Exception]:
    """Ask the judge every prompt and hand each (prompt, reply) to ``keep``; return the errors of failed requests.

    Raises:
        ModelError: ten requests in a row failed; what was answered by then is kept.
    """
    failures: list[Exception] = []
    in_a_row = 0

    async def ask(prompt: str) -> None:
        nonlocal in_a_row
        request = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": max_tokens}
        try:
            answer = await server.ask("chat/completions", request)
            keep(prompt, str(answer["choices"][0]["message"]["content"] or ""))
            in_a_row = 0
        except (ModelError, LookupError, TypeError) as error:
            failures.append(error)
            in_a_row += 1
            if in_a_row >= _MOST_FAILURES:
                raise ModelError(f"{in_a_row} requests to the judge failed in a row: {error!r}") from error
        on_done()

    await work_through(prompts, ask, concurrency)
    return failures


def _key(model: str, prompt: str) -> str:
    return hashlib.sha256(json.dumps([model, prompt]).encode()).hexdigest()[:32]
