"""Turns lines of veRL's own rollout dumps into rollout records.

``trainer.rollout_data_dir`` and ``validation_data_dir`` hold one file a step; a line has input, output, gts, score,
step and whatever the reward returned. Who wrote what, and what the dump left out, is read from the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

from research_plugin.errors import DataError
from research_plugin.protocol import DIALECTS, RESEARCH, Dialect, parse_query, parse_response
from research_plugin.records import RolloutRecord
from research_plugin.rewards import METHODS, compute_score, golden_answers

_METHOD_OF = {method.dialect.name: name for name, method in METHODS.items()}
_USER_TURN = re.compile(r"\buser\n(.*?)\n*assistant\s*(?:<think>)?\s*\Z", re.DOTALL)
_TEXTS = {"input", "output", "gts", "step", "uid", "pred", "reason"}


def record_of_dump(values: Mapping[str, Any], split: str) -> RolloutRecord:
    """Return one line of a dump as a record; numbers that it lacks are computed again, its score is kept."""
    text = str(values["output"])
    dialect = _dialect_of(text)
    golden: list[str] = []
    with suppress(DataError):  # a row without a golden answer
        golden = list(golden_answers(values.get("gts")))
    given = {key: float(value) for key, value in values.items() if key not in _TEXTS and _is_number(value)}
    judged: dict[str, Any] = {}
    if golden:
        judged = compute_score("dump", text, golden, method=_METHOD_OF.get(dialect.name, "research"))
    numbers = {key: float(value) for key, value in judged.items() if not isinstance(value, str)}
    segments = [(segment.text, segment.by_policy) for segment in parse_response(text, dialect)]
    followed = [turn[0] for turn, after in pairwise(segments) if turn[1] and not after[1]]
    prompt = str(values.get("input", ""))
    asked = _USER_TURN.search(prompt)
    # veRL's key of a rollout: its group, its number in the group, the turn.
    group, session = [*str(values.get("uid", "")).rsplit("_", 2), "", ""][:2]
    return RolloutRecord(
        question=asked.group(1).strip() if asked else prompt.strip(),
        golden_answers=golden,
        segments=segments,
        step=int(values.get("step", 0)),
        split=split,
        uid=group,
        session=int(session) if session.isdecimal() else 0,
        prompt=prompt,
        queries=[parse_query(turn, dialect) or "" for turn in followed],
        scores={**numbers, **given},
        pred=str(values.get("pred", judged.get("pred", ""))),
        reason=str(values.get("reason", judged.get("reason", ""))),
        stop_reason=str(values.get("stop_reason", "")),
    )


def _dialect_of(text: str) -> Dialect:
    fitting = [known for known in DIALECTS.values() if known.search_open in text]
    return next((known for known in fitting if known.result_open in text), (fitting or [RESEARCH])[0])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
