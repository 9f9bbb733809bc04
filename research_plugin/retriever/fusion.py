"""The ``hybrid`` engine: rankings of two or more engines over one corpus, fused by reciprocal rank.

A document scores the sum of 1 / (60 + its rank) over the rankings that hold it, ranks from 1 (Cormack, Clarke and
Buettcher, SIGIR 2009, with their constant). Scores of different engines are never compared with each other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from research_plugin.document import Document
from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.engine import SILENT, Engine, Stages
from research_plugin.retriever.settings import RerankSettings, RetrieverConfig

_K = 60


class HybridEngine:
    """An `Engine` over others.

    Args:
        engines: two or more, over the same corpus; a document's id is the same in all of them.
        candidates: documents taken from each ranking, whatever a request asks for: its answer must not depend on the
            larger request that it was batched with. The server lets no request ask for more.

    Raises:
        DataError: the engines hold different numbers of documents.
    """

    name = "hybrid"

    def __init__(self, engines: Sequence[Engine], candidates: int) -> None:
        sizes = {engine.name: engine.size for engine in engines}
        known = {size for size in sizes.values() if size is not None}
        if len(known) > 1:
            raise DataError(f"hybrid: the engines hold different corpora, documents by engine: {sizes}; give them one")
        self._engines, self._candidates = list(engines), candidates
        self.size = known.pop() if known else None

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        """Return the fused rankings; a document's score is its sum of reciprocal ranks."""
        found = [engine.search(queries, self._candidates, stages) for engine in self._engines]
        return [fuse(rankings, topk) for rankings in zip(*found, strict=True)]

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


def fuse(rankings: Sequence[Sequence[Document]], topk: int) -> list[Document]:
    """Fuse rankings of one query, best document first; equal sums stand in the order of the first ranking, then of
    the second, and so on."""
    ranks: dict[str, list[int]] = {}
    documents: dict[str, Document] = {}
    for ranking in rankings:
        for rank, document in enumerate(ranking, start=1):
            documents.setdefault(document.id, document)
            ranks.setdefault(document.id, []).append(rank)
    # fsum rounds once, so equal sums are equal whatever the order of their terms.
    scores = {identity: math.fsum(1 / (_K + rank) for rank in found) for identity, found in ranks.items()}
    best = sorted(scores, key=lambda identity: -scores[identity])[:topk]
    return [dataclasses.replace(documents[identity], score=scores[identity]) for identity in best]


def make(config: RetrieverConfig) -> HybridEngine:
    """Make the engines named in ``config.hybrid``, all with the rest of ``config``, and fuse them.

    Raises:
        ConfigError: fewer than two engines, one named twice, or hybrid itself among them.
        DataError: the engines turn out to hold different corpora.
    """
    from research_plugin.retriever.engines import make_engine

    names = config.hybrid
    if len(set(names)) != len(names) or len(names) < 2 or "hybrid" in names:
        raise ConfigError(f"hybrid={names}: give two or more different engines, such as [bm25, dense]")
    # Reranking comes after the fusion, once.
    engines = [make_engine(dataclasses.replace(config, engine=name, rerank=RerankSettings())) for name in names]
    return HybridEngine(engines, config.hybrid_candidates)
