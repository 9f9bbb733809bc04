"""Prometheus metrics of one server, in a registry of their own so that two servers in a process do not collide."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0]


class Metrics:
    """What GET /metrics shows; the methods may be called from any thread.

    Args:
        waiting: asked for the queries in the queue at each scrape.
        open_requests: asked for the search requests under way at each scrape.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, waiting: Callable[[], int], open_requests: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"retriever_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"retriever_{name}_seconds", text, labels, buckets=_SECONDS, registry=registry)

        self.requests = counter("requests", "Search requests by route and HTTP status.", "route", "status")
        self.errors = counter("errors", "Search requests without an answer, by code.", "code")
        self.queries = counter("queries", "Queries of well-formed requests, blank ones left out.")
        self.cache_hits = counter("cache_hits", "Queries answered from the result cache.")
        self.shared_hits = counter("shared_hits", "Queries that joined an equal one already waiting or computing.")
        self.engine_failures = counter("engine_failures", "Queries on which the engine raised.")
        self.request_seconds = seconds("request", "Seconds from a request's first byte to its answer, if it is 200.")
        self.queue_seconds = seconds("queue", "Seconds that a query waited for the engine.")
        self.engine_seconds = seconds("engine", "Seconds per engine call.")
        self._stages = seconds("stage", "Seconds per engine call in each of its stages.", "stage")
        batches = [2**n for n in range(11)]
        self.batch_queries = Histogram(
            "retriever_batch_queries", "Queries per engine call.", buckets=batches, registry=registry
        )
        gauge = Gauge("retriever_waiting_queries", "Queries in the queue.", registry=registry)
        gauge.set_function(waiting)
        gauge = Gauge("retriever_open_requests", "Search requests under way.", registry=registry)
        gauge.set_function(open_requests)
        ProcessCollector(registry=registry)  # memory, CPU seconds, open files

    def stage(self, name: str, seconds: float) -> None:
        """Note one stage of an engine call, for `engine.Stages`."""
        self._stages.labels(name).observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)
