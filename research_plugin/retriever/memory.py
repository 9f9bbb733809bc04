"""What an engine will take of this machine's memory: said, and checked, before anything is loaded."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from research_plugin.errors import ConfigError
from research_plugin.retriever.settings import RetrieverConfig
from research_plugin.retriever.validate import engine_names

_log = logging.getLogger(__name__)
_CGROUP = Path("/sys/fs/cgroup")

# bm25s 0.3.16 over 150,000 passages of 100 words: 4.5 times the corpus file once built, 9 times while it sorts.
_BM25_FACTOR = 4


@dataclass(frozen=True)
class Need:
    """One thing that takes memory; what is ``mapped`` is shared, and read from disk where it does not fit."""

    what: str
    size: int
    mapped: bool

    def __str__(self) -> str:
        return f"{self.what} {self.size / 1e9:.2f} GB{' (mapped)' if self.mapped else ''}"


def check_memory(config: RetrieverConfig) -> None:
    """Log what the engine needs at least and what is free.

    Raises:
        ConfigError: what cannot be mapped surely does not fit.
    """
    needs, free = memory_needs(config), available_memory()
    if not needs or free is None:
        return
    total = ", ".join(map(str, needs))
    _log.info("memory, at least: %s; %.1f GB available", total, free / 1e9)
    firm = sum(need.size for need in needs if not need.mapped)
    if firm > free:
        raise ConfigError(
            f"engine {config.engine}: {firm / 1e9:.1f} GB of memory are needed at least ({total}), "
            f"{free / 1e9:.1f} GB are available; see docs/retriever.md for smaller indexes"
        )
    if firm + sum(need.size for need in needs if need.mapped) > free:
        _log.warning("the mapped files do not fit into memory with the rest: searches will wait for the disk")


def memory_needs(config: RetrieverConfig) -> list[Need]:
    """Files and structures in this machine's own memory, GPU memory left out."""
    names = engine_names(config)
    needs = []
    if "bm25" in names:
        needs.append(Need("BM25 index", _BM25_FACTOR * _size(config.corpus), mapped=False))
    if "dense" in names:
        mapped = config.index.mmap or config.index.backend == "torch"
        needs += [
            Need("vector index", _size(config.index.path), mapped),
            Need("encoder", _weights(config.encoder.model_path), mapped=False),
            Need("corpus", _size(config.corpus), mapped=True),
        ]
    if config.rerank.model_path:
        needs.append(Need("reranker", _weights(config.rerank.model_path), mapped=False))
    return [need for need in needs if need.size]


def available_memory() -> int | None:
    """Bytes that this process can still get: of the machine, or of its control group if that is less."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    if free is None:
        return None
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        statistics = (_CGROUP / "memory.stat").read_text().splitlines()
        # Counted as used, but given up for whoever asks.
        cached = next(int(line.split()[1]) for line in statistics if line.startswith("inactive_file "))
        return min(free, int(limit) - int(used) + cached)
    except (OSError, ValueError, StopIteration):  # no such group, or "max": no limit
        return free


def _size(path: str | None) -> int:
    return Path(path).stat().st_size if path and Path(path).is_file() else 0


def _weights(folder: str | None) -> int:
    """Bytes of a model's weight files; 0 for a hub name."""
    files = Path(folder).glob("*.safetensors") if folder else ()
    return sum(file.stat().st_size for file in files)
