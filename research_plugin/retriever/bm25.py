"""BM25 over a corpus in memory, scored by bm25s; index and queries go through the same tokenizer."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from research_plugin.document import Document
from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.engine import SILENT, Stages

# Kana and Han are written without spaces, so each character is a token of its own; Hangul has word breaks.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")


def tokenize(text: str) -> list[str]:
    """Split into lower-case Unicode words after NFKC, and Han or Kana into single characters."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _TOKEN.findall(text.lower())


class BM25Engine:
    """An `Engine` whose index is built when it is made (about 1 s for 10,000 short passages).

    Args:
        documents: the corpus; a document's place in it breaks ties between equal scores.
        stemmer: a Snowball language such as "english" (needs PyStemmer), or None for whole words.

    Raises:
        DataError: not one document holds a word.
        ConfigError: the stemmer is unknown or PyStemmer is missing.
    """

    name = "bm25"

    def __init__(self, documents: Sequence[Document], stemmer: str | None = None) -> None:
        import bm25s

        # bm25s 0.3 sets its logger to DEBUG when imported (bm25s/__init__.py), which floods a root handler.
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        self._documents = list(documents)
        self._stem = _stem_function(stemmer)
        self._vocabulary: dict[str, int] = {}
        ids = [self._number(self._tokens(document.contents)) for document in self._documents]
        if not self._vocabulary:
            raise DataError(f"corpus of {len(self._documents)} documents: no document holds a single word to index")
        self._index: Any = bm25s.BM25()
        self._index.index((ids, dict(self._vocabulary)), show_progress=False)

    @property
    def size(self) -> int:
        return len(self._documents)

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        """Return the best documents of each query; one that shares no word with the query is never returned."""
        with stages("search"):
            return [self._search_one(query, topk) for query in queries]

    def close(self) -> None:
        """Nothing to let go of: everything is in memory."""

    def _search_one(self, query: str, topk: int) -> list[Document]:
        import numpy as np

        ids = [self._vocabulary[token] for token in self._tokens(query) if token in self._vocabulary]
        if not ids:
            return []
        scores = self._index.get_scores(ids)
        hits = np.flatnonzero(scores > 0)
        if len(hits) > topk:
            threshold = np.partition(scores[hits], -topk)[-topk]
            hits = hits[scores[hits] >= threshold]
        best = hits[np.lexsort((hits, -scores[hits]))][:topk]
        found = ((self._documents[i], float(scores[i])) for i in best)
        return [Document(document.id, document.contents, score) for document, score in found]

    def _number(self, tokens: list[str]) -> list[int]:
        return [self._vocabulary.setdefault(token, len(self._vocabulary)) for token in tokens]

    def _tokens(self, text: str) -> list[str]:
        return self._stem(tokenize(text))


def _stem_function(language: str | None) -> Callable[[list[str]], list[str]]:
    if language is None:
        return lambda words: words
    try:
        import Stemmer
    except ImportError as error:
        raise ConfigError(f"stemmer {language!r}: PyStemmer is not installed; pip install PyStemmer") from error
    try:
        stem: Callable[[list[str]], list[str]] = Stemmer.Stemmer(language).stemWords
    except KeyError as error:
        raise ConfigError(f"stemmer {language!r}: unknown; allowed: {', '.join(Stemmer.algorithms())}") from error
    return stem
