"""Dynamic batching: one bounded queue of queries and one thread that computes.

The thread takes whatever waits, up to a maximum, as soon as it is free; nothing waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from research_plugin.document import Document
from research_plugin.retriever.engine import Engine

_log = logging.getLogger(__name__)
_Waiting = tuple[str, int, "asyncio.Future[list[Document]]"]


class QueueFull(Exception):
    """The queue has no room for the request; try again later."""


class Batcher:
    """Feeds an engine from the event loop that made it.

    Args:
        engine: called in the compute thread only.
        max_waiting: most queries that may wait; beyond it `search` raises `QueueFull`.
        max_batch: most queries in one engine call.
        observe: called in the event loop with (queries, seconds) after each engine call.
    """

    def __init__(
        self, engine: Engine, max_waiting: int, max_batch: int, observe: Callable[[int, float], None] | None = None
    ) -> None:
        self._engine, self._max_waiting, self._max_batch, self._observe = engine, max_waiting, max_batch, observe
        self._waiting: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._worker: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def search(self, queries: list[str], topk: int) -> list[list[Document]]:
        """Queue the queries and wait for all of them.

        Raises:
            QueueFull: they do not fit; none of them was queued.
            Exception: whatever the engine raised for one of them.
        """
        if len(self._waiting) + len(queries) > self._max_waiting:
            raise QueueFull
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in queries]
        self._waiting.extend((query, topk, future) for query, future in zip(queries, futures, strict=True))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return list(await asyncio.gather(*futures))

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(self._max_batch, len(self._waiting)))]
            batch = [entry for entry in taken if not entry[2].done()]
            if batch:
                await self._compute(batch)
        self._worker = None

    async def _compute(self, batch: list[_Waiting]) -> None:
        queries = list(dict.fromkeys(query for query, _, _ in batch))
        topk = max(topk for _, topk, _ in batch)
        started = time.perf_counter()
        try:
            rows = await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.search, queries, topk)
            found = dict(zip(queries, rows, strict=True))
        except Exception as error:
            if len(batch) > 1:
                # One query that the engine cannot take must not fail the strangers it was batched with.
                for entry in batch:
                    await self._compute([entry])
                return
            _log.exception("engine %s failed on a query of %d characters", self._engine.name, len(queries[0]))
            if not batch[0][2].done():
                batch[0][2].set_exception(error)
            return
        if self._observe is not None:
            self._observe(len(batch), time.perf_counter() - started)
        for query, wanted, future in batch:
            if not future.done():
                future.set_result(found[query][:wanted])
