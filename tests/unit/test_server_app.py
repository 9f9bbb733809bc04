"""The HTTP front over httpx.ASGITransport: dialects, limits, errors, batching. No socket."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from research_plugin.document import Document
from research_plugin.errors import DataError
from research_plugin.retriever.app import create_app
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.settings import ServerSettings

DOCUMENTS = [Document("00012", "Beyoncé\nsinger", 2.0), Document("1", "b", 1.0), Document("2", "c", 0.5)]
PLAIN = [{"id": "00012", "contents": "Beyoncé\nsinger"}, {"id": "1", "contents": "b"}, {"id": "2", "contents": "c"}]


class StubEngine:
    """Returns the first documents for every query but "none"; remembers its batches; can wait and fail."""

    name, size = "stub", 3

    def __init__(self, seconds: float = 0.0, gate: threading.Event | None = None) -> None:
        self.batches: list[list[str]] = []
        self.seconds, self.gate = seconds, gate

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        self.batches.append(queries)
        if self.gate is not None:
            assert self.gate.wait(10)
        time.sleep(self.seconds)
        if "poison" in queries:
            raise RuntimeError("secret detail")
        return [[] if query == "none" else DOCUMENTS[:topk] for query in queries]


@asynccontextmanager
async def serving(
    make_engine: Callable[[], Any], ready: bool = True, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(make_engine, **{"settings": ServerSettings(), **options})
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client,
    ):
        while ready and (await client.get("/health")).status_code != 200:
            await asyncio.sleep(0.005)
        yield client


@pytest.mark.parametrize(
    ("route", "body", "answer"),
    [
        ("/search", {"query": "q", "top_n": 2}, PLAIN[:2]),
        ("/search", {"query": "q"}, PLAIN),
        ("/search", {"query": "q", "top_n": 2, "return_score": True}, [PLAIN[:2], [2.0, 1.0]]),
        ("/search", {"query": "none"}, []),
        ("/batch_search", {"query": ["q"], "top_n": 1}, [PLAIN[:1]]),
        ("/batch_search", {"query": ["q", "none"], "top_n": 1, "return_score": True}, [[PLAIN[:1], []], [[2.0], []]]),
        ("/batch_search", {"query": ["", "q", " \n"], "top_n": 1}, [[], PLAIN[:1], []]),
        ("/batch_search", {"query": []}, []),
        ("/batch_search", {"query": [], "return_score": True}, [[], []]),
        ("/retrieve", {"queries": ["q"], "topk": 1}, {"result": [PLAIN[:1]]}),
        ("/retrieve", {"queries": ["q", "q"], "topk": None}, {"result": [PLAIN, PLAIN]}),
        (
            "/retrieve",
            {"queries": ["q"], "topk": 1, "return_scores": True},
            {"result": [[{"document": PLAIN[0], "score": 2.0}]]},
        ),
        ("/queries", {"queries": ["q"], "k": 2}, {"queries": ["q"], "answers": [["Beyoncé\nsinger", "b"]]}),
        (
            "/queries",
            {"queries": ["none", "q"]},
            {"queries": ["none", "q"], "answers": [[], ["Beyoncé\nsinger", "b", "c"]]},
        ),
    ],
)
async def test_server_dialects(route: str, body: dict[str, Any], answer: Any) -> None:
    async with serving(StubEngine) as client:
        response = await client.post(route, json=body)
        assert (response.status_code, response.json()) == (200, answer)


@pytest.mark.parametrize(
    ("route", "body", "status", "message"),
    [
        ("/search", b"not json", 400, "not JSON"),
        ("/search", b'{"query": "\xff"}', 400, "not JSON in UTF-8"),
        ("/search", b"[" * 100_000, 400, "not JSON"),
        ("/search", b'["q"]', 400, "must be a JSON object, got a list"),
        ("/search", b"{}", 400, "query must be a string"),
        ("/search", b'{"query": ["q"]}', 400, "query must be a string, got a list"),
        ("/search", b'{"query": ""}', 400, "query is empty"),
        ("/search", b'{"query": " \\n"}', 400, "query is empty"),
        ("/search", b'{"query": "a \\ud800"}', 400, "lone surrogate"),
        ("/search", b'{"query": "q", "top_n": 0}', 400, "top_n must be from 1 to 3"),
        ("/search", b'{"query": "q", "top_n": -1}', 400, "top_n must be from 1 to 3"),
        ("/search", b'{"query": "q", "top_n": 4}', 400, "corpus: 3 documents"),
        ("/search", b'{"query": "q", "top_n": 1000000000}', 400, "top_n must be from 1 to 3"),
        ("/search", b'{"query": "q", "top_n": %d}' % 2**63, 400, "top_n must be from 1 to 3"),
        ("/search", b'{"query": "q", "top_n": 2.5}', 400, "top_n must be an integer"),
        ("/search", b'{"query": "q", "top_n": "3"}', 400, "top_n must be an integer, got a string"),
        ("/search", b'{"query": "q", "top_n": true}', 400, "top_n must be an integer"),
        ("/search", b'{"query": "q", "top_n": null}', 400, "top_n must be an integer"),
        ("/search", b'{"query": "q", "return_score": 1}', 400, "return_score must be true or false"),
        ("/search", b'{"query": "' + b"q" * 101 + b'"}', 400, "101 characters; at most 100"),
        ("/search", b'{"query": "' + b"q" * 2**20 + b'"}', 413, "larger than 1048576 bytes"),
        ("/batch_search", b'{"query": "q"}', 400, "must be a list of strings, got a string"),
        ("/batch_search", b'{"query": ["q", 1]}', 400, "must be a list of strings"),
        ("/batch_search", b'{"query": ["q", "\\udfff"]}', 400, "query 1 holds a lone surrogate"),
        ("/batch_search", b'{"query": ["a", "b", "c", "d", "e"]}', 413, "5 queries in one request; at most 4"),
        ("/retrieve", b'{"query": ["q"]}', 400, "queries must be a list of strings"),
        ("/retrieve", b'{"queries": ["q"], "topk": 9}', 400, "topk must be from 1 to 3"),
        ("/queries", b'{"queries": ["q"], "k": 9}', 400, "k must be from 1 to 3"),
        ("/nothing", b"{}", 404, "Not Found"),
    ],
)
async def test_server_refuses_bad_requests_and_lives_on(route: str, body: bytes, status: int, message: str) -> None:
    settings = ServerSettings(max_body_mb=1, max_query_chars=100, max_queries=4)
    async with serving(StubEngine, settings=settings) as client:
        response = await client.post(route, content=body)
        assert response.status_code == status
        assert message in response.json()["error"]["message"]
        assert response.json()["error"]["code"]
        assert (await client.post("/search", json={"query": "q", "top_n": 1})).json() == PLAIN[:1]


async def test_server_wrong_method_is_json() -> None:
    async with serving(StubEngine) as client:
        response = await client.get("/search")
        assert response.status_code == 405
        assert "Method Not Allowed" in response.json()["error"]["message"]


@pytest.mark.parametrize("query", ["q" * 10_000, "\x00", "🎈", "مرحبا", 'say "hi"\n\\n', "東京"])
async def test_server_takes_any_text(query: str) -> None:
    async with serving(StubEngine) as client:
        response = await client.post("/queries", json={"queries": [query], "k": 1})
        assert response.json() == {"queries": [query], "answers": [["Beyoncé\nsinger"]]}


async def test_server_topk_limit_and_default() -> None:
    async with serving(StubEngine, settings=ServerSettings(max_topk=2), description={"topk": 1}) as client:
        assert (await client.post("/search", json={"query": "q"})).json() == PLAIN[:1]
        assert (await client.post("/search", json={"query": "q", "top_n": 3})).status_code == 400


async def test_server_says_loading_until_the_engine_is_there() -> None:
    gate = threading.Event()

    def slow_engine() -> StubEngine:
        assert gate.wait(10)
        return StubEngine()

    async with serving(slow_engine, ready=False) as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "loading"})
        early = await client.post("/search", json={"query": "q"})
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        gate.set()
        while (health := await client.get("/health")).status_code == 503:
            await asyncio.sleep(0.005)
        assert health.json() == {"status": "ready", "engine": "stub", "size": 3, "topk": None, "corpus": None}


@pytest.mark.parametrize(
    ("error", "shown"),
    [(DataError("corpus x, line 3: cut"), "corpus x, line 3: cut"), (KeyError("secret"), "see the server's log")],
    ids=["known", "unknown"],
)
async def test_server_reports_an_engine_that_cannot_load(error: Exception, shown: str) -> None:
    outcomes: list[object] = []

    def broken() -> StubEngine:
        raise error

    async with serving(broken, ready=False, on_loaded=outcomes.append) as client:
        while not outcomes:
            await asyncio.sleep(0.005)
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "failed"
        assert shown in health.json()["error"]
        assert outcomes == [error]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("café-1", 401),
        ("Bearer café-1x", 401),
        ("Bearer café-1", 200),
    ],
)
async def test_server_token(header: str | None, status: int) -> None:
    headers = {} if header is None else {"Authorization": header.encode()}
    async with serving(StubEngine, token="café-1") as client:
        searched = await client.post("/search", json={"query": "q"}, headers=headers)
        scraped = await client.get("/metrics", headers=headers)
        assert (searched.status_code, scraped.status_code) == (status, status)
        assert "café" not in searched.text
        assert (await client.get("/health")).status_code == 200


async def test_server_batches_what_waits_and_computes_identical_queries_once() -> None:
    gate = threading.Event()
    engine = StubEngine(gate=gate)
    async with serving(lambda: engine, settings=ServerSettings(max_batch=4)) as client:
        names = ["first", "a", "b", "a", "c", "d"]
        tasks = []
        for name in names:
            tasks.append(asyncio.create_task(client.post("/search", json={"query": name, "top_n": 1 + len(tasks) % 3})))
            await asyncio.sleep(0.02)
        gate.set()
        responses = await asyncio.gather(*tasks)
    assert engine.batches == [["first"], ["a", "b", "c"], ["d"]]
    assert [len(response.json()) for response in responses] == [1, 2, 3, 1, 2, 3]


async def test_server_answers_429_when_its_queue_is_full() -> None:
    gate = threading.Event()
    async with serving(lambda: StubEngine(gate=gate), settings=ServerSettings(max_queue=4, max_queries=4)) as client:
        running = asyncio.create_task(client.post("/search", json={"query": "running"}))
        await asyncio.sleep(0.02)
        waiting = asyncio.create_task(client.post("/batch_search", json={"query": ["a", "b", "c", "d"]}))
        await asyncio.sleep(0.02)
        refused = await client.post("/search", json={"query": "late"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "busy"
        gate.set()
        assert [(await task).status_code for task in (running, waiting)] == [200, 200]
        assert (await client.post("/search", json={"query": "late"})).status_code == 200


async def test_server_engine_failure_hits_only_its_own_query(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    async with serving(lambda: StubEngine(gate=gate)) as client:
        names = ("first", "a", "poison", "b")
        tasks = [asyncio.create_task(client.post("/search", json={"query": name})) for name in names]
        await asyncio.sleep(0.05)
        gate.set()
        responses = await asyncio.gather(*tasks)
        assert [response.status_code for response in responses] == [200, 200, 500, 200]
        assert responses[2].json()["error"]["code"] == "engine_failed"
        assert "secret detail" not in responses[2].text
        assert (await client.post("/search", json={"query": "after"})).status_code == 200
    assert "secret detail" in caplog.text


async def test_server_256_clients_do_not_starve_health() -> None:
    async with serving(lambda: StubEngine(seconds=0.1), settings=ServerSettings(max_batch=16)) as client:
        searches = [asyncio.create_task(client.post("/search", json={"query": f"q{n}"})) for n in range(256)]
        await asyncio.sleep(0.1)
        assert (await client.get("/health")).status_code == 200
        assert sum(task.done() for task in searches) < 200
        assert {response.status_code for response in await asyncio.gather(*searches)} == {200}


async def test_server_metrics() -> None:
    async with serving(StubEngine) as client:
        await client.post("/batch_search", json={"query": ["a", "b", ""]})
        await client.post("/search", json={"query": ""})
        text = (await client.get("/metrics")).text
    assert 'retriever_requests_total{route="/batch_search",status="200"} 1.0' in text
    assert 'retriever_requests_total{route="/search",status="400"} 1.0' in text
    assert "retriever_queries_total 2.0" in text
    assert 'retriever_batch_queries_bucket{le="2.0"} 1.0' in text
    assert "retriever_waiting_queries 0.0" in text
