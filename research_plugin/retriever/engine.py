"""The seam between the HTTP front and whatever finds the passages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from research_plugin.document import Document


class Stages:
    """Tells how long each stage of one engine call took: "encode", "search", "fetch", "rerank", "web".

    Args:
        observe: called with (stage, seconds) when a stage ends; None: nobody listens.
    """

    def __init__(self, observe: Callable[[str, float], None] | None = None) -> None:
        self._observe = observe

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            if self._observe is not None:
                self._observe(stage, time.perf_counter() - started)


SILENT = Stages()


class Engine(Protocol):
    """A loaded index with its corpus. Called from one thread at a time."""

    @property
    def name(self) -> str:
        """Short name for /health, such as "bm25" or "dense"."""
        ...

    @property
    def size(self) -> int | None:
        """Number of documents in the corpus; None where there is no such number (the web)."""
        ...

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        """Return one list per query, best document first, at most ``min(topk, size)`` long, possibly empty.

        Results depend on each query alone, never on what it was batched with. ``queries`` holds no blank string.
        """
        ...

    def close(self) -> None:
        """Let go of files and devices; the engine is not called again."""
        ...
