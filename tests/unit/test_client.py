"""The search client over stub transports and httpx.MockTransport: batching, sharing, retries, replicas."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import re
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from research_plugin.document import Document
from research_plugin.errors import ConfigError, SearchError
from research_plugin.search.client import SearchClient, shared_client
from research_plugin.search.http import HttpTransport
from research_plugin.search.settings import SearchConfig
from research_plugin.search.transport import Rejected, SearchStats

Handler = Callable[[httpx.Request], Any]
FAST = {"backoff": 0.001, "backoff_max": 0.002, "cooldown": 0.05, "retries": 3}


class Echo:
    """Answers each query with itself, once its gate is open and ``seconds`` later; refuses batches with "poison"."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[list[str]] = []
        self.gate: asyncio.Event | None = None
        self.seconds, self.running, self.most_running, self.closed = seconds, 0, 0, 0

    async def fetch(self, queries: list[str], topk: int) -> list[list[Document]]:
        self.batches.append(queries)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(self.seconds)
        self.running -= 1
        if "poison" in queries:
            raise Rejected("no")
        if "down" in queries:
            raise SearchError("dead")
        return [[Document("1", query)] for query in queries]

    async def aclose(self) -> None:
        self.closed += 1


async def started(transport: Echo) -> None:
    """Wait until a batch has reached the transport."""
    while not transport.batches:
        await asyncio.sleep(0.001)


def echo_client(transport: Echo, **changes: Any) -> SearchClient:
    return SearchClient(SearchConfig(url="http://a:1", **changes), lambda settings, stats: transport)


def mock_client(handler: Handler, **changes: Any) -> SearchClient:
    """A client whose HTTP requests go to ``handler``; no pause worth mentioning between tries."""
    settings = SearchConfig(**{"url": None if "urls" in changes else "http://a:1", **FAST, **changes})
    mock = httpx.MockTransport(handler)
    return SearchClient(settings, lambda settings, stats: HttpTransport(settings, stats, mock))


def batch_answer(request: httpx.Request) -> httpx.Response:
    queries = json.loads(request.content)["query"]
    return httpx.Response(200, json=[[{"id": "00012", "contents": f"about {query}"}] for query in queries])


async def test_client_sends_the_queries_of_one_tick_as_one_batch() -> None:
    transport = Echo()
    client = echo_client(transport)
    replies = await asyncio.gather(*(client.search(f"q{n}") for n in range(64)))
    assert [len(batch) for batch in transport.batches] == [64]
    assert [reply.documents[0].contents for reply in replies] == [f"q{n}" for n in range(64)]


async def test_client_cuts_batches_at_batch_size_and_bounds_concurrency() -> None:
    transport = Echo(0.01)
    client = echo_client(transport, batch_size=4, max_concurrency=3)
    replies = await asyncio.gather(*(client.search(f"q{n}") for n in range(30)))
    assert [len(batch) for batch in transport.batches] == [4, 4, 4, 4, 4, 4, 4, 2]
    assert transport.most_running == 3
    assert [reply.documents[0].contents for reply in replies] == [f"q{n}" for n in range(30)]


async def test_client_64_rollouts_of_3_searches_take_about_3_round_trips() -> None:
    transport = Echo(0.2)
    client = echo_client(transport)

    async def rollout(number: int) -> None:
        for turn in range(3):
            await client.search(f"rollout {number} turn {turn}")

    started = time.perf_counter()
    await asyncio.gather(*(rollout(number) for number in range(64)))
    assert time.perf_counter() - started < 5  # one after the other: 38.4 s
    assert sum(len(batch) for batch in transport.batches) == 64 * 3
    assert client.stats.queries == 64 * 3


async def test_client_shares_identical_queries_and_caches_them() -> None:
    transport = Echo()
    transport.gate = asyncio.Event()
    client = echo_client(transport)
    first = asyncio.create_task(client.search("q"))
    await started(transport)
    asyncio.get_running_loop().call_later(0.01, transport.gate.set)
    replies = await asyncio.gather(first, client.search("q"), client.search(" q\n"))
    assert transport.batches == [["q"]]
    assert [reply.cached for reply in replies] == [False, False, False]
    again = await client.search("q")
    assert (again.documents, again.cached) == (replies[0].documents, True)
    assert transport.batches == [["q"]]
    assert client.stats.cache_hits == 1


