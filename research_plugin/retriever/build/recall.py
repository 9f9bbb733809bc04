"""How much of the exact result an approximate index finds, and how fast, at several search efforts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from research_plugin.errors import ConfigError
from research_plugin.retriever.build.write import parts
from research_plugin.retriever.settings import IndexSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NPROBE, EF_SEARCH = "nprobe", "efSearch"
_VALUES = {NPROBE: (1, 4, 16, 64, 256, 1024), EF_SEARCH: (16, 32, 64, 128, 256, 512)}
_GOOD_RECALL = 0.95
_EXACT_ROWS = 2**16


@dataclass(frozen=True)
class Effort:
    """One row of the report; ``value`` is None where the index has nothing to set."""

    value: int | None
    recall: float
    ms_per_query: float


def effort_setting(index: Any) -> str | None:
    """The parameter of FAISS that trades speed for recall, if the index has one."""
    import faiss

    if faiss.try_extract_index_ivf(index) is not None:
        return NPROBE
    return EF_SEARCH if any(isinstance(part, faiss.IndexHNSW) for part in parts(index)) else None


def set_effort(index: Any, value: int) -> None:
    """Set it; the index keeps it in its file."""
    import faiss

    faiss.ParameterSpace().set_index_parameter(index, effort_setting(index) or "", value)


def check_effort(index: Any, settings: IndexSettings) -> None:
    """Refuse an effort that the index does not have, before anything is built for hours.

    Raises:
        ConfigError: names the setting.
    """
    found = effort_setting(index)
    for name, key, value in ((NPROBE, "nprobe", settings.nprobe), (EF_SEARCH, "ef_search", settings.ef_search)):
        if value is not None and found != name:
            raise ConfigError(
                f"index.{key}={value}: the index is to be a {type(index).__name__}, which has no such parameter; "
                f"choose another --faiss-type, or index.{key}=null"
            )


def measure(index: Any, vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], k: int) -> list[Effort]:
    """Search at every useful effort.

    Args:
        index: inner product, over ``vectors``.
        vectors: [n, d] float32, may be mapped.
        queries: [q, d] float32.
        k: results per query that count. A returned row counts if its exact score reaches the k-th exact score, so
            that equal passages may stand in for each other.
    """
    k = min(k, len(vectors))
    enough = exact_scores(vectors, queries, k)[:, -1:] - 1e-5
    setting = effort_setting(index)
    efforts = []
    for value in _values(index, setting):
        if value is not None:
            set_effort(index, value)
        started = time.perf_counter()
        rows = index.search(queries, k)[1]
        seconds = time.perf_counter() - started
        scores = (vectors[rows] * queries[:, None]).sum(axis=2)
        hits = ((scores >= enough) & (rows >= 0)).mean()
        efforts.append(Effort(value, float(hits), 1000 * seconds / len(queries)))
    return efforts


def choose(efforts: list[Effort]) -> Effort:
    """The cheapest effort with a recall of 0.95, else the best one."""
    good = [effort for effort in efforts if effort.recall >= _GOOD_RECALL]
    return good[0] if good else max(efforts, key=lambda effort: effort.recall)


def noisy_sample(vectors: npt.NDArray[np.float32], count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Queries [count, d]: stored vectors with noise of half their length, so that each lies between passages."""
    import numpy as np

    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(len(vectors), min(count, len(vectors)), replace=False))
    picked = np.asarray(vectors[rows])
    lengths = np.linalg.norm(picked, axis=1, keepdims=True)
    noise = random.standard_normal(picked.shape, dtype=np.float32)
    noisy = picked + 0.5 * lengths * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    return np.ascontiguousarray(noisy * lengths / np.linalg.norm(noisy, axis=1, keepdims=True), dtype=np.float32)


def exact_scores(vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.float32]:
    """The k best inner products of each query, best first: [q, k]. Reads the vectors once, block by block."""
    import faiss
    from tqdm import tqdm

    heap = faiss.ResultHeap(len(queries), k, keep_max=True)
    for first in tqdm(range(0, len(vectors), _EXACT_ROWS), desc="exact search", unit="block", leave=False):
        block = vectors[first : first + _EXACT_ROWS]
        scores, rows = faiss.knn(queries, block, min(k, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
        heap.add_result(scores, rows + first)
    heap.finalize()
    return heap.D


def tune(
    index: Any, vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], k: int, settings: IndexSettings
) -> None:
    """Print recall@k and time at several efforts; set the one of ``settings``, or else the best compromise.

    The index keeps its effort in its file, and FAISS's own default of one list is worth little.
    """
    efforts, name = measure(index, vectors, queries, k), effort_setting(index)
    print(f"against exact search, {len(queries)} queries at a time:\n{name or '':>9}  recall@{k}  ms/query")
    for effort in efforts:
        print(f"{'' if effort.value is None else effort.value:>9}  {effort.recall:8.3f}  {effort.ms_per_query:8.3f}")
    if name is not None:
        wanted = settings.nprobe if name == NPROBE else settings.ef_search
        value = wanted or choose(efforts).value
        assert value is not None
        set_effort(index, value)
        print(f"stored in the file: {name}={value}", flush=True)


def _values(index: Any, setting: str | None) -> list[int | None]:
    import faiss

    if setting is None:
        return [None]
    lists = faiss.extract_index_ivf(index).nlist if setting == NPROBE else None
    return [value for value in _VALUES[setting] if lists is None or value <= lists]
