"""Any index file that FAISS can read, searched on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.settings import IndexSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_log = logging.getLogger(__name__)


class FaissIndex:
    """A `VectorIndex` over one FAISS file.

    Args:
        settings: ``path`` and how to search; see `IndexSettings`.
        threads: OpenMP threads of one search.

    Raises:
        DataError: the file is missing, cut off or no index.
        ConfigError: its metric is unknown here, or it has no such parameter.
    """

    def __init__(self, settings: IndexSettings, threads: int = 1) -> None:
        import faiss

        self._faiss, self._threads = faiss, threads
        self._index = read_index(Path(str(settings.path)), settings.mmap)
        metrics = {faiss.METRIC_INNER_PRODUCT: "ip", faiss.METRIC_L2: "l2"}
        if self._index.metric_type not in metrics:
            raise ConfigError(f"index {settings.path}: metric {self._index.metric_type}; inner product or L2 is needed")
        self.metric = metrics[self._index.metric_type]
        self.kind, self.size, self.dimension = type(self._index).__name__, self._index.ntotal, self._index.d
        for name, value in (("nprobe", settings.nprobe), ("ef_search", settings.ef_search)):
            if value is not None:
                self._set(name, value, settings.path)
        ivf = faiss.try_extract_index_ivf(self._index)
        if ivf is not None and ivf.nprobe == 1 and settings.nprobe is None:
            _log.warning(
                "index %s: visits 1 of its %d lists per query and will miss most neighbours; set index.nprobe",
                settings.path,
                ivf.nlist,
            )
        self._blas_queries = settings.blas_threshold

    def search(
        self, vectors: npt.NDArray[np.float32], topk: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """See `VectorIndex.search`."""
        import numpy as np

        self._set_globals(len(vectors))
        scores, rows = self._index.search(np.ascontiguousarray(vectors, np.float32), topk)
        return (-scores if self.metric == "l2" else scores), rows

    def stored(self, rows: Sequence[int]) -> npt.NDArray[np.float32] | None:
        """None for an IVF file: without a table of where each row went, it would have to be read whole."""
        import numpy as np

        try:
            return np.stack([self._index.reconstruct(int(row)) for row in rows])
        except RuntimeError:
            return None

    def close(self) -> None:
        self._index = None

    def _set_globals(self, queries: int) -> None:
        """Both are read by whatever thread searches: OpenMP's number is kept per thread, the threshold per process.

        faiss 1.15 multiplies matrices from queries x dimension = 128,000 (before: from 20 queries). On one Zen 4 core
        with 100,000 x 384, a query costs 4.7 ms without and, with: 24 ms alone, 5.6 of 4, 3.2 of 8, 1.0 of 64.
        """
        self._faiss.omp_set_num_threads(self._threads)
        self._faiss.cvar.distance_compute_blas_threshold = 1 if queries >= self._blas_queries else 2**31 - 1

    def _set(self, name: str, value: int, path: str | None) -> None:
        """ParameterSpace finds the part that has the parameter, inside PreTransform, IDMap and Refine, too."""
        try:
            parameter = {"nprobe": "nprobe", "ef_search": "efSearch"}[name]
            self._faiss.ParameterSpace().set_index_parameter(self._index, parameter, value)
        except RuntimeError as error:
            family = {"nprobe": "IVF", "ef_search": "HNSW"}[name]
            raise ConfigError(
                f"index.{name}={value}: index {path} is a {self.kind} without that parameter; only {family} has it"
            ) from error


def read_index(path: Path, mmap: bool = True) -> Any:
    """Read or map an index file.

    Raises:
        DataError: it is missing, cut off or no index.
    """
    import faiss

    if not path.is_file():
        raise DataError(f"index {path}: no such file; set index.path to what the index builder wrote")
    # MAP_IFC maps flat, SQ, PQ, HNSW and IVF codes (faiss 1.11 and later); MAP alone maps IVF lists.
    flags = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP) if mmap else 0
    try:
        return faiss.read_index(str(path), flags)
    except (RuntimeError, MemoryError) as error:
        reason = str(error).splitlines()[0].rsplit(": ", 1)[-1]
        raise DataError(
            f"index {path} ({path.stat().st_size:,} bytes): FAISS cannot read it ({reason}); is it half-downloaded?"
        ) from error
