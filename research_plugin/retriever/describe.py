"""What a server says about itself in /health, and how that differs from what a recipe describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research_plugin.retriever.settings import RetrieverConfig
from research_plugin.retriever.validate import topk_limits


def describe(config: RetrieverConfig) -> dict[str, Any]:
    """Return what /health shows besides the number of documents; files by name, because folders differ by machine."""
    return {
        "engine": config.engine,
        "corpus": _name(config.corpus),
        "model": _name(config.encoder.model_path) if config.engine in ("dense", "hybrid") else None,
        "reranker": _name(config.rerank.model_path),
        "topk": config.topk,
        "max_topk": min(topk_limits(config).values()),
    }


def differences(config: RetrieverConfig, health: Mapping[str, Any]) -> list[str]:
    """Say where a server's /health differs from ``config``; what ``config`` leaves open is not compared."""
    expected = {**describe(config), "size": config.corpus_rows}
    limit = expected.pop("max_topk")
    found = [
        f"{key} is {health.get(key)!r}, expected {wanted!r}"
        for key, wanted in expected.items()
        if wanted is not None and health.get(key) != wanted
    ]
    if isinstance(health.get("max_topk"), int) and health["max_topk"] < limit:
        found.append(f"max_topk is {health['max_topk']}, expected {limit} or more")
    return found


def _name(path: str | None) -> str | None:
    return Path(path).name if path else None
