"""The rollout record: one rollout as one line of JSONL, written by trainings and evaluations, read by every report.

Pure: values, and lines of text. Readers skip keys they do not know and fill in those that are missing, so that records
of another version, and lines of veRL's own dumps once turned into records, can be read alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from research_plugin.errors import DataError

__all__ = ["RolloutRecord", "Tokens", "parse_record"]


@dataclass(slots=True)
class Tokens:
    """The response token by token; the lists have equal length.

    Attributes:
        texts: What each token reads as, by itself.
        mask: response_mask: 1 where the policy wrote the token, which is where it was trained on; 0 on observations.
        log_probs: Natural log of the probability it was sampled with, by the engine or else the trainer; 0.0 on
            observations; None where nobody kept it.
    """

    texts: list[str]
    mask: list[int]
    log_probs: list[float] | None = None

    def __post_init__(self) -> None:
        """Refuse lists that do not belong together."""
        lengths = {len(self.texts), len(self.mask), len(self.texts if self.log_probs is None else self.log_probs)}
        if len(lengths) > 1:
            raise DataError(f"tokens: texts, mask and log_probs have lengths {sorted(lengths)}; they must be equal")


@dataclass(slots=True)
class RolloutRecord:
    """One rollout.

    Attributes:
        step: Training step; 0 in an evaluation and in a validation before training.
        split: "train", "val" or "eval".
        uid: What the rollouts of one question's group share.
        session: Number of the rollout within its group, from 0.
        id: The dataset row's id.
        method: Whose rules scored it: the evaluation's method, or the reward of a training.
        prompt: The prompt's text in a training; its style in an evaluation, with ":FILE" behind it for one's own.
        segments: The response in order as [text, who]; who is True for the policy and False for an observation.
        queries: What was searched for, in order.
        documents: For each query the documents that came back, best first, as {"id", "contents"}.
        scores: The numbers of `compute_score`: score, f1, em, cem, format_ok, num_searches, answered, truncated.
        pred: The extracted answer.
        reason: Why the score is what it is.
        stop_reason: A `StopReason` value.
        metrics: Further numbers (`metrics.rollout_metrics`, seconds, tokens).
        advantage: GRPO's advantage of the rollout, None where there is none.
        tokens: None unless they were recorded.
    """

    question: str
    golden_answers: list[str]
    segments: list[tuple[str, bool]]
    step: int = 0
    split: str = "eval"
    uid: str = ""
    session: int = 0
    id: str = ""
    data_source: str = ""
    method: str = ""
    prompt: str = ""
    queries: list[str] = field(default_factory=list)
    documents: list[list[dict[str, str]]] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    pred: str = ""
    reason: str = ""
    stop_reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    advantage: float | None = None
    tokens: Tokens | None = None

    @property
    def response(self) -> str:
        """The whole response as text, observations included."""
        return "".join(text for text, _ in self.segments)

    def to_line(self) -> str:
        """Return the record as one line of JSON without its end; text that is no valid Unicode is replaced."""
        # Not asdict, which copies every token.
        record = {name: getattr(self, name) for name in _KNOWN}
        record |= {"tokens": None if self.tokens is None else _shallow(self.tokens), "response": self.response}
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        return line.encode("utf-8", "replace").decode("utf-8")


_KNOWN = tuple(known.name for known in fields(RolloutRecord))


def _shallow(tokens: Tokens) -> dict[str, Any]:
    return {known.name: getattr(tokens, known.name) for known in fields(tokens)}


def parse_record(line: str | bytes, where: str = "record") -> RolloutRecord:
    """Read one line.

    Args:
        where: What to call the line in an error, such as its file and number.

    Raises:
        DataError: it is no record.
    """
    try:
        values = json.loads(line)
        known = {name: values[name] for name in _KNOWN if values.get(name) is not None}
        return RolloutRecord(**{name: _READ[name](value) for name, value in known.items()})
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as error:
        raise DataError(f"{where} is no rollout record: {error}") from error


def _text(value: Any) -> str:
    return "" if value is None else str(value).encode("utf-8", "replace").decode("utf-8")


def _texts(values: Any) -> list[str]:
    return [_text(value) for value in ([values] if isinstance(values, str) else values) if value is not None]


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None}


def _segments(values: list[Any]) -> list[tuple[str, bool]]:
    return [(_text(text), bool(by_policy)) for text, by_policy in values]


def _documents(values: list[Any]) -> list[list[dict[str, str]]]:
    return [[{key: _text(each.get(key)) for key in ("id", "contents")} for each in found] for found in values]


def _tokens(values: Mapping[str, Any]) -> Tokens:
    logs = values.get("log_probs")
    return Tokens(
        texts=[str(text) for text in values["texts"]],
        mask=[int(own) for own in values["mask"]],
        log_probs=None if logs is None else [math.nan if log is None else float(log) for log in logs],
    )


_READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_KNOWN, _text),
    **dict.fromkeys(("step", "session"), int),
    **dict.fromkeys(("golden_answers", "queries"), _texts),
    **dict.fromkeys(("scores", "metrics"), _numbers),
    "advantage": float,
    "documents": _documents,
    "segments": _segments,
    "tokens": _tokens,
}
"""How the value of each key is read: readers may rely on the types of `RolloutRecord`, whoever wrote the line."""
