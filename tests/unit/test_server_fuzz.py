"""No request makes the server fail: it answers what it can read, refuses the rest with a code, and lives on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import StubEngine, call, running

from research_plugin.retriever.app import RetrieverApp
from research_plugin.retriever.routes import ROUTES
from research_plugin.retriever.settings import ServerSettings

Server = tuple[RetrieverApp, asyncio.AbstractEventLoop]

LIMITS = ServerSettings(max_query_chars=50, max_queries=5, max_body_mb=1, max_topk=10)  # of a corpus of 3
KEYS = ["query", "queries", "top_n", "topk", "k", "return_score", "return_scores"]
ODD = st.sampled_from(
    ["", " ", "q", "\x00", "\ud800", "\U0001f388", "x" * 51, 0, -1, 4, 11, 2**63, 10**400, 1.5, 1e999, True, None, [],
     {}, ["q"], ["q"] * 6, [["q"]], ["q", None]]
)  # fmt: skip
VALUES = ODD | st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=4))
TEXTS = st.sampled_from(["q", "none", "", " ", "\ud800", "\x00", "x" * 50, "x" * 51]) | st.text(max_size=5)


@st.composite
def nearly_right(draw: st.DrawFn) -> tuple[str, bytes]:
    """A request that may be answered, or has one thing wrong with it."""
    path = draw(st.sampled_from(sorted(ROUTES)))
    route = ROUTES[path]
    fields: dict[str, Any] = {route.queries_key: draw(TEXTS if route.single else st.lists(TEXTS, max_size=5))}
    if draw(st.booleans()):
        fields[route.topk_key] = draw(st.integers(1, 3))
    if route.scores_key and draw(st.booleans()):
        fields[route.scores_key] = draw(st.booleans())
    if draw(st.integers(0, 3)) == 0:
        fields[draw(st.sampled_from(KEYS))] = draw(VALUES)
    return path, json.dumps(fields).encode()


BODIES = (
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=7).map(lambda fields: json.dumps(fields).encode())
    | st.binary(max_size=40)
    | VALUES.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
)
CUT = st.tuples(nearly_right(), st.integers(0, 60)).map(lambda drawn: (drawn[0][0], drawn[0][1][: drawn[1]]))
REQUESTS = nearly_right() | nearly_right() | CUT | st.tuples(st.sampled_from(sorted(ROUTES)), BODIES)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"x-deadline-seconds", b"authorization", b"content-type", b"content-length"]),
        st.sampled_from([b"1", b"0", b"-1e9", b"1e999", b"\xff", b"nan", b""]) | st.binary(max_size=6),
    ),
    max_size=3,
)
METHODS = st.sampled_from(["POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "odd"])
PATHS = st.sampled_from(["/search", "/retrieve", "/health", "/live", "/metrics", "/", "//", "/search/", "*"])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server for all requests, in an event loop that only runs during a request."""
    loop = asyncio.new_event_loop()
    life = running(StubEngine, settings=LIMITS)
    yield loop.run_until_complete(life.__aenter__()), loop
    loop.run_until_complete(life.__aexit__(None, None, None))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def request(server: Server, *arguments: Any) -> tuple[int, dict[bytes, bytes], bytes]:
    app, loop = server
    return loop.run_until_complete(asyncio.wait_for(call(app, *arguments), 10))


@settings(max_examples=300, deadline=None)
@given(REQUESTS)
def test_any_body_is_answered(server: Server, path_and_body: tuple[str, bytes]) -> None:
    path, body = path_and_body
    status, sent, answer = request(server, "POST", path, body)
    assert int(sent[b"content-length"]) == len(answer)
    told = json.loads(answer)
    if status == 200:
        assert well_formed(path, json.loads(body), told)
    else:
        assert status in (400, 413)
        assert told["error"]["code"]
        assert 0 < len(told["error"]["message"]) < 200
    assert request(server, "POST", "/search", b'{"query": "q", "top_n": 1}')[0] == 200


@settings(max_examples=100, deadline=None)
@given(METHODS, PATHS, HEADERS)
def test_any_method_path_and_headers_are_answered(
    server: Server, method: str, path: str, headers: list[tuple[bytes, bytes]]
) -> None:
    status, _, answer = request(server, method, path, b'{"query": "q", "queries": ["q"]}', headers)
    assert status in (200, 400, 404, 405)
    if status != 200:
        assert json.loads(answer)["error"]["code"]


def well_formed(path: str, asked: dict[str, Any], told: Any) -> bool:
    """Whether ``told`` has one list of documents per query, each no longer than asked for."""
    if path == "/search":
        documents = told[0] if asked.get("return_score") else told
        return len(documents) <= asked.get("top_n", 10)
    if path == "/batch_search":
        rows, asked_for = (told[0] if asked.get("return_score") else told), len(asked["query"])
    else:
        rows, asked_for = told["result" if path == "/retrieve" else "answers"], len(asked["queries"])
    return len(rows) == asked_for and all(len(row) <= 3 for row in rows)
