"""The seam between the dense engine and whatever searches vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class VectorIndex(Protocol):
    """A loaded index of ``size`` vectors, numbered like the corpus' documents. Called from one thread at a time."""

    @property
    def kind(self) -> str:
        """What it is, for people: a FAISS class name or "torch float16 on 4 devices"."""
        ...

    @property
    def size(self) -> int: ...

    @property
    def dimension(self) -> int: ...

    @property
    def metric(self) -> str:
        """ "ip" (inner product) or "l2"."""
        ...

    def search(
        self, vectors: npt.NDArray[np.float32], topk: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return scores float32 [n, topk] and rows int64 [n, topk] for float32 [n, dimension], best first.

        A higher score is always better: for "l2" it is the negated squared distance. Row -1 means that the index found
        no more.
        """
        ...

    def stored(self, rows: Sequence[int]) -> npt.NDArray[np.float32] | None:
        """The vectors of these rows as far as the index kept them, float32 [n, dimension]; None if it cannot tell."""
        ...

    def close(self) -> None:
        """Let go of files and devices."""
        ...
