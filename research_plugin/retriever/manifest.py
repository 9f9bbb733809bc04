"""What an index was made from, written beside it as ``<index file>.json``.

FlashRAG writes no such file; `dense` then probes the index instead.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from research_plugin.errors import DataError

# Same model in float16 on a GPU and bfloat16 on a CPU: 0.9999. Another model: below 0.5, another revision: below 0.99.
_SAME_VECTOR = 0.998


@dataclass
class Manifest:
    """Facts about one index file."""

    rows: int
    dimension: int
    metric: str
    """"ip" or "l2"."""
    kind: str
    """FAISS class or factory string, for people."""
    corpus: dict[str, Any] = field(default_factory=dict)
    """`DocumentStore.fingerprint`."""
    encoder: dict[str, Any] = field(default_factory=dict)
    """`Encoder.fingerprint`."""


def manifest_path(index: str | Path) -> Path:
    return Path(f"{index}.json")


def read_manifest(index: str | Path) -> Manifest | None:
    """Read the manifest of an index file; None where there is none.

    Raises:
        DataError: it is there and is no manifest.
    """
    path = manifest_path(index)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(**{item.name: values[item.name] for item in fields(Manifest)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"index manifest {path}: cannot be read ({error}); build the index again or delete it"
        ) from error


def write_manifest(index: str | Path, manifest: Manifest) -> None:
    """Write it beside the index, in one step."""
    path = manifest_path(index)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def compare(
    manifest: Manifest,
    *,
    rows: int | None = None,
    dimension: int | None = None,
    metric: str | None = None,
    corpus: dict[str, Any] | None = None,
    encoder: dict[str, Any] | None = None,
) -> list[str]:
    """Return one sentence per fault: what the manifest says and what was found. What is None is not compared."""
    found = {"rows": rows, "dimension": dimension, "metric": metric}
    faults = [
        f"{name}: the manifest says {getattr(manifest, name)}, the index file has {value}"
        for name, value in found.items()
        if value is not None and value != getattr(manifest, name)
    ]
    if corpus is not None and manifest.corpus:
        faults += _corpus_faults(manifest.corpus, corpus)
    if encoder is not None and manifest.encoder:
        faults += _encoder_faults(manifest.encoder, encoder)
    return faults


def _corpus_faults(built: dict[str, Any], given: dict[str, Any]) -> list[str]:
    if built["rows"] != given["rows"]:
        return [f"corpus: the index was built from {built['rows']} documents, this corpus has {given['rows']}"]
    if built["documents"] != given["documents"]:
        return ["corpus: ids or texts differ from those the index was built from"]
    if built["order"] != given["order"]:
        return ["corpus: the same documents, but in another order than when the index was built"]
    return []


def _encoder_faults(built: dict[str, Any], given: dict[str, Any]) -> list[str]:
    names = ("pooling", "normalize", "query_instruction", "passage_instruction", "passage_max_length")
    faults = [
        f"encoder.{name}={given[name]!r}: the index was built with {built[name]!r}"
        for name in names
        if built.get(name) != given[name] and None not in (built.get(name), given[name])
    ]
    return faults or _model_faults(built, given)


def _model_faults(built: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Compare the probe vectors; only worth a word when every setting agrees."""
    import numpy as np

    from research_plugin.retriever.encoder import probe_vectors

    before, now = probe_vectors(built), probe_vectors(given)
    if before.shape == now.shape:
        lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(now, axis=1)
        likeness = float(((before * now).sum(1) / lengths).min())
        if likeness >= _SAME_VECTOR:
            return []
    else:
        likeness = 0.0
    return [
        f"encoder.model_path={given['model']!r}: gives other vectors (cosine {likeness:.3f}) than {built['model']!r}, "
        "which the index was built with"
    ]
