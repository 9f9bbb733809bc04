"""The vectors of one device, rounded and searched there; how far a rounded score can be from the true one is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from research_plugin.errors import ConfigError
from research_plugin.retriever.packed_linear import product

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

GPU_SCORE_BYTES = 2**28
"""Most that the scores of one step take on a GPU."""
_CPU_SCORE_BYTES = 2**26
# Scores of 8,192 rows and some dozens of queries stay in a CPU's cache while they are computed. Steps are whole blocks.
_BLOCK_ROWS = 8_192
_GPU_LOAD_BYTES = 2**28
_QUERY_STEP = 16
# Rounding takes 0.004 of a number in bfloat16, 0.0005 in float16; more means numbers beyond the format's range.
_COARSEST = 0.01
# Rows whose maximum is looked at first, see `top`.
_GROUP = 32


class Shard:
    """Rows ``first`` and following of an index, on one device.

    Below float32, what is stored is a row less ``centre``, rounded. That lowers every score of a query by the same
    amount and takes away what the rows have in common, such as the 0.7 of any two E5 vectors: the rest is rounded
    more finely.

    Args:
        rows: float32 [n, d], mapped.
        first: number of the first of them in the index.
        dtype: to round to. float32 on the CPU stays the mapped file itself.
        centre: float32 [d], the same for all shards of an index; None: zero.

    Raises:
        ConfigError: the rows hold infinities or NaN, or are too large or too small for the dtype.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.float32],
        first: int,
        device: torch.device,
        dtype: torch.dtype,
        centre: torch.Tensor | None,
    ) -> None:
        import torch
        from tqdm import tqdm

        self.first, self._count, self._device, self._dtype = first, len(rows), device, dtype
        self._radius, self._error = 0.0, 0.0
        self._vectors: torch.Tensor | None = None
        self._products: list[Callable[[torch.Tensor], torch.Tensor]] = []
        on_cpu = device.type == "cpu"
        if on_cpu and dtype == torch.float32:
            self._vectors = torch.from_numpy(rows)
            return
        if not on_cpu:
            self._vectors = torch.empty(rows.shape, dtype=dtype, device=device)
        centre = torch.zeros(1) if centre is None else centre
        step = _BLOCK_ROWS if on_cpu else max(1, _GPU_LOAD_BYTES // (4 * rows.shape[1]))
        hidden = rows.nbytes <= 8 * _GPU_LOAD_BYTES
        for start in tqdm(range(0, len(rows), step), desc=f"vectors to {device}", unit="block", disable=hidden):
            exact = torch.from_numpy(rows[start : start + step]).to(device) - centre.to(device)
            rounded = exact.to(dtype)
            # max() of Python's would lose NaN.
            self._radius = float(exact.norm(dim=1).max().clamp_min(self._radius))
            self._error = float((exact - rounded.float()).norm(dim=1).max().clamp_min(self._error))
            if self._vectors is not None:
                self._vectors[start : start + step] = rounded
            else:
                self._products.append(product(rounded))
        if not self._error <= _COARSEST * self._radius:
            raise ConfigError(
                f"index.dtype={str(dtype).removeprefix('torch.')}: cannot hold vectors as long as {self._radius:.3g} "
                f"(rounding takes {self._error:.3g} of them); set index.dtype=float32"
            )

    def best(self, queries: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores, less that of the centre, and rows [n, min(count, rows)] for float32 [n, d]; in any order."""
        import torch

        queries = queries.to(self._device, self._dtype, non_blocking=True)
        budget = (_CPU_SCORE_BYTES if self._device.type == "cpu" else GPU_SCORE_BYTES) // (4 * len(queries))
        step = max(1, budget // _BLOCK_ROWS) * _BLOCK_ROWS
        scores = torch.empty((len(queries), 0), device=self._device)
        rows = torch.empty((len(queries), 0), dtype=torch.long, device=self._device)
        for start in range(0, self._count, step):
            best, places = top(self._scores(queries, start, min(start + step, self._count)), count)
            scores, rows = torch.cat((scores, best), dim=1), torch.cat((rows, places + (self.first + start)), dim=1)
            scores, places = scores.topk(min(count, scores.shape[1]), dim=1)
            rows = rows.gather(1, places)
        return scores, rows

    def most_below(self, queries: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """How much higher than its score from `best` a row's true one can be: float32 [n], for scores [n]."""
        import torch

        rounded = queries.to(self._dtype).float()
        queries_off = (queries - rounded).norm(dim=1) * self._radius
        vectors_off = rounded.norm(dim=1) * self._error
        # Sums are made in float32, of d products.
        sums_off = rounded.norm(dim=1) * self._radius * queries.shape[1] * torch.finfo(torch.float32).eps
        off: torch.Tensor = queries_off + vectors_off + sums_off
        if self._device.type == "cpu":  # rounds the sum once more
            numbers = torch.finfo(self._dtype)
            off += scores.abs().clamp_min(numbers.tiny) * (numbers.eps / 2)
        return off

    def _scores(self, queries: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Inner products [n, stop - start]; ``start`` begins a block.

        A float16 product of E5 vectors would be rounded to steps of 0.0005, a bfloat16 one to 0.004, were they not
        centred; the GPU is asked to hand out what it summed up in float32.
        """
        import torch

        if self._vectors is None:
            blocks = self._products[start // _BLOCK_ROWS : -(-stop // _BLOCK_ROWS)]
            asked = len(queries)
            if asked > _QUERY_STEP:  # oneDNN keeps code for each number of rows that it ever multiplied
                queries = torch.nn.functional.pad(queries, (0, 0, 0, -asked % _QUERY_STEP))
            return torch.cat([block(queries) for block in blocks], dim=1)[:asked]
        vectors = self._vectors[start:stop]
        if self._device.type == "cuda" and self._dtype != torch.float32:
            return torch.mm(queries, vectors.T, out_dtype=torch.float32)
        return queries @ vectors.T


def top(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``scores.topk(count, dim=1)``, in any order, as float32 and several times faster for wide rows.

    The best ``count`` scores lie in the ``count`` groups with the highest maxima, so only those are looked into. Group
    j of a row are its columns j, j + groups, j + 2 groups, ...: such maxima are taken many at a time.
    """
    queries, columns = scores.shape
    groups = columns // _GROUP
    if groups <= 2 * count:
        best, places = scores.topk(min(count, columns), dim=1, sorted=False)
        return best.float(), places
    grouped = scores[:, : groups * _GROUP].view(queries, _GROUP, groups)
    chosen = grouped.amax(1).topk(count, dim=1, sorted=False).indices
    members = grouped.gather(2, chosen[:, None].expand(queries, _GROUP, count)).reshape(queries, -1)
    best, places = members.topk(count, dim=1, sorted=False)
    places = places // count * groups + chosen.gather(1, places % count)
    return _with_rest(scores, groups * _GROUP, best.float(), places)


def _with_rest(
    scores: torch.Tensor, start: int, best: torch.Tensor, places: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the last columns, which fill no group; there are fewer than ``_GROUP``."""
    import torch

    rest = scores[:, start:].float()
    if not rest.shape[1]:
        return best, places
    columns = torch.arange(start, scores.shape[1], device=scores.device).expand(len(scores), -1)
    best, chosen = torch.cat((best, rest), dim=1).topk(best.shape[1], dim=1, sorted=False)
    return best, torch.cat((places, columns), dim=1).gather(1, chosen)
