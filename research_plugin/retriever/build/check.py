"""``index check``: do index, corpus and encoder belong together? One line per check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from research_plugin.errors import DataError, ResearchPluginError
from research_plugin.finding import FAIL, OK, Finding
from research_plugin.retriever.dense import manifest_faults
from research_plugin.retriever.manifest import read_manifest
from research_plugin.retriever.probe import find_fault
from research_plugin.retriever.settings import RetrieverConfig

if TYPE_CHECKING:
    from research_plugin.retriever.documents import DocumentStore
    from research_plugin.retriever.encoder import Encoder
    from research_plugin.retriever.vector_index import VectorIndex


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
            yield Finding(name, FAIL, str(error))
            return
    index, store, encoder = loaded
    yield Finding("index", OK, f"{config.index.path}: {index.kind}, {index.metric}")
    yield _judge("rows", index.size == len(store), f"{index.size:,} in the index, {len(store):,} in the corpus")
    same = index.dimension == encoder.dimension
    yield _judge("dimension", same, f"{index.dimension} in the index, {encoder.dimension} from the encoder")
    yield from _manifest(str(config.index.path), index, store, encoder)
    if same and index.size == len(store):
        fault = find_fault(index, store, encoder)
        yield _judge("vectors", fault is None, fault or "passages encoded again agree with what is in their rows")


def _judge(name: str, ok: bool, text: str) -> Finding:
    return Finding(name, OK if ok else FAIL, text)


def require(config: RetrieverConfig) -> None:
    """Print every finding.

    Raises:
        DataError: at least one check failed.
    """
    failed = 0
    for finding in check(config):
        print(finding.line(), flush=True)
        failed += finding.status == FAIL
    if failed:
        raise DataError(f"index {config.index.path}: {failed} of its checks failed")


def _manifest(path: str, index: VectorIndex, store: DocumentStore, encoder: Encoder) -> Iterator[Finding]:
    try:
        manifest = read_manifest(path)
    except DataError as error:
        yield Finding("manifest", FAIL, str(error))
        return
    if manifest is None:
        yield Finding("manifest", OK, "none beside the index; its vectors alone are judged")
        return
    faults = manifest_faults(manifest, encoder, index, store)
    yield _judge("manifest", not faults, "; ".join(faults) or "same corpus, same order, same encoder")
