"""The one value that servers, clients and dialects exchange: a retrieved passage, and the text it may hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Document:
    """A passage as the retriever returned it.

    ``id`` is a string even when the corpus wrote a number ("00012" keeps its zeros); ``contents`` is the text the
    policy reads, in FlashRAG's form (title line, then text); ``score`` is the engine's own figure, higher is better.
    """

    id: str
    contents: str
    score: float | None = None


def without_surrogates(text: str) -> str:
    """Return ``text`` with U+FFFD for every lone surrogate: JSON can carry those, UTF-8 and tokenizers take none."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
