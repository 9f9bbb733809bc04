"""BM25, scored by bm25s over an index that is made at every start; index and queries go through the same tokenizer."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from research_plugin.document import Document
from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.corpus import read_corpus
from research_plugin.retriever.documents import DocumentStore
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.settings import RetrieverConfig

# Below this the documents are read into memory; from here on they stay in the mapped file.
_MAP_FROM_BYTES = 64 * 2**20

# Kana and Han are written without spaces, so each character is a token of its own; Hangul has word breaks.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")


def make(config: RetrieverConfig) -> BM25Engine:
    """Index ``config.corpus``.

    Raises:
        DataError: the corpus cannot be used.
        ConfigError: the stemmer is unknown or PyStemmer is missing.
    """
    path = Path(config.corpus or "")
    large = path.is_file() and path.stat().st_size >= _MAP_FROM_BYTES
    return BM25Engine(DocumentStore(path) if large else read_corpus(path), config.stemmer)


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

    def __init__(self, documents: Sequence[Document] | DocumentStore, stemmer: str | None = None) -> None:
        import bm25s
        from tqdm import tqdm

        # bm25s 0.3 sets its logger to DEBUG when imported (bm25s/__init__.py), which floods a root handler.
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        self._documents = documents
        self._stem = _stem_function(stemmer)
        self._vocabulary: dict[str, int] = {}
        short = len(documents) < 200_000
        with tqdm(_each(documents), desc="words of the corpus", total=len(documents), disable=short) as bar:
            ids = [self._number(self._tokens(document.contents)) for document in bar]
        if not self._vocabulary:
            raise DataError(f"corpus of {len(documents)} documents: no document holds a single word to index")
        self._index: Any = bm25s.BM25()
        self._index.index((ids, dict(self._vocabulary)), show_progress=not short)

    @property
    def size(self) -> int:
        return len(self._documents)

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        """Return the best documents of each query; one that shares no word with the query is never returned."""
        with stages("search"):
            found = [self._search_one(query, topk) for query in queries]
        with stages("fetch"):
            return [self._fetch(*best) for best in found]

    def close(self) -> None:
        if isinstance(self._documents, DocumentStore):
            self._documents.close()

    def _search_one(self, query: str, topk: int) -> tuple[list[int], list[float]]:
        """Return the rows and scores of the best documents."""
        import numpy as np

        ids = [self._vocabulary[token] for token in self._tokens(query) if token in self._vocabulary]
        if not ids:
            return [], []
        scores = self._index.get_scores(ids)
        hits = np.flatnonzero(scores > 0)
        if len(hits) > topk:
            threshold = np.partition(scores[hits], -topk)[-topk]
            hits = hits[scores[hits] >= threshold]
        best = hits[np.lexsort((hits, -scores[hits]))][:topk]
        return best.tolist(), scores[best].tolist()

    def _fetch(self, rows: list[int], scores: list[float]) -> list[Document]:
        found = _documents(self._documents, rows)
        return [Document(one.id, one.contents, score) for one, score in zip(found, scores, strict=True)]

    def _number(self, tokens: list[str]) -> list[int]:
        return [self._vocabulary.setdefault(token, len(self._vocabulary)) for token in tokens]

    def _tokens(self, text: str) -> list[str]:
        return self._stem(tokenize(text))


def _documents(documents: Sequence[Document] | DocumentStore, rows: Sequence[int]) -> list[Document]:
    if isinstance(documents, DocumentStore):
        return documents.documents(rows)
    return [documents[row] for row in rows]


def _each(documents: Sequence[Document] | DocumentStore) -> Iterator[Document]:
    for start in range(0, len(documents), 1024):
        yield from _documents(documents, range(start, min(start + 1024, len(documents))))


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
