"""From vectors on the disk to a FAISS index file, without holding the vectors in memory.

A flat index is a short header and the vectors, so they are copied. Other types are trained on a seeded sample and
filled block by block; FAISS itself keeps them in memory until they are written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.manifest import manifest_path

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FLAT = "Flat"
_COPY_BYTES = 2**26
_ADD_ROWS = 2**16
# faiss's k-means looks at no more than 256 rows a centroid and wants 39; 65,536 rows train any 8-bit quantizer.
_TRAINING_ROWS, _TRAINING_ROWS_PER_LIST = 2**16, 64
_REFINE_FACTOR = 10


def open_index(path: Path) -> Any:
    """Map an index file.

    Raises:
        DataError: it is missing, cut off or no index.
    """
    import faiss

    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise DataError(f"index {path}: FAISS cannot read it ({_reason(error)})") from error


def flat_vectors(path: Path) -> npt.NDArray[np.float32]:
    """Map the vectors of a flat inner-product index file as [rows, dimension].

    Raises:
        DataError: FAISS cannot read it, or it is of another kind.
    """
    import faiss

    index = open_index(path)
    if not isinstance(index, faiss.IndexFlat) or index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise DataError(
            f"index {path}: is a {type(index).__name__}; only a flat inner-product index holds the exact vectors that "
            "another one can be made from"
        )
    return map_vectors(path, index.ntotal, index.d, path.stat().st_size - 4 * index.ntotal * index.d)


def map_vectors(path: Path, rows: int, dimension: int, offset: int = 0) -> npt.NDArray[np.float32]:
    """Map a raw float32 file as [rows, dimension], read-only."""
    import numpy as np

    return np.memmap(path, dtype="<f4", mode="r", offset=offset, shape=(rows, dimension))


def make_index(dimension: int, faiss_type: str) -> Any:
    """An empty inner-product index from a FAISS factory string such as ``IVF4096,SQ8``.

    Raises:
        ConfigError: FAISS does not know the type or it does not fit the dimension.
    """
    import faiss

    try:
        index = faiss.index_factory(dimension, faiss_type, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(
            f"index type {faiss_type!r} for {dimension} dimensions: FAISS refuses it ({_reason(error)}); "
            "known types are Flat, SQ8, SQfp16, PQ64, IVF4096,Flat, IVF4096,SQ8, HNSW32 and their combinations"
        ) from error
    if isinstance(index, faiss.IndexRefine):
        # FAISS's own default, 1, refines as many candidates as are asked for: it changes nothing but their order.
        index.k_factor = _REFINE_FACTOR
    return index


def parts(index: Any) -> list[Any]:
    """An index and what is inside it, outermost first; the innermost one keeps the vectors."""
    import faiss

    inside = {faiss.IndexPreTransform: "index", faiss.IndexRefine: "base_index", faiss.IndexHNSW: "storage"}
    found = [faiss.downcast_index(index)]
    while name := next((name for kind, name in inside.items() if isinstance(found[-1], kind)), None):
        found.append(faiss.downcast_index(getattr(found[-1], name)))
    return found


def hnsw_links(index: Any) -> int:
    """Links of a vector in the bottom layer: twice the M of ``HNSW<M>``."""
    return int(index.hnsw.nb_neighbors(0))


def bytes_per_vector(index: Any) -> int:
    """What one vector adds to the index, in memory and in the file, to within a few per cent."""
    import faiss

    size = 0
    for part in parts(index):
        if isinstance(part, faiss.IndexRefine):
            size += bytes_per_vector(part.refine_index)
        elif isinstance(part, faiss.IndexHNSW):
            # Their offset and the level come on top; links of the upper layers are few.
            size += 4 * hnsw_links(part) + 12
        elif isinstance(part, faiss.IndexIVF):
            size += 8
    return size + int(part.sa_code_size())


def training_rows(index: Any, rows: int) -> int:
    """How many of the rows `fill` trains on."""
    import faiss

    if index.is_trained:
        return 0
    ivf = faiss.try_extract_index_ivf(index)
    return min(rows, max(_TRAINING_ROWS, _TRAINING_ROWS_PER_LIST * (ivf.nlist if ivf else 0)))


def write_flat(vectors: npt.NDArray[np.float32], path: Path) -> None:
    """Write mapped vectors [n, d] as the file that ``faiss.write_index`` makes of an ``IndexFlatIP``."""
    from tqdm import tqdm

    rows, dimension = vectors.shape
    step = max(1, _COPY_BYTES // (4 * dimension))
    with path.open("wb") as file, tqdm(total=rows, desc="write index", unit="passages", unit_scale=True) as bar:
        file.write(_flat_header(rows, dimension))
        for first in range(0, rows, step):
            block = vectors[first : first + step]
            file.write(block.tobytes())
            bar.update(len(block))


def fill(index: Any, vectors: npt.NDArray[np.float32], threads: int, seed: int = 0) -> None:
    """Train an empty index on a sample of mapped vectors [n, d] and add all of them.

    Raises:
        ConfigError: there are too few vectors to train on.
    """
    import faiss
    import numpy as np
    from tqdm import tqdm

    faiss.omp_set_num_threads(threads)
    rows, size = len(vectors), training_rows(index, len(vectors))
    if size:
        print(f"training on {size:,} of {rows:,} vectors", flush=True)
        sample = np.sort(np.random.default_rng(seed).choice(rows, size, replace=False))
        try:
            index.train(np.ascontiguousarray(vectors[sample]))
        except RuntimeError as error:
            raise ConfigError(f"index over {rows:,} vectors: FAISS cannot train it ({_reason(error)})") from error
    with tqdm(total=rows, desc="add", unit="vectors", unit_scale=True) as bar:
        for first in range(0, rows, _ADD_ROWS):
            block = np.ascontiguousarray(vectors[first : first + _ADD_ROWS])
            index.add(block)
            bar.update(len(block))


def publish(partial: Path, path: Path) -> None:
    """Give a finished index and its manifest their names, once its bytes are on the disk."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    # A manifest alone says nothing; an index alone would pass for one of another builder.
    os.replace(manifest_path(partial), manifest_path(path))
    os.replace(partial, path)


def _flat_header(rows: int, dimension: int) -> bytes:
    """The bytes before the vectors, from FAISS's own file of one vector with both counts in it replaced.

    faiss 1.15 (impl/index_write.cpp): 4 bytes of type, int32 d, int64 ntotal, ..., uint64 number of floats.
    """
    import faiss
    import numpy as np

    index = faiss.IndexFlatIP(dimension)
    index.add(np.zeros((1, dimension), np.float32))
    header = bytearray(faiss.serialize_index(index).tobytes()[: -4 * dimension])
    one, floats = (1).to_bytes(8, "little"), dimension.to_bytes(8, "little")
    if header[8:16] != one or header[-8:] != floats:
        raise ConfigError(f"faiss {faiss.__version__} writes flat indexes in an unknown form; install faiss 1.15")
    header[8:16], header[-8:] = rows.to_bytes(8, "little"), (rows * dimension).to_bytes(8, "little")
    return bytes(header)


def _reason(error: RuntimeError) -> str:
    """FAISS puts C++ signature and source line before what it has to say."""
    return str(error).splitlines()[0].rsplit(": ", 1)[-1]
