"""Prometheus counters of one server, in a registry of their own so that two servers in a process do not collide."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """Counters for GET /metrics; ``waiting`` is asked for the queue's length at each scrape."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "retriever_requests", "Search requests by route and HTTP status.", ["route", "status"], registry=registry
        )
        self.queries = Counter("retriever_queries", "Queries handed to the engine.", registry=registry)
        self._batch = Histogram(
            "retriever_batch_queries", "Queries per engine call.", buckets=[2**n for n in range(9)], registry=registry
        )
        self._seconds = Histogram("retriever_engine_seconds", "Seconds per engine call.", registry=registry)
        Gauge("retriever_waiting_queries", "Queries in the queue.", registry=registry).set_function(waiting)

    def observe_batch(self, queries: int, seconds: float) -> None:
        self._batch.observe(queries)
        self._seconds.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)
