"""The rollout record: one rollout as one line of JSONL, written by trainings and evaluations, read by every report.

Pure: values, and lines of text. Readers skip keys they do not know and fill in those that are missing, so that records
of another version, and lines of veRL's own dumps once turned into records, can be read alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
        values: Mapping[str, Any] = json.loads(line)
        record = RolloutRecord(**{key: value for key, value in values.items() if key in _KNOWN})
        record.segments = [(str(text), bool(by_policy)) for text, by_policy in record.segments]
        if record.tokens is not None:
            record.tokens = Tokens(**values["tokens"])
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{where} is no rollout record: {error}") from error
    return record
