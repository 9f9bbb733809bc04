"""Exact search in PyTorch: matrix products and a running top-k over vectors spread across devices.

No faiss-gpu, no copy of the whole index in one place: each device is given its rows in blocks from the mapped file, and
a search needs the scores of some of them per device besides.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from research_plugin.errors import ConfigError
from research_plugin.retriever.flat_file import map_flat
from research_plugin.retriever.settings import IndexSettings
from research_plugin.retriever.torch_device import pick_device, pick_dtype, use_threads
from research_plugin.retriever.torch_shard import GPU_SCORE_BYTES, Shard

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

_log = logging.getLogger(__name__)
# Scores, what choosing the best needs beside them, and cuBLAS' own.
_SCRATCH = 3 * GPU_SCORE_BYTES
# Rounded scores mistake the order of close neighbours; this many more than asked for are scored again in float32. If
# that does not prove that no other row belongs there, so many times more are.
_SPARE = 16
_GROWTH = (1, 8, 64)
_RESCORED_FLOATS = 2**26
_CENTRE_ROWS = 16_384


class TorchIndex:
    """A `VectorIndex` over the vectors of a flat inner-product FAISS file, or of FlashRAG's ``emb_*.memmap``.

    Exact in any dtype: float16 and bfloat16 only choose candidates, whose scores are then computed in float32 and, as
    long as a row outside could be better, the number of candidates grows, to 64 times its start. Only where more rows
    than that lie closer together than rounding tells apart may one stand for another.

    Args:
        settings: ``path``, ``devices``, ``dtype`` and ``memory_gb``; see `IndexSettings`.
        threads: CPU threads of one search.
        dimension: of a ``.memmap`` file, which does not say it.

    Raises:
        DataError: the file is missing, of another kind or cut off.
        ConfigError: a device is unknown, or the vectors do not fit on the devices.
    """

    metric = "ip"

    def __init__(self, settings: IndexSettings, threads: int = 1, dimension: int | None = None) -> None:
        import torch

        self._vectors = map_flat(Path(str(settings.path)), dimension)
        self.size, self.dimension = self._vectors.shape
        self._threads = threads
        devices = _devices(settings.devices)
        # "auto" on a CPU is float32: the mapped file itself, no copy.
        cpu = settings.dtype == "auto" and devices[0].type == "cpu"
        dtype = pick_dtype("float32" if cpu else settings.dtype, devices[0])
        _check_fit(settings, self.size, self.dimension, dtype, devices)
        self._exact = dtype == torch.float32
        use_threads(threads)
        self._centre = torch.zeros(self.dimension) if self._exact else _mean(self._vectors)
        cuts = [self.size * i // len(devices) for i in range(len(devices) + 1)]
        self._shards = [
            Shard(self._vectors[first:last], first, device, dtype, None if self._exact else self._centre)
            for first, last, device in zip(cuts, cuts[1:], devices, strict=False)
            if last > first
        ]
        names = ", ".join(str(device) for device in devices)
        self.kind = f"torch {str(dtype).removeprefix('torch.')} on {names}"

    def search(
        self, vectors: npt.NDArray[np.float32], topk: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """See `VectorIndex.search`; rows beyond ``size`` are -1."""
        import numpy as np
        import torch

        use_threads(self._threads)
        found = min(topk, self.size)
        if not len(vectors):
            return np.zeros((0, topk), np.float32), np.zeros((0, topk), np.int64)
        with torch.inference_mode():
            queries = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
            scores, rows = self._candidates(queries, found) if self._exact else self._proven(queries, found)
        missing = ((0, 0), (0, topk - found))
        padded = np.pad(scores.numpy(), missing, constant_values=-np.inf)
        return padded, np.pad(rows.numpy(), missing, constant_values=-1)

    def stored(self, rows: Sequence[int]) -> npt.NDArray[np.float32] | None:
        """See `VectorIndex.stored`."""
        import numpy as np

        return np.asarray(self._vectors[list(rows)])

    def close(self) -> None:
        self._shards = []

    def _candidates(self, queries: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and rows [n, count] of all shards, best first."""
        import torch

        # All devices are given their work before the first is waited for.
        found = [shard.best(queries, count) for shard in self._shards]
        scores, places = torch.cat([part.cpu() for part, _ in found], dim=1).topk(count, dim=1)
        return scores, torch.cat([part.cpu() for _, part in found], dim=1).gather(1, places)

    def _proven(self, queries: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
        """True scores and rows [n, topk], best first, from as many candidates as it takes to be sure."""
        import torch

        # Numbers up to 1: the size of a query means nothing to the order, but something to float16.
        sizes = queries.abs().amax(1, keepdim=True)
        queries = queries / sizes.clamp_min(torch.finfo(torch.float32).tiny)
        scores, rows = torch.empty(len(queries), topk), torch.empty(len(queries), topk, dtype=torch.long)
        open_ = torch.arange(len(queries))
        for growth in _GROWTH:
            count = min(growth * (topk + _SPARE), self.size)
            scores[open_], rows[open_], sure = self._score_again(queries[open_], topk, count)
            open_ = open_[~sure]
            if not len(open_) or count == self.size:
                break
        return scores * sizes, rows

    def _score_again(
        self, queries: torch.Tensor, topk: int, count: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Score ``count`` candidates in float32; the last result tells for which queries no other row can be better."""
        import torch

        rounded, rows = self._candidates(queries, count)
        step = max(1, _RESCORED_FLOATS // (count * self.dimension))
        parts = [slice(start, start + step) for start in range(0, len(queries), step)]
        true = torch.cat([self._true_scores(queries[part], rows[part]) for part in parts])
        scores, places = true.topk(topk, dim=1)
        rows = rows.gather(1, places)
        if count == self.size:
            return scores, rows, torch.ones(len(queries), dtype=torch.bool)
        last = rounded[:, -1]
        margin = torch.stack([shard.most_below(queries, last) for shard in self._shards]).amax(0)
        return scores, rows, scores[:, -1] >= queries @ self._centre + last + margin

    def _true_scores(self, queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.einsum("nd,nkd->nk", queries, torch.from_numpy(self._vectors[rows.numpy()]))


def _mean(vectors: npt.NDArray[np.float32]) -> torch.Tensor:
    """Mean of some rows from all over the file; any point near it would do."""
    import torch

    step = -(-len(vectors) // _CENTRE_ROWS)
    return torch.from_numpy(vectors[::step]).mean(0)


def _devices(names: Sequence[str]) -> list[torch.device]:
    """The devices named, or every GPU, or the CPU."""
    import torch

    if not names:
        names = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    return [pick_device(name) for name in names]


def _check_fit(
    settings: IndexSettings, rows: int, dimension: int, dtype: torch.dtype, devices: list[torch.device]
) -> None:
    """Refuse before loading, with the number of devices that would do."""
    import torch

    if devices[0].type == "cpu" and dtype == torch.float32:
        return
    needed, scratch = rows * dimension * dtype.itemsize, _SCRATCH if devices[0].type == "cuda" else 0
    budget = int(settings.memory_gb * 1e9) if settings.memory_gb else int(0.9 * min(map(_free, devices)))
    share = max(map(devices.count, devices)) / len(devices)
    _log.info("vectors: %.1f GB in %s over %d devices", needed / 1e9, dtype, len(set(devices)))
    if needed * share + scratch > budget:
        enough = -(-needed // (budget - scratch)) if budget > scratch else 0
        advice = f"{enough} such devices would do (index.devices)" if enough else "a block of scores alone takes more"
        raise ConfigError(
            f"index {settings.path}: {rows:,} x {dimension} in {dtype} take {(needed * share + scratch) / 1e9:.1f} GB "
            f"on each of {len(set(devices))} devices; {budget / 1e9:.1f} GB are allowed (index.memory_gb, or nine "
            f"tenths of what is free); {advice}"
        )


def _free(device: torch.device) -> int:
    import torch

    from research_plugin.retriever.memory import available_memory

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory() or 2**63
