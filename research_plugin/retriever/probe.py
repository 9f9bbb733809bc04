"""Does an index hold the vectors that this encoder gives to this corpus? For indexes without a manifest.

A sample of passages is encoded again. Each must agree with the vector in its own row; if not, other poolings and
instructions are tried, to say which setting is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from research_plugin.retriever.documents import DocumentStore
    from research_plugin.retriever.encoder import Encoder
    from research_plugin.retriever.vector_index import VectorIndex

_SAMPLE = 16
_NEAREST = 10
# Agreement of the same text in float16 and bfloat16 is 0.999 or more.
_SAME = 0.995


def find_fault(index: VectorIndex, store: DocumentStore, encoder: Encoder) -> str | None:
    """Return what is wrong, for people; None if index, corpus and encoder fit.

    An index that keeps its vectors only roughly (PQ) passes if no other setting fits clearly better and most passages
    find themselves.
    """
    rows = _sample(len(store))
    texts = [document.contents for document in store.documents(rows)]
    own = encoder.encode_passages(texts)
    agreement = agree(index, own, rows)
    if agreement >= _SAME:
        return None
    best, change = max(_alternatives(index, encoder, texts, rows), default=(0.0, ""))
    if 1 - best < (1 - agreement) / 2:
        also = ", and encoder.query_instruction to go with it" if "instruction" in change else ""
        return (
            f"{len(rows)} passages, encoded again, agree with their own vectors to {agreement:.3f} (1: the same); to "
            f"{best:.3f} with {change}: set that{also}"
        )
    nearest = index.search(own, min(_NEAREST, index.size))[1]
    found = sum(row in near for row, near in zip(rows, nearest.tolist(), strict=True))
    if 2 * found >= len(rows):
        return None
    return (
        f"{found} of {len(rows)} passages are among their own {_NEAREST} nearest, and no other pooling or instruction "
        "helps; the corpus has another order than the index, encoder.model_path is another model, or index.nprobe is "
        "far too low"
    )


def agree(index: VectorIndex, vectors: npt.NDArray[np.float32], rows: list[int]) -> float:
    """Median likeness of the vectors [n, d] to what the index has in these rows.

    1: the same; 0: no closer than two passages of the sample are to each other, which for E5 is a cosine of 0.75.
    """
    import numpy as np

    lengths = np.maximum((vectors**2).sum(axis=1), 1e-12)
    between = (vectors @ vectors.T) / lengths
    usual = float(np.median(between[~np.eye(len(rows), dtype=bool)])) if len(rows) > 1 else 0.0
    stored = index.stored(rows)
    if stored is not None:
        alike = 1 - ((vectors - stored) ** 2).sum(axis=1) / (2 * lengths)
    else:
        scores, nearest = index.search(vectors, min(_NEAREST, index.size))
        scores = scores / lengths[:, None] if index.metric == "ip" else 1 + scores / (2 * lengths[:, None])
        alike = np.where(nearest == np.array(rows)[:, None], 1 - abs(1 - scores), usual).max(axis=1)
    return max(0.0, (float(np.median(alike)) - usual) / max(1 - usual, 1e-6))


def _alternatives(
    index: VectorIndex, encoder: Encoder, texts: list[str], rows: list[int]
) -> Iterator[tuple[float, str]]:
    """(agreement, the settings that gave it) for what else an index may have been built with."""
    import numpy as np

    settings = encoder.settings
    poolings = ("mean", "cls", "last") if settings.backend == "transformers" else (settings.pooling,)
    instructions = dict.fromkeys((settings.passage_instruction, settings.query_instruction, "passage: ", ""))
    for pooling in poolings:
        for instruction in instructions:
            raw = encoder.encode(texts, instruction, settings.passage_max_length, pooling, normalize=False)
            lengths = np.linalg.norm(raw, axis=1, keepdims=True)
            for normalize, vectors in ((True, raw / np.maximum(lengths, 1e-12)), (False, raw)):
                tried = {"pooling": pooling, "passage_instruction": instruction, "normalize": normalize}
                changed = [
                    f"encoder.{name}={value!r}" for name, value in tried.items() if value != getattr(settings, name)
                ]
                yield agree(index, vectors, rows), ", ".join(changed)


def _sample(size: int) -> list[int]:
    """Rows spread evenly over the corpus."""
    count = min(_SAMPLE, size)
    return [size * (2 * i + 1) // (2 * count) for i in range(count)]