async def test_client_memory_cache_forgets_the_least_recently_used() -> None:
    transport = Echo()
    client = echo_client(transport, cache_size=2)
    for query in ("a", "b", "a", "c", "a", "b"):
        await client.search(query)
    assert transport.batches == [["a"], ["b"], ["c"], ["b"]]


async def test_client_without_cache_asks_again() -> None:
    transport = Echo()
    client = echo_client(transport, cache_size=0)
    first, second = await client.search("a"), await client.search("a")
    assert first.documents == second.documents
    assert transport.batches == [["a"], ["a"]]


@pytest.mark.parametrize("query", ["", "  ", "\n\t"])
async def test_client_blank_query_sends_nothing(query: str) -> None:
    transport = Echo()
    reply = await echo_client(transport).search(query)
    assert (reply.documents, reply.cached, transport.batches) == ((), False, [])


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("x" * 10_000, "x" * 10_000),
        ("x" * 20_000, "x" * 16_384),
        (' say "hi"\nthere ', 'say "hi"\nthere'),
        ("東京 🎈", "東京 🎈"),
    ],
    ids=["lone-surrogate", "10000", "20000", "quotes-newline", "cjk-emoji"],
)
async def test_client_cleans_what_the_policy_wrote(query: str, sent: str) -> None:
    bodies = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return batch_answer(request)

    client = mock_client(handler)
    await client.search(query)
    assert bodies == [{"query": [sent], "top_n": 5}]
    await client.aclose()


async def test_client_cancelled_caller_does_not_hurt_the_others() -> None:
    transport = Echo()
    transport.gate = asyncio.Event()
    client = echo_client(transport)
    tasks = [asyncio.create_task(client.search(query)) for query in ("a", "a", "b", "c")]
    await started(transport)
    tasks[0].cancel()
    tasks[3].cancel()
    transport.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert isinstance(results[3], asyncio.CancelledError)
    assert [result.documents[0].contents for result in (results[1], results[2])] == ["a", "b"]
    assert transport.batches == [["a", "b", "c"]]


@pytest.mark.parametrize("end", ["fails", "closed"])
async def test_client_all_callers_cancelled_then_failure_is_silent(end: str) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    transport = Echo()
    transport.gate = asyncio.Event()
    client = echo_client(transport)
    task = asyncio.create_task(client.search("down"))
    await started(transport)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    del task  # its traceback would keep what it waited for
    if end == "closed":
        await client.aclose()
    transport.gate.set()
    await asyncio.sleep(0.03)
    gc.collect()
    assert complaints == []


async def test_client_refused_query_does_not_fail_its_neighbours() -> None:
    transport = Echo()
    client = echo_client(transport)
    names = [*(f"q{n}" for n in range(5)), "poison", "q6", "q7"]
    results = await asyncio.gather(*(client.search(name) for name in names), return_exceptions=True)
    assert isinstance(results[5], SearchError)
    assert [r.documents[0].contents for r in results if not isinstance(r, BaseException)] == names[:5] + names[6:]
    assert client.stats.failures == 1
    assert len(transport.batches) == 7  # 8; 4 + 4; 2 + 2; 1 + 1


async def test_client_failed_batch_is_tried_afresh_next_time() -> None:
    transport = Echo()
    client = echo_client(transport)
    for _ in range(2):
        with pytest.raises(SearchError, match="dead"):
            await client.search("down")
    assert transport.batches == [["down"], ["down"]]
    assert client.stats.failures == 2


async def test_client_aclose_fails_waiting_callers_and_can_be_reopened() -> None:
    transport = Echo(5)
    client = echo_client(transport, batch_size=1, max_concurrency=1)
    tasks = [asyncio.create_task(client.search(query)) for query in ("a", "b")]
    await started(transport)
    await client.aclose()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results] == ["the search client was closed"] * 2
    assert (transport.closed, transport.batches) == (1, [["a"]])
    transport.seconds = 0
    assert (await client.search("c")).documents[0].contents == "c"


