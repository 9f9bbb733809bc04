"""From mapped vectors to a FAISS index that is not flat: trained on a seeded sample, filled block by block.

FAISS keeps what it fills in memory until it is written; `flat_file.write_flat` needs none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research_plugin.errors import ConfigError
from research_plugin.retriever.manifest import manifest_path

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FLAT = "Flat"
_ADD_ROWS = 2**16
# faiss's k-means looks at no more than 256 rows a centroid and wants 39; 65,536 rows train any 8-bit quantizer.
_TRAINING_ROWS, _TRAINING_ROWS_PER_LIST = 2**16, 64
_REFINE_FACTOR = 10
# An OPQ rotation is fitted with a product quantizer of 256 centroids, whatever the index's own has.
_OPQ_ROWS = 256


def make_index(rows: int, dimension: int, faiss_type: str) -> Any:
    """An empty inner-product index from a FAISS factory string such as ``IVF4096,SQ8``.

    Raises:
        ConfigError: FAISS does not know the type, it does not fit the dimension, or ``rows`` are too few to train it.
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
    least = least_rows(index)
    if rows < least:
        raise ConfigError(
            f"index type {faiss_type!r}: is trained on at least {least:,} vectors, there are {rows:,}; choose a "
            "smaller one, or Flat, SQ8 or HNSW32, which need none"
        )
    return index


def least_rows(index: Any) -> int:
    """What training needs: a vector per list, per centroid of a product quantizer, per dimension that a PCA keeps.

    FAISS would find out itself, but after hours of encoding, and names neither number in every case.
    """
    import faiss

    needs = [0]
    for part in parts(index):
        needs.append(getattr(part, "nlist", 0))
        needs.append(part.pq.ksub if hasattr(part, "pq") else 0)
        chain: Any = getattr(part, "chain", None)  # a C++ vector
        for place in range(chain.size() if chain else 0):
            transform = faiss.downcast_VectorTransform(chain.at(place))
            needs.append(transform.d_out if isinstance(transform, faiss.PCAMatrix) else 0)
            needs.append(_OPQ_ROWS if isinstance(transform, faiss.OPQMatrix) else 0)
    return max(needs)


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


def _reason(error: RuntimeError) -> str:
    """FAISS puts C++ signature and source line before what it has to say."""
    return str(error).splitlines()[0].rsplit(": ", 1)[-1]
