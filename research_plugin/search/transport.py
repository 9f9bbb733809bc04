"""What the client sends its batches through, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from research_plugin.document import Document
from research_plugin.errors import SearchError


class Rejected(SearchError):
    """The server understood and refused: trying the same again is useless, a smaller batch may pass."""


@dataclass
class SearchStats:
    """Running totals of one client."""

    queries: int = 0
    """Calls of `SearchClient.search`."""
    requests: int = 0
    """Requests sent (tries, not batches); for "in_process", engine calls."""
    cache_hits: int = 0
    """Queries answered from memory or disk."""
    retries: int = 0
    """Tries after a first one."""
    failures: int = 0
    """Queries that ended in an error."""


class Transport(Protocol):
    """Answers a batch of queries or raises; does its own retries, if it has any."""

    async def fetch(self, queries: list[str], topk: int) -> list[list[Document]]:
        """Return one list per query, in order, each at most ``topk`` long.

        Raises:
            Rejected: the batch holds something that the server refuses.
            SearchError: no answer after all tries.
        """
        ...

    async def aclose(self) -> None:
        """Release connections and threads."""
        ...