def test_client_follows_when_its_event_loop_ended() -> None:
    transport = Echo()
    client = echo_client(transport)
    asyncio.run(client.search("a"))
    assert asyncio.run(client.search("b")).documents[0].contents == "b"
    assert asyncio.run(client.search("a")).cached


async def test_client_refuses_a_second_running_loop() -> None:
    client = echo_client(Echo())
    await client.search("a")
    with pytest.raises(RuntimeError, match="shared_client"):
        await asyncio.to_thread(asyncio.run, client.search("b"))


def test_shared_client_is_one_per_loop_and_settings() -> None:
    settings = SearchConfig(url="http://a:1")

    async def take() -> tuple[SearchClient, SearchClient, SearchClient]:
        return (
            shared_client(settings),
            shared_client(SearchConfig(url="http://a:1")),
            shared_client(SearchConfig(url="http://a:1", topk=3)),
        )

    clients: list[tuple[SearchClient, SearchClient, SearchClient]] = []
    barrier = threading.Barrier(2)

    async def take_with_the_other() -> None:
        clients.append(await take())
        await asyncio.to_thread(barrier.wait, 5)

    threads = [threading.Thread(target=asyncio.run, args=(take_with_the_other(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first, same, other), (elsewhere, _, _) = clients
    assert first is same
    assert first is not other
    assert first is not elsewhere


async def test_client_pickles_without_its_connections() -> None:
    client = mock_client(batch_answer)
    await client.search("q")
    copy = pickle.loads(pickle.dumps(client))
    assert copy.settings == client.settings
    assert copy.stats == SearchStats()
    await client.aclose()


@pytest.mark.parametrize(
    ("api", "path", "body", "answer", "documents"),
    [
        (
            "batch_search",
            "/batch_search",
            {"query": ["q"], "top_n": 2},
            [[{"id": "00012", "contents": "Beyoncé"}]],
            (Document("00012", "Beyoncé"),),
        ),
        ("batch_search", "/batch_search", {"query": ["q"], "top_n": 2}, [[]], ()),
        (
            "batch_search",
            "/batch_search",
            {"query": ["q"], "top_n": 2},
            [[{"id": 7, "text": "a"}, {"contents": "b"}, {"id": "3", "contents": "more than asked for"}]],
            (Document("7", "a"), Document("", "b")),
        ),
        (
            "retrieve",
            "/retrieve",
            {"queries": ["q"], "topk": 2, "return_scores": True},
            {"result": [[{"document": {"id": "1", "contents": "a"}, "score": 0.5}]]},
            (Document("1", "a", 0.5),),
        ),
        (
            "queries",
            "/queries",
            {"queries": ["q"], "k": 2},
            {"queries": ["q"], "answers": [["a", "b"]]},
            (Document("", "a"), Document("", "b")),
        ),
    ],
)
async def test_client_apis(api: str, path: str, body: Any, answer: Any, documents: tuple[Document, ...]) -> None:
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json=answer)

    client = mock_client(handler, api=api, topk=2)
    assert (await client.search("q")).documents == documents
    assert seen == [(path, body)]
    await client.aclose()


async def test_client_replaces_half_surrogates_in_passages() -> None:
    # Case 11: JSON may hold "\\ud83d" alone; a tokenizer would raise on it in the middle of a rollout.
    from research_plugin.search.apis import APIS

    rows = APIS["batch_search"].parse([[{"id": "1", "contents": "x \ud83d y"}]], 1, 1)
    assert rows[0][0].contents == "x \ufffd y"


HTML = httpx.Response(502, html="<html><h1>Bad gateway</h1></html>")


def scripted(*steps: Any) -> tuple[Handler, list[float]]:
    """A handler that plays one step per request (a response, an exception class, or None for a good answer)."""
    times: list[float] = []

    def handler(request: httpx.Request) -> httpx.Response:
        step = steps[len(times)] if len(times) < len(steps) else steps[-1]
        times.append(time.monotonic())
        if step is None:
            return batch_answer(request)
        if isinstance(step, httpx.Response):
            return httpx.Response(step.status_code, headers=step.headers, content=step.content)
        raise step("boom", request=request)

    return handler, times


@pytest.mark.parametrize(
    "fault",
    [
        HTML,
        httpx.Response(500, text="oops"),
        httpx.Response(503),
        httpx.Response(429),
        httpx.Response(404),
        httpx.Response(408),
        httpx.Response(200, text="not json"),
        httpx.Response(200, json={"error": "x"}),
        httpx.Response(200, json=[{"id": "1", "contents": "flat"}]),
        httpx.Response(200, json=[[], []]),
        httpx.Response(200, json=[[{"id": "1"}]]),
        httpx.Response(200, json=None),
        httpx.ConnectError,
        httpx.ConnectTimeout,
        httpx.ReadTimeout,
        httpx.RemoteProtocolError,
    ],
    ids=str,
)
async def test_client_retries_what_may_pass(fault: Any) -> None:
    handler, times = scripted(fault, fault, None)
    client = mock_client(handler)
    assert (await client.search("q")).documents == (Document("00012", "about q"),)
    assert len(times) == 3
    assert (client.stats.requests, client.stats.retries, client.stats.failures) == (3, 2, 0)
    await client.aclose()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (HTML, "HTTP 502: <html><h1>Bad gateway</h1></html>"),
        (httpx.Response(200, text="not json"), "HTTP 200 but no batch_search answer"),
        (httpx.Response(503), "HTTP 503: empty body"),
        (httpx.ConnectError, "ConnectError: boom"),
        (httpx.ReadTimeout, "ReadTimeout: boom"),
    ],
    ids=["html", "not-json", "empty", "refused", "silent"],
)
async def test_client_gives_up_with_url_tries_seconds_and_cause(fault: Any, cause: str) -> None:
    handler, times = scripted(fault)
    client = mock_client(handler)
    with pytest.raises(SearchError) as caught:
        await client.search("q")
    shown = r"search at http://a:1/batch_search failed after 4 tries in \d+\.\d s; last cause: " + re.escape(cause)
    assert re.match(shown, str(caught.value))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert len(times) == 4
    await client.aclose()


