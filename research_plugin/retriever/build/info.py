"""``index info``: what an index file holds, without reading it into memory."""

from __future__ import annotations

from pathlib import Path

from research_plugin.retriever.build.write import hnsw_links, parts
from research_plugin.retriever.faiss_index import read_index
from research_plugin.retriever.manifest import read_manifest


def describe_index(path: Path) -> dict[str, str]:
    """Facts about an index file, in the order in which they are shown.

    Raises:
        DataError: FAISS cannot read it, or its manifest is none.
    """
    import faiss

    before = _own_memory()
    index = read_index(path)
    own = _own_memory() - before
    size = path.stat().st_size
    metrics = {faiss.METRIC_INNER_PRODUCT: "ip", faiss.METRIC_L2: "l2"}
    facts = {
        "kind": " over ".join(type(part).__name__ for part in parts(index)),
        "rows": f"{index.ntotal:,}",
        "dimension": f"{index.d}",
        "metric": metrics.get(index.metric_type, f"FAISS metric {index.metric_type}"),
        "size": f"{size / 1e9:.3f} GB, {size / max(1, index.ntotal):,.0f} bytes a row",
        "memory": f"{own / 1e9:.3f} GB of its own when mapped, the rest is shared",
    }
    for part in parts(index):
        if isinstance(part, faiss.IndexIVF):
            facts["search"] = f"nprobe {part.nprobe} of {part.nlist:,} lists"
        elif isinstance(part, faiss.IndexHNSW):
            facts["search"] = f"efSearch {part.hnsw.efSearch}, M {hnsw_links(part) // 2}"
    return facts | _manifest(path)


def _manifest(path: Path) -> dict[str, str]:
    manifest = read_manifest(path)
    if manifest is None:
        return {"manifest": "none"}
    settings = {key: value for key, value in manifest.encoder.items() if key != "probe"}
    return {
        "manifest": manifest.kind,
        "encoder": ", ".join(f"{key}={value!r}" for key, value in settings.items()) or "not recorded",
        "corpus": ", ".join(f"{key}={value}" for key, value in manifest.corpus.items()) or "not recorded",
    }


def _own_memory() -> int:
    """Bytes of this process that are no file's."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))
