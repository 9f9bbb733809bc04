"""Exact search in PyTorch: blocked matrix products and a running top-k over vectors spread across devices.

No faiss-gpu, no copy of the whole index in one place: each device is given its rows in blocks from the mapped file, and
a search needs one block of scores per device besides.
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

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

_log = logging.getLogger(__name__)
# A block of scores should stay in a CPU's cache, and should fill a GPU.
_CPU_BLOCK_ROWS = 4_096
_GPU_SCORE_BYTES = 2**28
# Scores, what top-k needs beside them, and cuBLAS' own.
_SCRATCH = 3 * _GPU_SCORE_BYTES
_LOAD_BYTES = 2**28
# float16 and bfloat16 mistake the order of close neighbours; this many more than asked for are scored again.
_SPARE = 32


class TorchIndex:
    """A `VectorIndex` over the vectors of a flat inner-product FAISS file, or of FlashRAG's ``emb_*.memmap``.

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
        self._dtype = pick_dtype("float32" if cpu else settings.dtype, devices[0])
        _check_fit(settings, self.size, self.dimension, self._dtype, devices)
        cuts = [self.size * i // len(devices) for i in range(len(devices) + 1)]
        self._shards = [
            (first, _load(self._vectors[first:last], self._dtype, device))
            for first, last, device in zip(cuts, cuts[1:], devices, strict=False)
        ]
        names = ", ".join(str(device) for device in devices)
        self.kind = f"torch {str(self._dtype).removeprefix('torch.')} on {names}"
        self._exact = self._dtype == torch.float32

    def search(
        self, vectors: npt.NDArray[np.float32], topk: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """See `VectorIndex.search`; rows beyond ``size`` are -1."""
        import numpy as np
        import torch

        use_threads(self._threads)
        count = min(topk if self._exact else topk + _SPARE, self.size)
        with torch.inference_mode():
            queries = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
            # All devices are given their work before the first is waited for.
            found = [_best(queries, first, shard, count) for first, shard in self._shards]
            scores = torch.cat([part.cpu() for part, _ in found], dim=1)
            rows = torch.cat([part.cpu() for _, part in found], dim=1)
            if not self._exact:
                scores, rows = self._score_again(queries, scores, rows, count)
            scores, places = scores.topk(min(topk, scores.shape[1]), dim=1)
            rows = rows.gather(1, places)
        missing = ((0, 0), (0, topk - rows.shape[1]))
        padded = np.pad(scores.numpy(), missing, constant_values=-np.inf)
        return padded, np.pad(rows.numpy(), missing, constant_values=-1)

    def stored(self, rows: Sequence[int]) -> npt.NDArray[np.float32] | None:
        """See `VectorIndex.stored`."""
        import numpy as np

        return np.asarray(self._vectors[list(rows)])

    def close(self) -> None:
        self._shards = []

    def _score_again(
        self, queries: torch.Tensor, scores: torch.Tensor, rows: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the best ``count`` of all shards and score them in float32 from the mapped file."""
        import torch

        rows = rows.gather(1, scores.topk(count, dim=1).indices)
        vectors = torch.from_numpy(self._vectors[rows.numpy()])
        return torch.einsum("nd,nkd->nk", queries, vectors), rows


def _devices(names: Sequence[str]) -> list[torch.device]:
    """The devices named, or every GPU, or the CPU."""
    import torch

    if not names:
        names = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    return [pick_device(name) for name in names]


def _best(queries: torch.Tensor, first: int, shard: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and rows [n, min(count, rows)] of one shard, best first, on its device."""
    import torch

    queries = queries.to(shard.device, shard.dtype, non_blocking=True)
    step = _CPU_BLOCK_ROWS if shard.device.type == "cpu" else max(1, _GPU_SCORE_BYTES // (4 * len(queries)))
    scores = torch.empty((len(queries), 0), device=shard.device)
    rows = torch.empty((len(queries), 0), dtype=torch.long, device=shard.device)
    for start in range(0, len(shard), step):
        block = _scores(queries, shard[start : start + step])
        best, places = block.topk(min(count, block.shape[1]), dim=1)
        scores, rows = torch.cat((scores, best), dim=1), torch.cat((rows, places + (first + start)), dim=1)
        scores, places = scores.topk(min(count, scores.shape[1]), dim=1)
        rows = rows.gather(1, places)
    return scores, rows


def _scores(queries: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Inner products [n, rows] in float32.

    A float16 product of E5 vectors (all near 0.8) would be rounded to steps of 0.0005, a bfloat16 one to 0.004: too
    coarse to tell neighbours apart, so the GPU is asked to hand out what it summed up in float32.
    """
    import torch

    if block.dtype != torch.float32 and block.device.type == "cuda":
        return torch.mm(queries, block.T, out_dtype=torch.float32)
    return (queries @ block.T).float()


def _load(rows: npt.NDArray[np.float32], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Bring rows to a device in blocks; float32 on the CPU stays the mapped file itself."""
    import torch
    from tqdm import tqdm

    if device.type == "cpu" and dtype == torch.float32:
        return torch.from_numpy(rows)
    shard = torch.empty(rows.shape, dtype=dtype, device=device)
    step = max(1, _LOAD_BYTES // (4 * rows.shape[1]))
    hidden = len(rows) <= 8 * step
    for start in tqdm(range(0, len(rows), step), desc=f"vectors to {device}", unit="block", disable=hidden):
        shard[start : start + step] = torch.from_numpy(rows[start : start + step]).to(device).to(dtype)
    return shard


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
