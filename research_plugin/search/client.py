"""The search client of a rollout worker: cache, sharing of identical queries, one batch per event-loop tick.

How a batch is answered, retries included, is the transport's business (`http`, `in_process`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from research_plugin.document import Document, without_surrogates
from research_plugin.errors import SearchError
from research_plugin.search.cache import DiskCache, Documents, MemoryCache
from research_plugin.search.settings import SearchConfig
from research_plugin.search.transport import Rejected, SearchStats, Transport


@dataclass(frozen=True, slots=True)
class SearchReply:
    """The answer to one query: best document first, seconds the caller waited, whether a cache had it."""

    documents: tuple[Document, ...]
    seconds: float
    cached: bool


class SearchClient:
    """Answers single queries; queries that arrive together travel together.

    Belongs to one event loop at a time; take it from `shared_client` unless you want one of your own. A pickled
    client arrives with its settings alone and connects afresh.

    Args:
        settings: checked settings.
        make_transport: makes what batches are sent through, in place of what the settings name; not pickled.
    """

    def __init__(
        self, settings: SearchConfig, make_transport: Callable[[SearchConfig, SearchStats], Transport] | None = None
    ) -> None:
        self.settings = settings
        self.stats = SearchStats()
        self._memory = MemoryCache(settings.cache_size)
        self._make_transport = make_transport or _configured_transport
        self._flush_scheduled = False
        self._reset(None)

    def __reduce__(self) -> tuple[type[SearchClient], tuple[SearchConfig]]:
        return SearchClient, (self.settings,)

    async def search(self, query: str) -> SearchReply:
        """Answer one query.

        Outer blanks go, lone surrogates become U+FFFD, and what exceeds ``max_query_chars`` is cut. A blank query has
        no documents and sends no request.

        Raises:
            SearchError: the retriever refused the query or stayed down through all retries.
        """
        started = time.perf_counter()
        loop = self._bind()
        self.stats.queries += 1
        query = without_surrogates(query).strip()[: self.settings.max_query_chars]
        if not query:
            return SearchReply((), 0.0, cached=False)
        known = self._memory.get(query)
        if known is not None:
            self.stats.cache_hits += 1
            return SearchReply(known, time.perf_counter() - started, cached=True)
        future = self._inflight.get(query)
        if future is None:
            future = self._inflight[query] = loop.create_future()
            self._pending.append(query)
            if not self._flush_scheduled:
                self._flush_scheduled = True
                loop.call_soon(self._flush)
        # Shielded: one caller's cancellation must not take the answer from the others.
        try:
            documents, cached = await asyncio.shield(future)
        except SearchError:
            self.stats.failures += 1
            raise
        self.stats.cache_hits += cached
        return SearchReply(documents, time.perf_counter() - started, cached)

    async def aclose(self) -> None:
        """Cancel what is under way (its callers get a SearchError) and close connections. A later search reopens."""
        self._pending.clear()
        tasks, transport = list(self._tasks), self._transport
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for query in list(self._inflight):
            self._fail([query], SearchError("the search client was closed"))
        if transport is not None:
            await transport.aclose()
        self._close_disk()
        self._reset(None)

    def _reset(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._transport: Transport | None = None
        self._disk: DiskCache | None = None
        self._disk_thread: ThreadPoolExecutor | None = None
        self._inflight: dict[str, asyncio.Future[tuple[Documents, bool]]] = {}
        self._pending: deque[str] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flush_scheduled = False

    def _bind(self) -> asyncio.AbstractEventLoop:
        """Open the transport in the running loop; move from a loop that has ended, never from one that runs."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return loop
        if self._loop is not None and self._loop.is_running():
            raise RuntimeError("this SearchClient serves another running event loop; use shared_client(settings)")
        self._close_disk()
        self._reset(loop)
        self._transport = self._make_transport(self.settings, self.stats)
        if self.settings.cache_dir is not None:
            self._disk = DiskCache(self.settings.cache_dir, _scope(self.settings))
            self._disk_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search-cache")
        return loop

    def _close_disk(self) -> None:
        if self._disk is not None and self._disk_thread is not None:
            self._disk_thread.submit(self._disk.close)
            self._disk_thread.shutdown(wait=True)

    def _flush(self) -> None:
        """Send what waits, as far as ``max_concurrency`` allows; the rest grows into a larger batch meanwhile."""
        self._flush_scheduled = False
        while self._pending and len(self._tasks) < self.settings.max_concurrency:
            size = min(self.settings.batch_size, len(self._pending))
            self._start([self._pending.popleft() for _ in range(size)])

    def _start(self, queries: list[str]) -> None:
        task = asyncio.create_task(self._answer(queries))
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._flush()

    async def _answer(self, queries: list[str]) -> None:
        try:
            if self._disk is not None:
                loop = asyncio.get_running_loop()
                known = await loop.run_in_executor(self._disk_thread, self._disk.get_many, queries)
                self._settle(known, cached=True)
                queries = [query for query in queries if query not in known]
            if queries:
                await self._fetch(queries)
        except Exception as error:
            self._fail(queries, error)

    async def _fetch(self, queries: list[str]) -> None:
        assert self._transport is not None
        try:
            rows = await self._transport.fetch(queries, self.settings.topk)
        except Rejected as error:
            if len(queries) == 1:
                self._fail(queries, error)
                return
            # Halving isolates the refused query in log2(n) rounds, so that its neighbours get their answers.
            middle = len(queries) // 2
            await asyncio.gather(self._fetch(queries[:middle]), self._fetch(queries[middle:]))
        except SearchError as error:
            self._fail(queries, error)
        else:
            results = {query: tuple(row) for query, row in zip(queries, rows, strict=True)}
            self._settle(results, cached=False)
            if self._disk is not None and self._disk_thread is not None:
                # Not awaited: nobody waits for the write, and `aclose` lets the thread finish it.
                self._disk_thread.submit(self._disk.put_many, results)

    def _settle(self, results: Mapping[str, Documents], cached: bool) -> None:
        for query, documents in results.items():
            self._memory.put(query, documents)
            future = self._inflight.pop(query, None)
            if future is not None and not future.done():
                future.set_result((documents, cached))

    def _fail(self, queries: list[str], error: Exception) -> None:
        for query in queries:
            future = self._inflight.pop(query, None)
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # seen: its callers may all have been cancelled


_shared: dict[asyncio.AbstractEventLoop, dict[str, SearchClient]] = {}
_shared_lock = threading.Lock()


def shared_client(settings: SearchConfig) -> SearchClient:
    """Return this process's client for these settings and the running event loop, made at first use."""
    loop = asyncio.get_running_loop()
    with _shared_lock:
        for ended in [known for known in _shared if known.is_closed()]:
            del _shared[ended]
        clients = _shared.setdefault(loop, {})
        key = repr(settings)
        if key not in clients:
            clients[key] = SearchClient(settings)
        return clients[key]


def _configured_transport(settings: SearchConfig, stats: SearchStats) -> Transport:
    if settings.engine == "in_process":
        from research_plugin.search.in_process import InProcessTransport

        return InProcessTransport(settings.corpus or "", stats)
    from research_plugin.search.http import HttpTransport

    return HttpTransport(settings, stats)


def _scope(settings: SearchConfig) -> str:
    """Everything besides the query that an answer on disk depends on."""
    if settings.engine == "http":
        return repr((sorted(settings.endpoints), settings.api, settings.topk))
    corpus = Path(settings.corpus or "").resolve()
    state = corpus.stat() if corpus.exists() else None
    return repr((str(corpus), state and (state.st_size, state.st_mtime_ns), settings.topk))
