"""Batches answered by an engine in a worker thread of this process: no server, for small corpora and tests."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from research_plugin.document import Document
from research_plugin.errors import ResearchPluginError, SearchError
from research_plugin.search.transport import SearchStats

if TYPE_CHECKING:
    from research_plugin.retriever.engine import Engine


class InProcessTransport:
    """A `Transport` over an engine.

    Args:
        source: an engine, or the path of a JSONL corpus, which is indexed (BM25) at the first query.
        stats: engine calls are counted as requests.
    """

    def __init__(self, source: Engine | str, stats: SearchStats) -> None:
        self._source, self._stats = source, stats
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")

    async def fetch(self, queries: list[str], topk: int) -> list[list[Document]]:
        """Answer a batch in the worker thread; an engine's error becomes a `SearchError`."""
        self._stats.requests += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._search, queries, topk)
        except ResearchPluginError as error:
            raise SearchError(f"search in this process failed: {error}") from error

    async def aclose(self) -> None:
        """Let the thread end; batches that wait for it are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _search(self, queries: list[str], topk: int) -> list[list[Document]]:
        if isinstance(self._source, str):
            from research_plugin.retriever.bm25 import BM25Engine
            from research_plugin.retriever.corpus import read_corpus

            self._source = BM25Engine(read_corpus(self._source))
        return self._source.search(queries, topk)
