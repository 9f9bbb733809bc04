"""The one value that servers, clients and dialects exchange: a retrieved passage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """A passage as the retriever returned it.

    ``id`` is a string even when the corpus wrote a number ("00012" keeps its zeros); ``contents`` is the text the
    policy reads, in FlashRAG's form (title line, then text); ``score`` is the engine's own figure, higher is better.
    """

    id: str
    contents: str
    score: float | None = None