@pytest.mark.parametrize("status", [301, 400, 401, 403, 405, 413, 422])
async def test_client_does_not_retry_a_refusal(status: int) -> None:
    handler, times = scripted(httpx.Response(status, json={"error": {"message": "top_n must be from 1 to 4"}}))
    client = mock_client(handler)
    with pytest.raises(SearchError, match=rf"http://a:1/batch_search was refused.*HTTP {status}.*from 1 to 4"):
        await client.search("q")
    assert len(times) == 1
    await client.aclose()


async def test_client_unauthorized_batch_is_one_request() -> None:
    handler, times = scripted(httpx.Response(401))
    client = mock_client(handler)
    results = await asyncio.gather(*(client.search(f"q{n}") for n in range(8)), return_exceptions=True)
    assert all(isinstance(result, SearchError) for result in results)
    assert len(times) == 1
    await client.aclose()


@pytest.mark.parametrize("status", [400, 422, 500])
async def test_client_isolates_a_query_that_the_server_cannot_take(status: int) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status) if b"poison" in request.content else batch_answer(request)

    client = mock_client(handler)
    names = ["a", "b", "poison", "c"]
    results = await asyncio.gather(*(client.search(name) for name in names), return_exceptions=True)
    assert isinstance(results[2], SearchError)
    assert [r.documents[0].contents for r in results if not isinstance(r, BaseException)] == [
        "about a",
        "about b",
        "about c",
    ]
    await client.aclose()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces asyncio.sleep by a recorder."""
    recorded: list[float] = []

    async def sleep(seconds: float) -> None:
        recorded.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return recorded


@pytest.mark.parametrize(
    ("value", "shortest", "longest"),
    [("7", 7, 7), ("3600", 60, 60), ("soon", 0, 1), ("-5", 0, 1), ("Wed, 01 Jan 2003 00:00:00 GMT", 0, 1)],
)
async def test_client_honours_retry_after(pauses: list[float], value: str, shortest: float, longest: float) -> None:
    handler, _ = scripted(httpx.Response(429, headers={"Retry-After": value}), None)
    client = mock_client(handler)
    await client.search("q")
    assert len(pauses) == 1
    assert shortest <= pauses[0] <= longest
    await client.aclose()


async def test_client_pauses_grow_with_jitter_up_to_a_limit(pauses: list[float]) -> None:
    handler, _ = scripted(httpx.ConnectError)
    client = mock_client(handler, backoff=1.0, backoff_max=3.0, retries=5)
    with pytest.raises(SearchError):
        await client.search("q")
    assert len(pauses) == 5
    for pause, longest in zip(pauses, (1, 2, 3, 3, 3), strict=True):
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == 5
    await client.aclose()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The transport's clock, set by hand: ``clock.now``."""
    made = SimpleNamespace(now=1000.0, time=time.time)
    made.monotonic = lambda: made.now
    monkeypatch.setattr("research_plugin.search.http.time", made)
    return made


