"""The HTTP front without a socket: routes, limits, errors, deadlines, drain."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from typing import Any

import pytest
from serving import DOCUMENTS, StubEngine, call, http_client, running, serving

from research_plugin.document import Document
from research_plugin.errors import DataError
from research_plugin.retriever.asgi import Patience
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.settings import ServerSettings

PLAIN = [{"id": "00012", "contents": "Beyoncé\nsinger"}, {"id": "1", "contents": "b"}, {"id": "2", "contents": "c"}]


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
async def test_server_routes(route: str, body: dict[str, Any], answer: Any) -> None:
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
        ("/search", b"", 400, "not JSON"),
        ("/search", b'{"query": null}', 400, "query must be a string, got null or nothing"),
        ("/search", b'{"query": "q", "top_n": {}}', 400, "top_n must be an integer, got an object"),
        ("/search", b'{"query": "q", "top_n": NaN}', 400, "top_n must be an integer"),
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


@pytest.mark.parametrize("cache_size", [0, 10])
async def test_server_answers_alike_with_and_without_its_cache(cache_size: int) -> None:
    engine = StubEngine()
    async with serving(lambda: engine, settings=ServerSettings(cache_size=cache_size)) as client:
        for _ in range(3):
            assert (await client.post("/search", json={"query": "q", "top_n": 1})).json() == PLAIN[:1]
            assert (await client.post("/batch_search", json={"query": ["q"], "top_n": 1})).json() == [PLAIN[:1]]
            pair = await client.post("/retrieve", json={"queries": ["q", "none"], "topk": 2})
            assert pair.json() == {"result": [PLAIN[:2], []]}
    assert len(engine.batches) == (9 if cache_size == 0 else 2)


async def test_server_topk_limit_and_default() -> None:
    async with serving(StubEngine, settings=ServerSettings(max_topk=2), description={"topk": 1}) as client:
        assert (await client.post("/search", json={"query": "q"})).json() == PLAIN[:1]
        assert (await client.post("/search", json={"query": "q", "top_n": 3})).status_code == 400
    async with serving(StubEngine, description={"max_topk": 2}) as client:
        refused = await client.post("/search", json={"query": "q", "top_n": 3})
        assert refused.json()["error"]["message"] == "top_n must be from 1 to 2 here (corpus: 3 documents)"


async def test_server_says_loading_until_the_engine_is_there() -> None:
    gate = threading.Event()

    def slow_engine() -> StubEngine:
        assert gate.wait(10)
        return StubEngine()

    async with serving(slow_engine, ready=False, description={"topk": 7, "corpus": "wiki18"}) as client:
        health = await client.get("/health")
        known = {"engine": None, "size": None, "topk": 7, "corpus": "wiki18"}
        assert (health.status_code, health.json()) == (503, {"status": "loading", **known})
        assert (await client.get("/live")).status_code == 200
        early = await client.post("/search", json={"query": "q"})
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        gate.set()
        while (health := await client.get("/health")).status_code == 503:
            await asyncio.sleep(0.005)
        assert health.json() == {"status": "ready", "engine": "stub", "size": 3, "topk": 7, "corpus": "wiki18"}


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
        assert (await client.get("/live")).status_code == 200


async def test_server_without_a_number_of_documents_takes_any_topk_up_to_its_limit() -> None:
    async with serving(lambda: StubEngine(size=None), settings=ServerSettings(max_topk=50)) as client:
        assert (await client.get("/health")).json()["size"] is None
        assert (await client.post("/search", json={"query": "q", "top_n": 50})).json() == PLAIN
        refused = await client.post("/search", json={"query": "q", "top_n": 51})
        assert refused.json()["error"] == {"code": "topk_range", "message": "top_n must be from 1 to 50 here"}


async def test_server_oversized_body_is_413_and_a_megabyte_query_400() -> None:
    async with serving(StubEngine, settings=ServerSettings(max_body_mb=2)) as client:
        long = await client.post("/search", json={"query": "q" * 2**20})
        assert (long.status_code, long.json()["error"]["code"]) == (400, "query_too_long")
        large = await client.post("/search", json={"query": "q" * 2**21})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
        many = await client.post("/batch_search", json={"query": ["q"] * 1500})
        assert (many.status_code, many.json()["error"]["message"]) == (413, "1500 queries in one request; at most 1024")


async def test_server_large_answers_are_written_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    async with running(StubEngine) as app:
        encode = app._encode

        def noting(value: Any) -> bytes:
            threads.append(threading.current_thread().name)
            return encode(value)

        monkeypatch.setattr(app, "_encode", noting)
        async with http_client(app) as client:
            # 900 queries of 100 characters are also more than the loop itself would parse.
            body = {"query": [f"{number:0100}" for number in range(900)], "top_n": 2}
            assert (await client.post("/batch_search", json=body)).json() == [PLAIN[:2]] * 900
            assert (await client.post("/search", json={"query": "q"})).json() == PLAIN
    assert [name.startswith("json") for name in threads] == [True, False]


async def test_server_writes_the_same_json_without_orjson(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for _ in range(2):
        async with serving(StubEngine) as client:
            answers.append((await client.post("/search", json={"query": "q", "return_score": True})).content)
        monkeypatch.setitem(sys.modules, "orjson", None)
    assert (
        answers[0]
        == answers[1]
        == json.dumps([PLAIN, [2.0, 1.0, 0.5]], ensure_ascii=False).replace(", ", ",").replace(": ", ":").encode()
    )


async def test_server_answer_that_is_no_text_is_500(caplog: pytest.LogCaptureFixture) -> None:
    class HalfCharacters(StubEngine):
        def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
            return [[Document("0", "\ud800")] if query == "half" else DOCUMENTS for query in queries]

    async with serving(HalfCharacters) as client:
        half = await client.post("/search", json={"query": "half"})
        assert (half.status_code, half.json()["error"]["code"]) == (500, "engine_failed")
        assert (await client.post("/search", json={"query": "q"})).json() == PLAIN


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


async def test_server_health_is_503_while_the_engine_fails_on_every_query(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = StubEngine()
    async with serving(lambda: engine) as client:

        async def search(query: str) -> int:
            return (await client.post("/search", json={"query": query})).status_code

        engine.broken = MemoryError()
        assert {await search("same") for _ in range(20)} == {500}
        assert (await client.get("/health")).status_code == 200
        assert {await search(f"q{number}") for number in range(8)} == {500}
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"], health.json()["size"]) == (503, "failing", 3)
        assert "failed on each of the last 8 queries or more (MemoryError)" in health.json()["error"]
        assert (await client.get("/live")).status_code == 200
        now = time.monotonic()
        with monkeypatch.context() as later:
            later.setattr("research_plugin.retriever.batcher.time.monotonic", lambda: now + 61)
            assert (await client.get("/health")).status_code == 200
        assert (await client.get("/health")).status_code == 503
        engine.broken = None
        assert await search("same") == 200
        assert (await client.get("/health")).json()["status"] == "ready"


async def test_server_64_mixed_requests_at_once() -> None:
    async with serving(StubEngine) as client:
        bodies = [{"query": "" if number % 4 == 3 else f"q{number}"} for number in range(64)]
        responses = await asyncio.gather(*(client.post("/search", json=body) for body in bodies))
    assert [response.status_code for response in responses] == [200, 200, 200, 400] * 16


async def test_server_256_clients_do_not_starve_health() -> None:
    async with serving(lambda: StubEngine(seconds=0.1), settings=ServerSettings(max_batch=16)) as client:
        searches = [asyncio.create_task(client.post("/search", json={"query": f"q{n}"})) for n in range(256)]
        await asyncio.sleep(0.1)
        assert (await client.get("/health")).status_code == 200
        assert sum(task.done() for task in searches) < 200
        assert {response.status_code for response in await asyncio.gather(*searches)} == {200}


@pytest.mark.parametrize(("limit", "header"), [(60.0, "0.05"), (0.05, "30"), (0.05, None)])
async def test_server_deadline(limit: float, header: str | None) -> None:
    gate = threading.Event()
    engine = StubEngine(gate=gate)
    headers = {} if header is None else {"X-Deadline-Seconds": header}
    async with running(lambda: engine, settings=ServerSettings(deadline=limit)) as app, http_client(app) as client:
        first = asyncio.create_task(client.post("/search", json={"query": "first"}, headers=headers))
        await asyncio.sleep(0.02)
        second = asyncio.create_task(client.post("/search", json={"query": "second"}, headers=headers))
        for late in (await first, await second):
            assert (late.status_code, late.headers["retry-after"]) == (503, "1")
            assert late.json()["error"]["code"] == "deadline"
        gate.set()
        while (await client.post("/search", json={"query": "third"})).status_code != 200:
            pass
    assert engine.batches == [["first"], ["third"]]


@pytest.mark.parametrize("header", ["soon", "0", "-1", "nan", ""])
async def test_server_refuses_a_deadline_that_is_no_time(header: str) -> None:
    async with serving(StubEngine) as client:
        refused = await client.post("/search", json={"query": "q"}, headers={"X-Deadline-Seconds": header})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_deadline")
        endless = await client.post("/search", json={"query": "q"}, headers={"X-Deadline-Seconds": "inf"})
        assert endless.status_code == 200


async def test_server_a_body_that_never_comes_meets_the_deadline() -> None:
    async with running(StubEngine, settings=ServerSettings(deadline=0.05)) as app:
        status, _, body = await call(app, "POST", "/search", receive=asyncio.Event().wait)
        assert (status, json.loads(body)["error"]["code"]) == (503, "deadline")


async def test_server_drops_the_queries_of_clients_that_went_away() -> None:
    gate = threading.Event()
    engine = StubEngine(gate=gate)
    async with running(lambda: engine) as app:
        calls = [asyncio.create_task(call(app, "POST", "/search", b'{"query": "first"}'))]
        await asyncio.sleep(0.02)
        leave = asyncio.Event()
        messages = [{"type": "http.request", "body": b'{"query": "gone"}'}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await leave.wait()
            return {"type": "http.disconnect"}

        calls.append(asyncio.create_task(call(app, "POST", "/search", receive=receive)))
        calls.append(asyncio.create_task(call(app, "POST", "/search", b'{"query": "stays"}')))
        await asyncio.sleep(0.02)
        leave.set()
        await asyncio.sleep(0.02)
        gate.set()
        assert [status for status, _, _ in await asyncio.gather(*calls)] == [200, 0, 200]
        assert b'retriever_errors_total{code="disconnected"} 1.0' in (await call(app, "GET", "/metrics"))[2]
    assert engine.batches == [["first"], ["stays"]]


async def test_server_client_that_leaves_within_its_body() -> None:
    messages = [{"type": "http.disconnect"}, {"type": "http.request", "body": b'{"qu', "more_body": True}]

    async def receive() -> dict[str, Any]:
        return messages.pop()

    async with running(StubEngine) as app:
        assert (await call(app, "POST", "/search", receive=receive))[0] == 0
        assert (await call(app, "POST", "/search", b'{"query": "q"}'))[0] == 200


async def test_a_request_is_given_up_once() -> None:
    async def wait() -> str | None:
        patience = Patience(60)
        patience.give_up("draining")
        patience.give_up("deadline")
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        patience.close()
        patience.give_up("disconnected")
        await asyncio.sleep(0)
        return patience.reason

    assert await asyncio.create_task(wait()) == "draining"


async def test_server_drains() -> None:
    gate, ended = threading.Event(), asyncio.Event()
    engine = StubEngine(gate=gate)
    async with running(lambda: engine) as app, http_client(app) as client:
        under_way = asyncio.create_task(client.post("/search", json={"query": "q"}))
        await asyncio.sleep(0.02)
        app.drain(ended.set)
        await asyncio.sleep(0.05)
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        assert (await client.get("/live")).status_code == 200
        refused = await client.post("/search", json={"query": "late"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert not ended.is_set()
        gate.set()
        assert (await under_way).status_code == 200
        await asyncio.wait_for(ended.wait(), 5)
    assert engine.closed


async def test_server_that_drains_refuses_for_a_moment_before_it_ends() -> None:
    ended = asyncio.Event()
    async with running(StubEngine) as app, http_client(app) as client:
        app.drain(ended.set)
        await asyncio.sleep(0.1)
        assert (await client.post("/search", json={"query": "late"})).status_code == 503
        assert not ended.is_set()
        await asyncio.wait_for(ended.wait(), 5)


async def test_server_hands_its_objects_back_to_the_garbage_collector() -> None:
    async with running(StubEngine):
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


async def test_server_drain_ends_although_the_engine_hangs() -> None:
    gate, ended = threading.Event(), asyncio.Event()
    async with running(lambda: StubEngine(gate=gate), settings=ServerSettings(drain=0.1)) as app:
        hanging = asyncio.create_task(call(app, "POST", "/search", b'{"query": "q"}'))
        await asyncio.sleep(0.02)
        app.drain(ended.set)
        await asyncio.wait_for(ended.wait(), 5)
        status, _, body = await hanging
        assert (status, json.loads(body)["error"]["code"]) == (503, "draining")
        gate.set()


async def test_server_metrics() -> None:
    async with serving(StubEngine) as client:
        await client.post("/batch_search", json={"query": ["a", "b", "b", ""]})
        await client.post("/search", json={"query": "a"})
        await client.post("/search", json={"query": ""})
        text = (await client.get("/metrics")).text
    for line in (
        'retriever_requests_total{route="/batch_search",status="200"} 1.0',
        'retriever_requests_total{route="/search",status="400"} 1.0',
        'retriever_errors_total{code="invalid_request"} 1.0',
        "retriever_queries_total 4.0",
        "retriever_shared_hits_total 1.0",
        "retriever_cache_hits_total 1.0",
        "retriever_queue_seconds_count 2.0",
        'retriever_batch_queries_bucket{le="2.0"} 1.0',
        'retriever_stage_seconds_count{stage="search"} 1.0',
        "retriever_request_seconds_count 2.0",
        "retriever_waiting_queries 0.0",
        "retriever_open_requests 0.0",
    ):
        assert f"\n{line}\n" in text
