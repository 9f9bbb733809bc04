"""BM25 over the tiny corpus, used to write and to judge transcripts while the model is built.

Knows nothing of the retriever server: building must not need one. Index and queries are split alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from research_plugin.document import Document

TOPK = 2
_WORD = re.compile(r"\w+")


class TinyBM25:
    """A searchable corpus; answers are kept, since the same few thousand queries come back again and again."""

    def __init__(self, corpus: Sequence[Document], topk: int = TOPK) -> None:
        import bm25s

        self.topk = topk
        self._corpus = list(corpus)
        self._index: Any = bm25s.BM25(backend="numpy")
        self._index.index([_words(doc.contents) for doc in self._corpus], show_progress=False)
        self._known: set[str] = set(self._index.vocab_dict)
        self._seen: dict[str, list[Document]] = {}

    def search(self, query: str) -> list[Document]:
        """The ``topk`` best passages, best first; an empty list when no word of the query is in the corpus."""
        if query not in self._seen:
            words = [word for word in _words(query) if word in self._known]
            found: list[Document] = []
            if words:
                rows, _ = self._index.retrieve([words], k=self.topk, backend_selection="numpy", show_progress=False)
                found = [self._corpus[int(row)] for row in rows[0]]
            self._seen[query] = found
        return self._seen[query]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
