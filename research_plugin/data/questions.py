"""Questions and golden answers out of JSONL files, under any of the field names that question-answering data has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research_plugin.data.rows import Row, make_row
from research_plugin.errors import DataError
from research_plugin.rewards import golden_answers

QUESTION_FIELDS = ("question", "query", "problem", "prompt")
ANSWER_FIELDS = ("golden_answers", "answers", "ground_truth", "reward_model", "target", "answer")
_SHOWN = 5  # broken lines in one error


def read_rows(path: Path, data_source: str, split: str) -> list[Row]:
    """Read a JSONL file as rows; a row's index is its place in the file, blank lines aside.

    Raises:
        DataError: the file cannot be read, is empty, or lines of it are broken; the first ones are named by number.
    """
    rows: list[Row] = []
    problems: list[str] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    rows.append(_row(line, data_source, split, len(rows) + len(problems)))
                except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, and DataError
                    problems.append(f"{path}:{number}: {error}")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}; give a JSONL file of questions") from error
    if problems:
        more = f"\n... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise DataError(f"broken lines; mend or drop them:\n{chr(10).join(problems[:_SHOWN])}{more}")
    if not rows:
        raise DataError(f"{path} holds no question; one JSON object a line is needed")
    return rows


def _row(line: bytes, data_source: str, split: str, index: int) -> Row:
    values = json.loads(line)
    if not isinstance(values, dict):
        raise DataError(f"a JSON object is needed, here is {line.decode()[:80]!r}")
    return make_row(data_source, split, index, question_of(values), answers_of(values))


def question_of(values: Mapping[str, Any]) -> str:
    """Return the question of a JSON object: a string, or the last user message of a list of messages.

    Raises:
        DataError: it has none.
    """
    found = _first(values, QUESTION_FIELDS)
    if isinstance(found, list):
        texts = [
            str(item.get("content", "")) for item in found if isinstance(item, dict) and item.get("role") == "user"
        ]
        found = texts[-1] if texts else None
    if not isinstance(found, str) or not found.strip():
        raise DataError(f"no question; fields: {', '.join(values)}; one of {', '.join(QUESTION_FIELDS)} must hold it")
    return found


def answers_of(values: Mapping[str, Any]) -> list[str]:
    """Return the golden answers of a JSON object, each once; MuSiQue's ``answer_aliases`` are among them.

    Raises:
        DataError: it has none that is not blank.
    """
    found = _first(values, ANSWER_FIELDS)
    if isinstance(found, dict) and "ground_truth" in found:
        found = found["ground_truth"]
    if found is None:
        raise DataError(f"no golden answer; fields: {', '.join(values)}; allowed: {', '.join(ANSWER_FIELDS)}")
    return list(dict.fromkeys(golden_answers([found, values.get("answer_aliases")], "the line")))


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) not in (None, "", [])), None)
