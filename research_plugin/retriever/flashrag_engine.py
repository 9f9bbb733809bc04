"""The ``flashrag`` engine: hands queries to whatever retriever an installed FlashRAG builds from its own YAML file.

None of FlashRAG's code is in here. What is worked around or refused was seen in its release on PyPI (flashrag-dev
0.1.2), its repository (0.3.0dev0) or the copy in ReSearch's repository. `flashrag_start` builds the retriever.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from research_plugin.document import Document, without_surrogates
from research_plugin.errors import DataError
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.settings import RetrieverConfig

# FAISS fills up missing neighbours with row -1, which FlashRAG takes for the last document, and the largest float32.
_NO_NEIGHBOUR = 3.4e38
_PROBES, _PROBE_TOPK, _PROBE_WORDS = 8, 10, 64


class FlashRAGEngine:
    """An `Engine` over a retriever that ``flashrag.utils.get_retriever`` made.

    Raises:
        DataError: index and corpus have different numbers of rows.
    """

    name = "flashrag"

    def __init__(self, retriever: Any) -> None:
        index, searcher = getattr(retriever, "index", None), getattr(retriever, "searcher", None)
        self._retriever: Any = retriever
        self._corpus: Any = getattr(retriever, "corpus", None) or getattr(searcher, "corpus", None)
        self._lexical = searcher is not None
        # faiss.METRIC_L2 is 1: its scores are distances.
        self._sign = -1.0 if getattr(index, "metric_type", None) == 1 else 1.0
        rows = index.ntotal if index is not None else _bm25_rows(searcher)
        self.size: int | None = len(self._corpus) if self._corpus is not None else rows
        if rows not in (None, self.size):
            raise DataError(f"flashrag: the index has {rows} rows, its corpus {self.size} documents; they do not match")

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        """Return what FlashRAG finds, less its padding. Scores of an L2 index are negated distances.

        Raises:
            DataError: FlashRAG's answer has another number of lists than there are queries, or a document has no id or
                text.
        """
        wanted = topk if self.size is None else min(topk, self.size)
        with stages("search"), _hushed():
            # Always a list: search() cuts a string to 64 characters. Always with scores: without them, two results
            # look like a pair of results and scores. The first argument has two names (query, query_list).
            found, scores = self._retriever.batch_search(list(queries), num=wanted, return_score=True)
        if not len(found) == len(scores) == len(queries):
            raise DataError(f"flashrag: {len(queries)} queries, {len(found)} results, {len(scores)} lists of scores")
        return [self._documents(*pair)[:wanted] for pair in zip(found, scores, strict=True)]

    def close(self) -> None:
        self._retriever = self._corpus = None

    def probe(self) -> None:
        """Search for some documents by their own text, and with BM25 for some of their words.

        Raises:
            DataError: many are not found: the index is not this corpus', or queries are not treated as the passages
                were.
        """
        texts = self._sample()
        if self._lexical:
            self._probe_words(texts)
        found = self.search(texts or ["test"], _PROBE_TOPK)
        hits = sum(text in [document.contents for document in row] for text, row in zip(texts, found, strict=False))
        if hits < len(texts) / 2:
            raise DataError(
                f"flashrag: only {hits} of {len(texts)} documents are found by their own text among the best"
                f" {_PROBE_TOPK}; is the index of this corpus, in this order, and made with this model, pooling and"
                " instruction?"
            )

    def _probe_words(self, texts: Sequence[str]) -> None:
        words = sorted({word for text in texts for word in re.findall(r"\b[a-z]{5,}\b", text.lower())})[:_PROBE_WORDS]
        found = self.search(words, 1) if words else []
        missed = [word for word, row in zip(words, found, strict=True) if not row]
        if len(missed) > len(words) / 4:
            raise DataError(
                f"flashrag: its BM25 finds nothing for {len(missed)} of {len(words)} words of its own corpus, such as"
                f" {', '.join(missed[:3])}: queries are not cut into words like the index (FlashRAG 0.3.0dev0 stems"
                " the index only); set engine=bm25 stemmer=english and the same corpus"
            )

    def _sample(self) -> list[str]:
        if self._corpus is None or not self.size:
            return []
        rows = sorted({place * (self.size - 1) // (_PROBES - 1) for place in range(_PROBES)})
        texts = [_document(self._corpus[row], None).contents for row in rows]
        return [text for text in texts if text.strip()]

    def _documents(self, rows: Sequence[Mapping[str, Any]], scores: Sequence[float]) -> list[Document]:
        documents = []
        for row, score in zip(rows, map(float, scores), strict=True):
            # bm25s fills up with documents that share no word with the query; they score 0.
            padding = not math.isfinite(score) or abs(score) > _NO_NEIGHBOUR or (self._lexical and score == 0)
            if not padding:
                documents.append(_document(row, self._sign * score))
        return documents


def make(config: RetrieverConfig) -> FlashRAGEngine:
    """Build FlashRAG's retriever from ``config.flashrag_config`` and try it.

    Raises:
        ConfigError: FlashRAG is missing, its file cannot be used or asks for what makes its answers wrong.
        DataError: index and corpus do not fit together.
        VersionError: the installed FlashRAG cannot answer at all.
    """
    from research_plugin.retriever.flashrag_start import build_retriever, failure

    engine = FlashRAGEngine(build_retriever(config))
    try:
        engine.probe()
    except DataError:
        raise
    except Exception as error:
        raise failure("answer a query", error) from error
    return engine


def _document(row: Mapping[str, Any], score: float | None) -> Document:
    identity, contents = row.get("id"), row.get("contents", row.get("text"))
    if identity is None or not isinstance(contents, str):
        raise DataError(f"flashrag: a document has columns {sorted(row)}; id and contents (or text) are needed")
    return Document(without_surrogates(str(identity)), without_surrogates(contents), score)


def _bm25_rows(searcher: Any) -> int | None:
    """Rows of a bm25s index (``scores["num_docs"]``) or a Lucene one (``num_docs``), if there is one."""
    scores = getattr(searcher, "scores", None)
    rows = scores["num_docs"] if scores is not None else getattr(searcher, "num_docs", None)
    return None if rows is None else int(rows)


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Drop what FlashRAG prints per request: queries, instructions, progress bars. Log handlers keep their stream."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
