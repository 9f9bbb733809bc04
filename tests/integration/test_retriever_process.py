"""The real server on loopback: the child process, signals, bad input over sockets, and the client against it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from research_plugin.document import Document
from research_plugin.errors import ConfigError, SearchError
from research_plugin.retriever.app import create_app
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.http_server import http_server
from research_plugin.retriever.process import RetrieverProcess
from research_plugin.retriever.settings import ServerSettings
from research_plugin.search.check import check_retriever, check_retriever_blocking
from research_plugin.search.client import SearchClient, SearchReply, shared_client
from research_plugin.search.settings import SearchConfig

ROOT = Path(__file__).parents[2]
ROWS = [
    {"id": "00012", "contents": "Paris\nParis is the capital of France."},
    {"id": 1, "contents": "Beyonc\u00e9\nBeyonc\u00e9 is a singer."},
    {"id": "\u6771\u4eac-2", "contents": "Tokyo\n\u6771\u4eac is the capital of Japan."},
    {"id": "3", "contents": "Berlin\nBerlin is the capital of Germany."},
]


@pytest.fixture(autouse=True, scope="module")
def child_finds_the_package() -> Iterator[None]:
    """The server is started with ``python -m``; from a source tree it needs the root on its path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def server(corpus: Path, child_finds_the_package: None) -> Iterator[RetrieverProcess]:
    with RetrieverProcess(corpus, timeout=60) as process:
        yield process


@pytest.fixture
def http(server: RetrieverProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as client:
        yield client


def search_once(url: str, query: str, **settings: object) -> SearchReply:
    async def run() -> SearchReply:
        client = SearchClient(SearchConfig(url=url, **{"topk": 2, **settings}))  # type: ignore[arg-type]
        try:
            return await client.search(query)
        finally:
            await client.aclose()

    return asyncio.run(run())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: object, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def test_retriever_answers_all_dialects(http: httpx.Client) -> None:
    paris = {"id": "00012", "contents": "Paris\nParis is the capital of France."}
    assert http.post("/search", json={"query": "France", "top_n": 1}).json() == [paris]
    assert http.post("/batch_search", json={"query": ["France"], "top_n": 1}).json() == [[paris]]
    assert http.post("/retrieve", json={"queries": ["France"], "topk": 1}).json() == {"result": [[paris]]}
    answers = http.post("/queries", json={"queries": ["France", "zebra"], "k": 1}).json()
    assert answers == {"queries": ["France", "zebra"], "answers": [[paris["contents"]], []]}
    assert http.get("/health").json() == {
        "status": "ready",
        "engine": "bm25",
        "size": 4,
        "topk": None,
        "max_topk": 100,
        "corpus": "corpus.jsonl",
    }
    assert "retriever_queries_total" in http.get("/metrics").text


def test_retriever_ids_and_accents_survive(http: httpx.Client) -> None:
    found = http.post("/batch_search", json={"query": ["\u6771\u4eac", "beyonc\u00e9", "singer"], "top_n": 1}).json()
    assert [row[0]["id"] for row in found] == ["\u6771\u4eac-2", "1", "1"]
    assert found[2][0]["contents"] == "Beyonc\u00e9\nBeyonc\u00e9 is a singer."


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("/search", b'{"query": "' + b"x" * 50_000_000 + b'"}', 413),
        ("/search", b'{"query": "' + b"x" * 1_000_000 + b'"}', 400),
        ("/search", b'{"query": "' + b"x" * 10_000 + b'"}', 200),
        ("/search", b'{"query": "  "}', 400),
        ("/search", b'{"query": "a\\ud800"}', 400),
        ("/search", b'{"query": "a", "top_n": 0}', 400),
        ("/search", b'{"query": "a", "top_n": -1}', 400),
        ("/search", b'{"query": "a", "top_n": 5}', 400),
        ("/search", b'{"query": "a", "top_n": 1000000000}', 400),
        ("/search", b'{"query": "a", "top_n": 9223372036854775808}', 400),
        ("/search", b'{"query": "a", "top_n": "3"}', 400),
        ("/search", b'{"query": "a", "top_n": 2.5}', 400),
        ("/search", b'{"query": "a", "top_n": null}', 400),
        ("/search", b'{"query": 7}', 400),
        ("/search", b'{"query": "\\u0000 \\ud83c\\udf88 \\u0645"}', 200),
        ("/search", b"\xff\xfe", 400),
        ("/search", b"", 400),
        ("/batch_search", b'{"query": []}', 200),
        ("/batch_search", b'{"query": ["", "France"]}', 200),
        ("/batch_search", json.dumps({"query": ["France"] * 1500}).encode(), 413),
        ("/retrieve", b'{"queries": ["France"], "topk": null, "return_scores": false}', 200),
        ("/retrieve", b'{"queries": ["France", "Japan"], "return_scores": false}', 200),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, (str, bytes)) else None,
)
def test_retriever_bad_input_is_a_clear_answer_and_it_lives_on(
    http: httpx.Client, route: str, body: bytes, status: int
) -> None:
    response = http.post(route, content=body)
    assert response.status_code == status
    assert status == 200 or response.json()["error"]["message"]
    assert http.post("/search", json={"query": "France", "top_n": 1}).json()[0]["id"] == "00012"