async def test_client_skips_a_sick_replica_then_tries_it_again(clock: SimpleNamespace) -> None:
    dead = {"a"}
    hosts: list[str] = []

    async def handler(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        await asyncio.sleep(0)
        if request.url.host in dead:
            raise httpx.ConnectError("refused", request=request)
        return batch_answer(request)

    client = mock_client(handler, urls=["http://a:1", "http://b:1"], cooldown=5, batch_size=1)
    for n in range(20):
        await client.search(f"first {n}")
    assert hosts.count("a") == 1
    clock.now += 5
    for n in range(20):
        await client.search(f"still dead {n}")
    assert hosts.count("a") == 2
    dead.clear()
    clock.now += 5
    while hosts.count("a") == 2:
        await client.search(f"well again {len(hosts)}")
    hosts.clear()
    await asyncio.gather(*(client.search(f"both {n}") for n in range(10)))
    assert (hosts.count("a"), hosts.count("b")) == (5, 5)
    await client.aclose()


async def test_client_asks_a_sick_replica_with_one_request_at_a_time(clock: SimpleNamespace) -> None:
    asked = 0

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        if request.url.host == "a":
            asked += 1
            await asyncio.sleep(0.05)
            raise httpx.ConnectTimeout("silent", request=request)
        await asyncio.sleep(0.001)
        return batch_answer(request)

    client = mock_client(handler, urls=["http://a:1", "http://b:1"], cooldown=5, batch_size=1)
    while asked == 0:
        await client.search(f"warm-up {time.monotonic()}")
    clock.now += 5
    asked = 0
    await asyncio.gather(*(client.search(f"q{n}") for n in range(40)))
    assert asked == 1
    await client.aclose()


async def test_client_sends_to_the_replica_with_the_fewest_requests_out() -> None:
    hosts: list[str] = []

    async def handler(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        await asyncio.sleep(0.05)
        return batch_answer(request)

    client = mock_client(handler, urls=["http://a:1", "http://b:1"], batch_size=1)
    await asyncio.gather(*(client.search(f"q{n}") for n in range(10)))
    assert (hosts.count("a"), hosts.count("b")) == (5, 5)
    await client.aclose()


async def test_client_all_replicas_down_is_bounded_and_named() -> None:
    handler, times = scripted(httpx.ConnectError)
    client = mock_client(handler, urls=["http://a:1", "http://b:1"])
    with pytest.raises(SearchError, match=r"http://[ab]:1/batch_search \(and 1 more\) failed after 4 tries"):
        await client.search("q")
    assert len(times) == 4
    await client.aclose()


async def test_client_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = []

    def handler(request: httpx.Request) -> httpx.Response:
        headers.append(request.headers["authorization"])
        return httpx.Response(401)

    monkeypatch.setenv("RETRIEVER_TOKEN", "s3cret")
    client = mock_client(handler, token_env="RETRIEVER_TOKEN")
    with pytest.raises(SearchError) as caught:
        await client.search("q")
    assert headers == ["Bearer s3cret"]
    assert "s3cret" not in str(caught.value) + repr(client.settings)
    await client.aclose()
    monkeypatch.delenv("RETRIEVER_TOKEN")
    with pytest.raises(ConfigError, match=r"search\.token_env.*'RETRIEVER_TOKEN' is unset"):
        await mock_client(handler, token_env="RETRIEVER_TOKEN").search("q")
