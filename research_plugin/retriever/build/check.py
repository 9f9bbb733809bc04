"""``index check``: do index, corpus and encoder belong together? One line per check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research_plugin.errors import DataError, ResearchPluginError
from research_plugin.retriever.manifest import compare, read_manifest
from research_plugin.retriever.settings import RetrieverConfig

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from research_plugin.retriever.documents import DocumentStore
    from research_plugin.retriever.encoder import Encoder
    from research_plugin.retriever.vector_index import VectorIndex

_SAMPLE = 64
_NEAREST = 10
# MiniLM-L6, median cosine with float32: bfloat16 1.000; stored with 8 bits a number 1.000, with 4 bits 0.993; with
# "passage: " in front 0.981, another maximal length 0.93, last token instead of the mean 0.90, first token 0.64.
_SAME_VECTOR = 0.99
_FOUND, _TIE = 0.8, 1e-3


@dataclass(frozen=True)
class Finding:
    """One check."""

    name: str
    ok: bool
    detail: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'FAIL'}  {self.name:<10} {self.detail}"


def check(config: RetrieverConfig) -> Iterator[Finding]:
    """Load the three and compare them; what cannot be loaded ends the checks."""
    from research_plugin.retriever.documents import DocumentStore
    from research_plugin.retriever.encoder import Encoder
    from research_plugin.retriever.faiss_index import FaissIndex

    loaded: list[Any] = []
    loaders: dict[str, Callable[[], Any]] = {
        "index": lambda: FaissIndex(config.index, config.threads),
        "corpus": lambda: DocumentStore(str(config.corpus)),
        "encoder": lambda: Encoder(config.encoder, config.threads),
    }
    for name, load in loaders.items():
        try:
            loaded.append(load())
        except ResearchPluginError as error:
            yield Finding(name, False, str(error))
            return
    index, store, encoder = loaded
    yield Finding("index", True, f"{config.index.path}: {index.kind}, {index.metric}")
    yield Finding("rows", index.size == len(store), f"{index.size:,} in the index, {len(store):,} in the corpus")
    same = index.dimension == encoder.dimension
    yield Finding("dimension", same, f"{index.dimension} in the index, {encoder.dimension} from the encoder")
    yield from _manifest(str(config.index.path), index, store, encoder)
    if same:
        yield _vectors(str(config.index.path), index, store, encoder)


def require(config: RetrieverConfig) -> None:
    """Print every finding.

    Raises:
        DataError: at least one check failed.
    """
    failed = 0
    for finding in check(config):
        print(finding, flush=True)
        failed += not finding.ok
    if failed:
        raise DataError(f"index {config.index.path}: {failed} of its checks failed")


def _manifest(path: str, index: VectorIndex, store: DocumentStore, encoder: Encoder) -> Iterator[Finding]:
    try:
        manifest = read_manifest(path)
    except DataError as error:
        yield Finding("manifest", False, str(error))
        return
    if manifest is None:
        yield Finding("manifest", True, "none beside the index; its vectors alone are judged")
        return
    faults = compare(
        manifest,
        rows=index.size,
        dimension=index.dimension,
        metric=index.metric,
        corpus=store.fingerprint(),
        encoder=encoder.fingerprint(),
    )
    yield Finding("manifest", not faults, "; ".join(faults) or "same corpus, same order, same encoder")


def _vectors(path: str, index: VectorIndex, store: DocumentStore, encoder: Encoder) -> Finding:
    """Encode a sample of passages; the index must hold those very vectors, in those very rows."""
    import numpy as np

    from research_plugin.retriever.build.write import open_index, parts

    count = min(index.size, len(store))
    rows = np.sort(np.random.default_rng(0).choice(count, min(_SAMPLE, count), replace=False))
    fresh = encoder.encode_passages([document.contents for document in store.documents(rows)])
    stored = index.stored(rows.tolist())
    if stored is not None:
        table = _unit(fresh) @ _unit(stored).T
        likeness = table.diagonal()
        found = likeness >= table.max(axis=1) - _TIE
    else:  # the score of a passage with itself is its cosine, as long as vectors are of length 1
        scores, nearest = index.search(_unit(fresh), min(_NEAREST, index.size))
        own = nearest == rows[:, None]
        found, likeness = own.any(axis=1), scores[own]
    share, middle = float(found.mean()), float(np.median(likeness)) if likeness.size else 0.0
    # Product quantizers keep too little of a vector to tell one pooling from another.
    coarse = any("PQ" in type(part).__name__ for part in parts(open_index(Path(path))))
    told = coarse or not encoder.settings.normalize or middle >= _SAME_VECTOR
    detail = f"{len(rows)} passages encoded again: {share:.0%} in their own rows, cosine {middle:.4f} (median)"
    return Finding("vectors", share >= _FOUND and told, detail)


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.float32(1e-12))  # type: ignore[no-any-return]
