"""Files that are their vectors: a flat inner-product index of FAISS, and FlashRAG's ``emb_*.memmap`` without header.

They are mapped and written without FAISS, and without holding the vectors in memory.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from research_plugin.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# faiss 1.5 to 1.15 (impl/index_write.cpp): "IxFI", int32 dimension, int64 rows, two int64 that mean nothing, one byte
# "is trained", int32 metric (0: inner product), uint64 rows * dimension. The vectors follow in float32.
_HEADER, _TYPE, _UNUSED = struct.Struct("<4siqqqBiQ"), b"IxFI", 2**20
_COPY_BYTES = 2**26


def map_flat(path: Path, dimension: int | None = None) -> npt.NDArray[np.float32]:
    """Map the vectors of a file as [rows, dimension].

    Args:
        path: a flat index, or with the ending ``.memmap`` raw float32.
        dimension: of a raw file, which does not say it.

    Raises:
        DataError: the file is missing, of another kind or cut off.
    """
    if not path.is_file():
        raise DataError(f"index {path}: no such file; give a flat index or FlashRAG's emb_*.memmap")
    size = path.stat().st_size
    if path.suffix == ".memmap":
        if not dimension or size % (4 * dimension):
            raise DataError(f"index {path}: {size:,} bytes are no whole number of float32 vectors of {dimension}")
        return map_vectors(path, size // (4 * dimension), dimension)
    with path.open("rb") as file:
        start = file.read(_HEADER.size)
    if start[:4] != _TYPE:
        kind = start[:4].decode("latin-1")
        raise DataError(
            f"index {path}: is no flat inner-product index (its type is {kind!r}), and no other holds the exact "
            "vectors; index.backend=faiss serves any type"
        )
    _, found, rows, _, _, _, _, floats = _HEADER.unpack(start.ljust(_HEADER.size, b"\0"))
    if not floats or floats != rows * found or size != _HEADER.size + 4 * floats:
        raise DataError(
            f"index {path}: {size:,} bytes, but {rows:,} vectors of {found} need {_HEADER.size + 4 * rows * found:,}; "
            "is it half-downloaded?"
        )
    return map_vectors(path, rows, found, _HEADER.size)


def map_vectors(path: Path, rows: int, dimension: int, offset: int = 0) -> npt.NDArray[np.float32]:
    """Map float32 vectors that begin at ``offset`` as [rows, dimension]."""
    import numpy as np

    # "c": nothing is ever written, but torch warns about arrays that could not be.
    return np.memmap(path, dtype="<f4", mode="c", offset=offset, shape=(rows, dimension))


def write_flat(vectors: npt.NDArray[np.float32], path: Path) -> None:
    """Write mapped vectors [n, d] as the file that ``faiss.write_index`` makes of an ``IndexFlatIP``."""
    from tqdm import tqdm

    rows, dimension = vectors.shape
    step = max(1, _COPY_BYTES // (4 * dimension))
    with path.open("wb") as file, tqdm(total=rows, desc="write index", unit="passages", unit_scale=True) as bar:
        file.write(_HEADER.pack(_TYPE, dimension, rows, _UNUSED, _UNUSED, True, 0, rows * dimension))
        for first in range(0, rows, step):
            block = vectors[first : first + step]
            file.write(block.tobytes())
            bar.update(len(block))