def test_retriever_half_a_request_does_not_block_it(server: RetrieverProcess, http: httpx.Client) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(b'POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"query"')
        assert http.post("/search", json={"query": "France"}).status_code == 200


@pytest.mark.parametrize("part", [b"X-Many: abcdefgh\r\n" * 50_000, b"a" * 900_000], ids=["many", "long"])
def test_retriever_headers_without_end_are_cut_off(server: RetrieverProcess, http: httpx.Client, part: bytes) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ")
        with contextlib.suppress(OSError):  # closed while we send
            for _ in range(20):
                client.sendall(part)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = client.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 400") or not answer
    assert http.get("/health", headers={"X-Long": "a" * 100_000}).status_code == 200


def test_retriever_takes_as_many_connections_as_the_system_allows() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    http_server(create_app(SlowEngine, settings=ServerSettings()))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_retriever_ends_with_status_0_on_a_signal(corpus: Path, tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "research_plugin.retriever", "--corpus", str(corpus), "--port", "0"]
    process = subprocess.Popen([*command, "--ready-file", str(ready)], stderr=subprocess.PIPE)
    try:
        assert wait_until(ready.exists, 60)
        written = json.loads(ready.read_text())
        assert written["pid"] == process.pid
        assert search_once(written["url"], "France").documents[0].id == "00012"
        process.send_signal(number)
        _, log = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert b"Traceback" not in log
    assert not ready.exists()


def test_retriever_ends_when_its_parent_is_killed(corpus: Path) -> None:
    program = (
        "import sys, time\nfrom research_plugin.retriever.process import RetrieverProcess\n"
        "server = RetrieverProcess(sys.argv[1]); print(server.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(corpus)], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert wait_until(lambda: not is_alive(pid), 10)


def test_retriever_outlives_the_thread_that_started_it(corpus: Path) -> None:
    made: list[RetrieverProcess] = []
    thread = threading.Thread(target=lambda: made.append(RetrieverProcess(corpus)))
    thread.start()
    thread.join()
    with made[0] as process:
        time.sleep(1.0)
        assert is_alive(process.pid)
    assert not is_alive(process.pid)
    process.close()


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ('{"id": "0", "contents": "a"}\n{"id": "1", "con', [], r"line 2: .*half-downloaded"),
        (None, [], r"no such file"),
        ('{"id": "0", "contents": "a"}\n', ["server.max_topk=0"], r"server\.max_topk: got 0; must be at least 1"),
        ('{"id": "0", "contents": "a"}\n', ["--token-env", "UNSET_TOKEN"], r"UNSET_TOKEN.*unset"),
    ],
    ids=["cut-corpus", "no-corpus", "limit", "token"],
)
def test_retriever_start_failure_shows_the_reason(
    tmp_path: Path, content: str | None, arguments: list[str], message: str
) -> None:
    path = tmp_path / "corpus.jsonl"
    if content is not None:
        path.write_text(content)
    started = time.monotonic()
    with pytest.raises(SearchError, match=rf"(?s)ended with status 1 .*error: .*{message}") as caught:
        RetrieverProcess(path, timeout=60, arguments=arguments)
    assert "Traceback" not in str(caught.value)
    assert time.monotonic() - started < 30


def test_retriever_taken_port_shows_the_reason(corpus: Path, server: RetrieverProcess) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with pytest.raises(SearchError, match=rf"cannot listen on 127\.0\.0\.1 port {port}: Address already in use"):
        RetrieverProcess(corpus, port=port, timeout=60)


def test_retriever_not_ready_in_time_is_ended(corpus: Path) -> None:
    with pytest.raises(SearchError, match="not ready after 0 s"):
        RetrieverProcess(corpus, timeout=0.01)


