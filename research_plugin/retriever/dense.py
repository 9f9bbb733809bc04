"""Dense retrieval: encode the query, search the vectors, fetch the passages.

What is loaded is compared first, because an index beside the wrong corpus or encoder answers every query - wrongly.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from research_plugin.document import Document
from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.documents import DocumentStore
from research_plugin.retriever.encoder import Encoder
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.faiss_index import FaissIndex
from research_plugin.retriever.manifest import Manifest, compare, manifest_path, read_manifest
from research_plugin.retriever.probe import find_fault
from research_plugin.retriever.settings import RetrieverConfig
from research_plugin.retriever.torch_index import TorchIndex

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from research_plugin.retriever.vector_index import VectorIndex

_log = logging.getLogger(__name__)


class DenseEngine:
    """An `Engine` over an index whose vector number i belongs to document number i."""

    name = "dense"

    def __init__(self, encoder: Encoder, index: VectorIndex, store: DocumentStore) -> None:
        self._encoder, self._index, self._store = encoder, index, store

    @property
    def size(self) -> int:
        return len(self._store)

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        """See `Engine.search`. A score is the index's own: the inner product, or the negated squared distance."""
        with stages("encode"):
            vectors = self._encoder.encode_queries(queries)
        with stages("search"):
            scores, rows = self._index.search(vectors, min(topk, self.size))
        with stages("fetch"):
            return self._fetch(scores, rows)

    def close(self) -> None:
        self._index.close()
        self._store.close()

    def _fetch(self, scores: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]) -> list[list[Document]]:
        """Documents of each query. Row -1 means "no more"; an approximate index may name a row twice."""
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        hits = [{row: score for row, score in zip(*pair, strict=True) if row >= 0} for pair in pairs]
        documents = iter(self._store.documents([row for hit in hits for row in hit]))
        return [[_scored(next(documents), score) for score in hit.values()] for hit in hits]


def _scored(document: Document, score: float) -> Document:
    return Document(document.id, document.contents, score)


def make(config: RetrieverConfig) -> DenseEngine:
    """Load corpus, encoder and index, and refuse what does not belong together.

    Raises:
        DataError: a file cannot be used, or corpus and index have different sizes.
        ConfigError: the settings are not those the index was built with.
    """
    store = DocumentStore(str(config.corpus))
    encoder = Encoder(config.encoder, config.threads)
    index: VectorIndex
    if config.index.backend == "torch":
        index = TorchIndex(config.index, config.threads, encoder.dimension)
    else:
        index = FaissIndex(config.index, config.threads)
    _log.info("index %s: %s, %d x %d, %s", config.index.path, index.kind, index.size, index.dimension, index.metric)
    check(config, encoder, index, store)
    return DenseEngine(encoder, index, store)


def manifest_faults(manifest: Manifest, encoder: Encoder, index: VectorIndex, store: DocumentStore) -> list[str]:
    """What the manifest says otherwise than what is loaded."""
    return compare(
        manifest,
        rows=index.size,
        dimension=index.dimension,
        metric=index.metric,
        corpus=store.fingerprint(),
        encoder=encoder.fingerprint(),
    )


def check(config: RetrieverConfig, encoder: Encoder, index: VectorIndex, store: DocumentStore) -> None:
    """Compare the three with each other and with the manifest; what no manifest tells, the index is probed for."""
    path = str(config.index.path)
    if index.size != len(store):
        raise DataError(
            f"index {path} has {index.size} vectors, corpus {config.corpus} has {len(store)} documents; each document "
            "needs its vector: use the corpus that the index was built from, or build the index again"
        )
    if index.dimension != encoder.dimension:
        raise ConfigError(
            f"index {path} has vectors of {index.dimension} numbers, encoder.model_path={config.encoder.model_path!r} "
            f"gives {encoder.dimension}; use the model that the index was built with"
        )
    if index.metric == "l2" and not config.encoder.normalize:
        _log.warning("index %s: L2 distance with encoder.normalize=false ranks by length, too; is that meant?", path)
    manifest = read_manifest(path)
    if manifest is not None:
        faults = manifest_faults(manifest, encoder, index, store)
        if faults:
            raise ConfigError(f"index {path} was built otherwise (see {manifest_path(path)}): {'; '.join(faults)}")
        if manifest.corpus and manifest.encoder:
            return
    fault = find_fault(index, store, encoder)
    if fault is not None:
        raise ConfigError(f"index {path} does not fit corpus and encoder: {fault}")
