"""Dynamic batching: one bounded queue of distinct queries and one thread that computes.

The thread takes whatever waits, up to a maximum, as soon as it is free; nothing waits for a batch to fill. Equal
queries share one computation, and its result stays in a cache.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass, field

from research_plugin.document import Document
from research_plugin.retriever.engine import Engine, Stages
from research_plugin.retriever.metrics import Metrics
from research_plugin.retriever.result_cache import ResultCache
from research_plugin.retriever.settings import ServerSettings

_log = logging.getLogger(__name__)
_DELIVERED_AT_ONCE = 32
_LONGEST_TOKENS = 512
_LOG_SECONDS = 1.0
_FAILING_QUERIES, _FAILING_SECONDS = 8, 60.0


class QueueFull(Exception):
    """The queue has no room for the request; try again later."""


class EngineFailed(Exception):
    """The engine raised on a query of the request, taken alone."""


@dataclass(eq=False, slots=True)
class _Request:
    """Queries of one caller: ``rows`` fills up until none is missing."""

    topk: int
    rows: list[list[Document]]
    missing: int
    done: asyncio.Future[None]
    jobs: list[_Job] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Job:
    """One distinct query that waits or is being computed; ``wanted`` says which rows of which requests it fills.

    Only the event loop's thread changes it; a job that nobody wants any more is not computed.
    """

    query: str
    topk: int
    queued: float
    wanted: list[tuple[_Request, int]] = field(default_factory=list)


class Batcher:
    """Feeds an engine from the event loop that made it.

    Args:
        engine: called, and in the end closed, in the compute thread only.
        settings: sizes of queue, batch and cache.
        metrics: told about every query and engine call.
    """

    def __init__(self, engine: Engine, settings: ServerSettings, metrics: Metrics) -> None:
        self._engine, self._settings, self._metrics = engine, settings, metrics
        self._max_waiting = max(settings.max_queue, settings.max_queries)
        self._loop = asyncio.get_running_loop()
        self._cache = ResultCache(settings.cache_size)
        self._stages = Stages(metrics.stage)
        self._wake = threading.Condition()  # guards the three below
        self._waiting: dict[str, _Job] = {}  # first come, first served
        self._computing: dict[str, _Job] = {}
        self._closed = False
        self._logged = 0.0
        self._failed: set[str] = set()  # queries that failed since the engine last answered one
        self._failed_at, self._failure = 0.0, ""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def failing(self) -> str | None:
        """Why nothing is to be expected of the engine; None once it has answered, or not failed for a minute: without
        requests it could not show that it works again. One query that it cannot take, sent over and over, is one."""
        recent = time.monotonic() - self._failed_at < _FAILING_SECONDS
        if len(self._failed) < _FAILING_QUERIES or not recent:
            return None
        return (
            f"the engine failed on each of the last {_FAILING_QUERIES} queries or more ({self._failure}); see the log"
        )

    async def search(self, queries: list[str], topk: int) -> list[list[Document]]:
        """Queue the queries and wait for all of them. If the caller is cancelled, what only it wanted is dropped.

        Raises:
            QueueFull: they do not fit; none of them was queued.
            EngineFailed: on one of them.
        """
        request = _Request(topk, [[]] * len(queries), len(queries), self._loop.create_future())
        missing = self._take_cached(request, queries)
        if missing:
            self._join(request, missing)
            try:
                await request.done
            except BaseException:
                self._abandon(request)
                raise
        return request.rows

    async def close(self, timeout: float) -> None:
        """Let the engine finish its call, close it, and wait for that at most ``timeout`` seconds."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        await self._loop.run_in_executor(None, self._thread.join, timeout)

    # In the event loop.

    def _take_cached(self, request: _Request, queries: list[str]) -> list[tuple[int, str]]:
        """Fill in what the cache knows; return places and queries of the rest."""
        missing = []
        for place, query in enumerate(queries):
            documents = self._cache.get(query, request.topk)
            if documents is None:
                missing.append((place, query))
            else:
                request.rows[place] = documents
        request.missing = len(missing)
        self._metrics.queries.inc(len(queries))
        if len(missing) < len(queries):
            self._metrics.cache_hits.inc(len(queries) - len(missing))
        return missing

    def _join(self, request: _Request, missing: list[tuple[int, str]]) -> None:
        with self._wake:
            new = {query for _, query in missing if self._shared(query, request.topk) is None}
            if len(self._waiting) + len(new) > self._max_waiting:
                raise QueueFull
            queued = time.perf_counter()
            for place, query in missing:
                job = self._shared(query, request.topk)
                if job is None:
                    job = self._waiting[query] = _Job(query, request.topk, queued)
                elif query in self._waiting:
                    job.topk = max(job.topk, request.topk)
                job.wanted.append((request, place))
                request.jobs.append(job)
            self._wake.notify()
        if len(new) < len(missing):
            self._metrics.shared_hits.inc(len(missing) - len(new))

    def _shared(self, query: str, topk: int) -> _Job | None:
        """The job that will answer ``query``: a waiting one can still ask for more, a computing one cannot."""
        job = self._waiting.get(query)
        if job is None:
            job = self._computing.get(query)
            if job is not None and job.topk < topk:
                return None
        return job

    def _abandon(self, request: _Request) -> None:
        """Take the request out of its jobs, and jobs that nobody else wants out of the queue."""
        with self._wake:
            for job in request.jobs:
                job.wanted = [wanted for wanted in job.wanted if wanted[0] is not request]
                if not job.wanted:
                    self._drop(job)

    def _drop(self, job: _Job) -> None:
        for jobs in (self._waiting, self._computing):
            if jobs.get(job.query) is job:
                del jobs[job.query]

    def _deliver(self, jobs: list[_Job], rows: list[list[Document]]) -> None:
        """Hand out rows, a few in one step: answering 256 requests at once would hold up /health."""
        now, later = jobs[:_DELIVERED_AT_ONCE], jobs[_DELIVERED_AT_ONCE:]
        with self._wake:
            for job in now:
                self._drop(job)
        for job, documents in zip(now, rows, strict=False):
            documents = documents[: job.topk]
            self._cache.put(job.query, job.topk, documents)
            for request, place in job.wanted:
                request.rows[place] = documents[: request.topk]
                request.missing -= 1
                if not request.missing and not request.done.done():
                    request.done.set_result(None)
        if later:
            self._loop.call_soon(self._deliver, later, rows[_DELIVERED_AT_ONCE:])

    def _fail(self, job: _Job) -> None:
        with self._wake:
            self._drop(job)
        for request, _ in job.wanted:
            if not request.done.done():
                request.done.set_exception(EngineFailed())

    # In the compute thread.

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                self._compute(batch)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
        finally:
            self._engine.close()

    def _next_batch(self) -> list[_Job]:
        """Wait for queries and take those that came first; empty: the server ends.

        Only equal topk are batched: a page more is nothing to an index, but seconds and money to the web.
        """
        batch: list[_Job] = []
        tokens = 0
        with self._wake:
            while not self._waiting and not self._closed:
                self._wake.wait()
            if self._closed:
                return []
            for job in self._waiting.values():
                if batch and job.topk != batch[0].topk:
                    continue
                tokens += _tokens(job.query)
                if batch and (len(batch) == self._settings.max_batch or tokens > self._settings.max_batch_tokens):
                    break
                batch.append(job)
            for job in batch:
                del self._waiting[job.query]
                self._computing[job.query] = job
        now = time.perf_counter()
        for job in batch:
            self._metrics.queue_seconds.observe(now - job.queued)
        return batch

    def _compute(self, batch: list[_Job]) -> None:
        jobs = [job for job in batch if job.wanted]
        if not jobs:
            return
        started = time.perf_counter()
        try:
            rows = self._engine.search([job.query for job in jobs], jobs[0].topk, self._stages)
            if len(rows) != len(jobs):
                raise RuntimeError(f"engine {self._engine.name} returned {len(rows)} rows for {len(jobs)} queries")
        except BaseException as error:  # whatever it is, SystemExit included, the thread must live on
            if len(jobs) > 1:
                # One query that the engine cannot take must not fail the strangers it was batched with.
                self._compute(jobs[: len(jobs) // 2])
                self._compute(jobs[len(jobs) // 2 :])
            else:
                self._note_failure(jobs[0], error)
                self._loop.call_soon_threadsafe(self._fail, jobs[0])
            return
        self._failed.clear()
        self._metrics.engine_seconds.observe(time.perf_counter() - started)
        self._metrics.batch_queries.observe(len(jobs))
        self._loop.call_soon_threadsafe(self._deliver, jobs, rows)

    def _note_failure(self, job: _Job, error: BaseException) -> None:
        """Log a traceback, but not hundreds a second when the engine fails on everything."""
        self._metrics.engine_failures.inc()
        self._failed_at, self._failure = time.monotonic(), type(error).__name__
        if len(self._failed) < _FAILING_QUERIES:
            self._failed.add(job.query)
        if time.monotonic() - self._logged > _LOG_SECONDS:
            self._logged = time.monotonic()
            _log.error("engine %s failed on %d characters", self._engine.name, len(job.query), exc_info=error)


def _tokens(query: str) -> int:
    """Estimate: a token per four characters of ASCII or per character of anything else; encoders cut long ones."""
    return min(_LONGEST_TOKENS, 2 + (len(query) // 4 if query.isascii() else len(query)))
