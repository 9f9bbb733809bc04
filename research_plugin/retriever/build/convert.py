"""``index convert``: from a flat index to a smaller or faster one, with what that costs in recall."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.build import write
from research_plugin.retriever.build.recall import check_effort, noisy_sample, tune
from research_plugin.retriever.flat_file import map_flat
from research_plugin.retriever.manifest import Manifest, read_manifest, write_manifest
from research_plugin.retriever.settings import RetrieverConfig

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_QUERIES = 1024


def convert(
    source: Path, target: Path, faiss_type: str, config: RetrieverConfig, *, k: int, queries: Path | None
) -> None:
    """Write ``target`` and its manifest.

    Args:
        source: flat inner-product index.
        target: file to write; must not be there yet.
        faiss_type: FAISS factory string.
        config: threads, the search effort to store, and the encoder of the queries.
        k: documents per query that recall is counted over.
        queries: text file, one a line, or JSONL with "question" or "query"; None: stored vectors with noise.

    Raises:
        ResearchPluginError: a file cannot be used, or the type does not fit.
    """
    import faiss

    if target.exists():
        raise ConfigError(f"{target}: is there already; delete it or give another name")
    vectors = map_flat(source)
    index = write.make_index(len(vectors), vectors.shape[1], faiss_type)
    check_effort(index, config.index)
    asked = noisy_sample(vectors, _QUERIES // 4) if queries is None else encode_queries(queries, config)
    if asked.shape[1] != vectors.shape[1]:
        raise ConfigError(
            f"encoder.model_path={config.encoder.model_path}: gives {asked.shape[1]} dimensions, {source} has "
            f"{vectors.shape[1]}"
        )
    write.fill(index, vectors, config.threads)
    tune(index, vectors, asked, k, config.index)
    partial = target.with_name(f"{target.name}.part")
    faiss.write_index(index, str(partial))
    kind = f"{faiss_type}, converted from {source.name}"
    known = read_manifest(source) or Manifest(len(vectors), vectors.shape[1], "ip", kind)
    write_manifest(partial, replace(known, kind=kind))
    write.publish(partial, target)


def encode_queries(path: Path, config: RetrieverConfig) -> npt.NDArray[np.float32]:
    """Encode the first 1,024 queries of a file: float32 [n, d]."""
    from research_plugin.retriever.encoder import Encoder

    texts = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line) if path.suffix == ".jsonl" else line.strip()
            text = row.get("question", row.get("query")) if isinstance(row, dict) else row
            if isinstance(text, str) and text:
                texts.append(text)
    except (OSError, ValueError) as error:
        raise DataError(f"queries {path}: cannot be read ({error})") from error
    if not texts:
        raise DataError(f'queries {path}: holds none; expected one a line, or JSONL with "question" or "query"')
    return Encoder(config.encoder, config.threads).encode_queries(texts[:_QUERIES])
