"""Results of recent queries: GRPO asks each question many times over, and rollouts of a group repeat queries."""

from __future__ import annotations

from collections import OrderedDict

from research_plugin.document import Document

_CHARS_PER_QUERY = 8_192


class ResultCache:
    """Least recently used out first. For one thread.

    A result that was found with a larger topk serves a smaller one. An entry costs its characters, too: all of them
    together hold at most 8,192 per query of ``size``, so that long queries or topk 100 cannot fill the memory.

    Args:
        size: most queries kept; 0 keeps none.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[str, tuple[int, list[Document], int]] = OrderedDict()
        self._chars = 0

    def get(self, query: str, topk: int) -> list[Document] | None:
        """Return the best ``topk`` documents, or None if they are not known. The caller must not change the list."""
        entry = self._entries.get(query)
        if entry is None or entry[0] < topk:
            return None
        self._entries.move_to_end(query)
        return entry[1][:topk]

    def put(self, query: str, topk: int, documents: list[Document]) -> None:
        """Keep what the engine found for ``query`` when it was asked for ``topk`` documents."""
        if not self._size:
            return
        chars = len(query) + sum(len(document.contents) for document in documents)
        self._forget(query)
        self._entries[query] = (topk, documents, chars)
        self._chars += chars
        while len(self._entries) > self._size or self._chars > self._size * _CHARS_PER_QUERY:
            self._forget(next(iter(self._entries)))

    def _forget(self, query: str) -> None:
        _, _, chars = self._entries.pop(query, (0, [], 0))
        self._chars -= chars