def test_retriever_token(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRIEVER_TOKEN", "s3cret")
    with RetrieverProcess(corpus, timeout=60, arguments=["--token-env", "RETRIEVER_TOKEN"]) as guarded:
        assert search_once(guarded.url, "France", token_env="RETRIEVER_TOKEN").documents[0].id == "00012"
        with pytest.raises(SearchError, match="HTTP 401") as caught:
            search_once(guarded.url, "France")
        assert "s3cret" not in str(caught.value)


async def test_client_waits_for_a_killed_server_to_come_back(corpus: Path) -> None:
    process = RetrieverProcess(corpus, timeout=60)
    port = int(process.url.rsplit(":", 1)[1])
    client = SearchClient(SearchConfig(url=process.url, topk=1, retries=12, backoff=0.2, backoff_max=1.0, cache_size=0))
    try:
        assert (await client.search("France")).documents[0].id == "00012"
        os.kill(process.pid, signal.SIGKILL)
        process.close()
        searches = [asyncio.create_task(client.search(query)) for query in ("France", "Germany", "Japan")]
        await asyncio.sleep(0.5)
        process = await asyncio.to_thread(RetrieverProcess, corpus, port=port, timeout=60)
        found = [(await search).documents[0].id for search in searches]
        assert found == ["00012", "3", "\u6771\u4eac-2"]
        assert client.stats.retries > 0
    finally:
        process.close()
        await client.aclose()


def test_client_stays_bounded_when_the_server_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(SearchError, match=rf"{url}/batch_search failed after 3 tries .*ReadTimeout"):
            search_once(url, "q", read_timeout=0.3, retries=2, backoff=0.01)
        assert 0.9 <= time.monotonic() - started < 3


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_client_ignores_a_proxy_for_loopback(
    server: RetrieverProcess, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    url = server.url.replace("127.0.0.1", host)
    assert search_once(url, "France", retries=0).documents[0].id == "00012"


@pytest.mark.parametrize("api", ["batch_search", "retrieve", "queries"])
def test_client_speaks_every_dialect_of_the_server(server: RetrieverProcess, api: str) -> None:
    documents = search_once(server.url, "singer", api=api).documents
    assert [document.contents for document in documents] == ["Beyonc\u00e9\nBeyonc\u00e9 is a singer."]
    assert [document.id for document in documents] == ([""] if api == "queries" else ["1"])
    assert search_once(server.url, "zebra", api=api).documents == ()


def test_client_two_event_loops_at_once(server: RetrieverProcess) -> None:
    settings = SearchConfig(url=server.url, topk=1)
    found: list[str] = []

    async def run() -> None:
        for query in ("France", "Germany", "Japan") * 5:
            found.append((await shared_client(settings).search(query)).documents[0].id)
        await shared_client(settings).aclose()

    threads = [threading.Thread(target=asyncio.run, args=(run(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(["00012", "3", "\u6771\u4eac-2"] * 10)


class SlowEngine:
    """Takes 0.2 s per call, whatever the batch."""

    name, size = "slow", 1

    def __init__(self) -> None:
        self.asked: list[str] = []

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        self.asked += queries
        time.sleep(0.2)
        return [[Document("0", query)] for query in queries]

    def close(self) -> None:
        pass


@contextmanager
def slow_server(engine: SlowEngine, max_batch: int = 256) -> Iterator[tuple[str, uvicorn.Server]]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    running = http_server(create_app(lambda: engine, settings=ServerSettings(max_batch=max_batch)))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(trust_env=False) as probe:
            assert wait_until(lambda: probe.get(f"{url}/health").status_code == 200, 10)
        yield url, running
    finally:
        running.handle_exit(signal.SIGTERM, None)
        thread.join()
        listener.close()


async def test_client_64_rollouts_of_3_slow_searches_stay_far_below_serial() -> None:
    engine = SlowEngine()
    with slow_server(engine) as (url, _):
        client = SearchClient(SearchConfig(url=url, topk=1))

        async def rollout(number: int) -> None:
            for turn in range(3):
                query = f"rollout {number} turn {turn}"
                assert (await client.search(query)).documents[0].contents == query
                await asyncio.sleep(0.001 * number)

        started = time.monotonic()
        await asyncio.gather(*(rollout(number) for number in range(64)))
        seconds = time.monotonic() - started
        await client.aclose()
    assert seconds < 64 * 3 * 0.2 / 10
    assert len(engine.asked) == 64 * 3


async def test_retriever_256_clients_do_not_starve_health() -> None:
    with slow_server(SlowEngine(), max_batch=32) as (url, _):
        # Eight pools, because one httpx pool of 256 connections costs seconds by itself.
        pools = [httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) for _ in range(8)]
        body = {"query": "q"}
        searches = [asyncio.create_task(pool.post("/search", json=body)) for pool in pools for _ in range(32)]
        await asyncio.sleep(0.3)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
            assert (await http.get("/health")).status_code == 200
        # A server that computes in its event loop answers in order of arrival: /health after the 256.
        assert sum(search.done() for search in searches) < 200
        assert {(await search).status_code for search in searches} == {200}
        for pool in pools:
            await pool.aclose()


async def test_retriever_answers_what_is_under_way_before_it_ends() -> None:
    with slow_server(SlowEngine()) as (url, running):
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
            search = asyncio.create_task(http.post("/search", json={"query": "q"}))
            await asyncio.sleep(0.1)
            running.handle_exit(signal.SIGTERM, None)
            assert (await search).json() == [{"id": "0", "contents": "q"}]


def test_retriever_drops_the_queries_of_clients_that_hung_up() -> None:
    engine = SlowEngine()
    with slow_server(engine) as (url, _), httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
        port = int(url.rsplit(":", 1)[1])
        for query in (b"running", b"gone"):
            body = b'{"query": "%s"}' % query
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                assert wait_until(lambda: "running" in engine.asked, 10)
                time.sleep(0.02)
        assert http.post("/search", json={"query": "stays"}).status_code == 200
    assert engine.asked == ["running", "stays"]


def test_retriever_drains_on_sigterm(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(
        "import socket, time\n"
        "from research_plugin.retriever.app import create_app\n"
        "from research_plugin.retriever.http_server import http_server\n"
        "from research_plugin.retriever.settings import ServerSettings\n"
        "class Slow:\n"
        "    name, size = 'slow', 1\n"
        "    def search(self, queries, topk, stages):\n"
        "        time.sleep(2)\n"
        "        return [[] for _ in queries]\n"
        "    def close(self):\n"
        "        print('closed', flush=True)\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "http_server(create_app(Slow, settings=ServerSettings())).run(sockets=[listener])\n"
    )
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        with httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
            assert wait_until(lambda: http.get("/health").status_code == 200, 30)
            answers: list[httpx.Response] = []
            search = threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/search", json={"query": "q"})))
            search.start()
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert wait_until(lambda: http.get("/health").status_code == 503, 1)
            assert http.get("/health").json()["status"] == "draining"
            assert http.get("/live").status_code == 200
            assert http.post("/search", json={"query": "late"}).json()["error"]["code"] == "draining"
            search.join()
        assert (answers[0].status_code, answers[0].json()) == (200, [])
        assert process.communicate(timeout=20)[0] == "closed\n"
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0


async def test_check_retriever_reports(server: RetrieverProcess, corpus: Path) -> None:
    report = await check_retriever(SearchConfig(url=server.url, topk=2))
    assert set(report) == {server.url}
    assert report[server.url]["api"] == "batch_search"
    assert 0 < report[server.url]["seconds"] < 5
    assert check_retriever_blocking(SearchConfig(engine="in_process", corpus=str(corpus))).keys() == {str(corpus)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "http://127.0.0.1:9"}, r"search\.url=http://127\.0\.0\.1:9: .*ConnectError"),
        ({"urls": ["{server}", "http://127.0.0.1:9"]}, r"search\.urls=http://127\.0\.0\.1:9: .*ConnectError"),
        ({"url": "{server}", "topk": 5}, r"search\.url=http.*top_n must be from 1 to 4"),
        ({"url": "{server}/elsewhere"}, r"search\.url=http.*HTTP 404"),
    ],
    ids=["unreachable", "one-of-two", "topk", "not-a-retriever"],
)
async def test_check_retriever_names_key_and_url(
    server: RetrieverProcess, settings: dict[str, object], message: str
) -> None:
    def fill(value: object) -> object:
        return value.format(server=server.url) if isinstance(value, str) else value

    filled = {
        key: [fill(item) for item in value] if isinstance(value, list) else fill(value)
        for key, value in settings.items()
    }
    started = time.monotonic()
    with pytest.raises(SearchError, match=message):
        await check_retriever(SearchConfig(**{"topk": 2, **filled}))  # type: ignore[arg-type]
    assert time.monotonic() - started < 5


async def test_check_retriever_that_never_answers_takes_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SearchError, match=rf"search\.url={url}: .* 1 try in .*ReadTimeout"):
            await check_retriever(SearchConfig(url=url), timeout=0.5)


async def test_check_retriever_missing_corpus() -> None:
    with pytest.raises(ConfigError, match=r"search\.corpus: 'nowhere\.jsonl'"):
        await check_retriever(SearchConfig(engine="in_process", corpus="nowhere.jsonl"))


def test_example_serve_and_query() -> None:
    command = [sys.executable, str(ROOT / "examples" / "serve_and_query.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Who designed the Analytical Engine?\n  -> Charles Babbage | Ada Lovelace" in done.stdout
    assert "cached=True; SearchStats(queries=4, requests=1, cache_hits=1, retries=0, failures=0)" in done.stdout
    assert 'POST /retrieve: {"result":[[{"document":{"id":"3"' in done.stdout
