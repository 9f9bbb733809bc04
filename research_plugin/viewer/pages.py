"""What the viewer shows of a record: a short row for the list, and a page with the response cut into blocks. Pure.

The texts of a page's blocks, put together, are the response: nothing is hidden and nothing is made up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from research_plugin.protocol import DIALECTS
from research_plugin.records import RolloutRecord, Tokens

__all__ = ["COLUMNS", "Block", "blocks_of", "has_failed", "page_of", "row_of"]

COLUMNS = (
    "step",
    "split",
    "session",
    "score",
    "searches",
    "own",
    "retrieved",
    "stop",
    "failed",
    "advantage",
    "question",
    "pred",
    "golds",
    "queries",
)
"""What each value of a row is."""

_PROBE = 40
"""How many characters of a document must stand in an observation for it to be one of that observation's."""


@dataclass(slots=True)
class Block:
    """A stretch of a response.

    Attributes:
        kind: "think", "search" or "answer" with its tags; "text" for what the policy wrote outside of them; "result"
            for an observation.
        documents: An observation's documents, where the record has them.
    """

    kind: str
    text: str
    documents: list[dict[str, str]] = field(default_factory=list)


def row_of(record: RolloutRecord) -> list[Any]:
    """Return the values of `COLUMNS`."""
    own, retrieved = record.metrics.get("generated_tokens"), record.metrics.get("retrieved_tokens")
    if record.tokens is not None and own is None:
        own = sum(record.tokens.mask)
        retrieved = len(record.tokens.mask) - own
    searches = record.scores.get("num_searches", len(record.queries))
    return [
        record.step,
        record.split,
        record.session,
        _finite(record.scores.get("score")),
        _count(searches) or 0,
        _count(own),
        _count(retrieved),
        record.stop_reason,
        int(has_failed(record)),
        _finite(record.advantage),
        record.question,
        record.pred,
        record.golden_answers,
        record.queries,
    ]


def has_failed(record: RolloutRecord) -> bool:
    """Whether nothing of the answer is right: F1 is 0 or, where nobody computed it, the score is not above 0."""
    value = record.scores.get("f1", record.scores.get("score"))
    return value is not None and not value > 0


def page_of(record: RolloutRecord) -> dict[str, Any]:
    """Return what a rollout's page shows, ready for JSON."""
    return {
        "id": record.id,
        "method": record.method,
        "source": record.data_source,
        "prompt": record.prompt,
        "reason": record.reason,
        "scores": {key: _finite(value) for key, value in record.scores.items()},
        "metrics": {key: _finite(value) for key, value in record.metrics.items()},
        "blocks": [[block.kind, block.text, block.documents] for block in blocks_of(record)],
        "tokens": None if record.tokens is None else _tokens(record.tokens),
    }


def blocks_of(record: RolloutRecord) -> list[Block]:
    """Cut a response at its tags, and give each observation its documents."""
    blocks: list[Block] = []
    waiting = [found for found in record.documents if found]
    for text, by_policy in record.segments:
        if by_policy:
            blocks += _cut(text)
        else:
            taken = next((number for number, found in enumerate(waiting) if _holds(text, found)), None)
            blocks.append(Block("result", text, [] if taken is None else waiting[taken]))
            waiting = waiting[0 if taken is None else taken + 1 :]
    return blocks


def _cut(text: str) -> list[Block]:
    """Cut one turn at its tags; white space between two blocks belongs to the first."""
    blocks: list[Block] = []
    for kind, piece in _pieces(text):
        if blocks and (not piece.strip() or (kind == blocks[-1].kind == "text")):
            blocks[-1].text += piece
        elif blocks and not blocks[-1].text.strip():
            blocks[-1] = Block(kind, blocks[-1].text + piece)
        elif piece:
            blocks.append(Block(kind, piece))
    return blocks


def _pieces(text: str) -> list[tuple[str, str]]:
    tags = {"think": ("<think>", "</think>"), "answer": ("<answer>", "</answer>")}
    pairs = [(kind, *pair) for kind, pair in tags.items()]
    pairs += [("search", known.search_open, known.search_close) for known in DIALECTS.values()]
    kind_of = {tag: kind for kind, opening, closing in pairs for tag in (opening, closing)}
    opens = {opening for _, opening, _ in pairs}
    pieces: list[tuple[str, str]] = []
    start, inside = 0, ""
    for found in re.finditer("|".join(map(re.escape, kind_of)), text):
        kind = kind_of[found.group()]
        if found.group() in opens:
            pieces.append((inside or "text", text[start : found.start()]))
            start, inside = found.start(), kind
        else:  # a closing tag without its opening one: the prompt ended with that, or the policy forgot it
            pieces.append((kind, text[start : found.end()]))
            start, inside = found.end(), ""
    pieces.append((inside or "text", text[start:]))
    return pieces


def _holds(observation: str, documents: Sequence[dict[str, str]]) -> bool:
    contents = documents[0].get("contents", "")
    probe = (contents.partition("\n")[2] or contents).strip()[:_PROBE]
    return probe in observation


def _tokens(tokens: Tokens) -> dict[str, Any]:
    logs = tokens.log_probs
    return {
        "texts": tokens.texts,
        "mask": tokens.mask,
        "log_probs": None if logs is None else [_finite(log) for log in logs],
    }


def _count(value: float | None) -> int | None:
    return None if (finite := _finite(value)) is None else int(finite)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
