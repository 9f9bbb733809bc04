"""The seam between the HTTP front and whatever finds the passages."""

from __future__ import annotations

from typing import Protocol

from research_plugin.document import Document


class Engine(Protocol):
    """A loaded index with its corpus. Called from one thread at a time."""

    @property
    def name(self) -> str:
        """Short name for /health, such as "bm25"."""
        ...

    @property
    def size(self) -> int:
        """Number of documents in the corpus."""
        ...

    def search(self, queries: list[str], topk: int) -> list[list[Document]]:
        """Return one list per query, best document first, at most ``min(topk, size)`` long, possibly empty."""
        ...
