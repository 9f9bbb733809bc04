"""Summaries by a chat model, and the web engine behind the HTTP front with the search client in front of it."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from web_fakes import KEY, FakeServer, Reply, Results, engine, html, texts

from research_plugin.retriever.app import create_app
from research_plugin.retriever.settings import RetrieverConfig, ServerSettings, WebSettings
from research_plugin.retriever.web.engine import WebEngine, make
from research_plugin.search.client import SearchClient
from research_plugin.search.settings import SearchConfig

_TEXT = "Paris is the capital of France."


def chat(content: str | None) -> Reply:
    return Reply({"choices": [{"message": {"role": "assistant", "content": content}}]})


@contextmanager
def summarizing(reply: Reply, **settings: Any) -> Iterator[tuple[WebEngine, FakeServer]]:
    with (
        FakeServer(lambda asked: html(_TEXT)) as pages,
        FakeServer(lambda asked: reply) as model,
        FakeServer(Results([f"{pages.url}/paris"])) as api,
    ):
        options = {"summarize_url": f"{model.url}/v1/", "summarize_model": "small", "retries": 1, **settings}
        with engine(api, fetch_pages=True, allow_private_addresses=True, **options) as web:
            yield web, model


def test_summary_stands_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "m0del-key")
    reply = chat("<think>hm</think>\n The capital is\nParis. ")
    with summarizing(reply, summarize_key_env="MODEL_KEY", summarize_chars=20, page_chars=18) as (web, model):
        for _ in range(2):
            assert texts(web.search(["capital of France"], 1)[0]) == ["The capital is\nPar"]
    (asked,) = model.asked
    assert (asked.path, asked.headers["authorization"]) == ("/v1/chat/completions", "Bearer m0del-key")
    assert (asked.body["model"], asked.body["temperature"]) == ("small", 0)
    (message,) = asked.body["messages"]
    assert message["content"].endswith(f"\n\nQuery: capital of France\n\nPage:\n{_TEXT[:20]}")


@pytest.mark.parametrize(
    ("reply", "text", "requests"),
    [
        (chat("None"), "Snippet 1 of q", 1),
        (chat("none."), "Snippet 1 of q", 1),
        (chat(""), "Snippet 1 of q", 1),
        (chat(None), "Snippet 1 of q", 1),
        (chat("None of the kings"), "None of the kings", 1),
        (Reply(b"", 500), _TEXT, 2),
        (Reply({"error": "no such model"}, 404), _TEXT, 1),
        (Reply({"choices": []}), _TEXT, 1),
        (Reply([]), _TEXT, 1),
        (Reply(b"", 401), _TEXT, 1),
    ],
    ids=["none", "none-dot", "empty", "null", "none-word", "500", "404", "shape", "list", "401"],
)
def test_summary_that_says_nothing_or_fails(reply: Reply, text: str, requests: int) -> None:
    with summarizing(reply) as (web, model):
        assert texts(web.search(["q"], 1)[0]) == [text]
    assert len(model.asked) == requests


@contextmanager
def served(config: RetrieverConfig) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(lambda: make(config), settings=config.server), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        deadline = time.monotonic() + 20
        while httpx.get(f"{url}/health", trust_env=False).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield url
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


@pytest.fixture
def web_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A whole server over a fake web, in which the query "bad" has no answer."""
    results = Results()
    results.down = {"bad"}
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    monkeypatch.setattr("research_plugin.retriever.web.api._BACKOFF", 0.01)
    with FakeServer(lambda asked: html(f"All about {asked.path}.")) as pages, FakeServer(results) as api:
        results.links = [f"{pages.url}/{n}" for n in range(1, 21)]
        web = WebSettings(
            endpoint=f"{api.url}/search",
            requests_per_second=1000,
            fetch_pages=True,
            allow_private_addresses=True,
            retries=1,
        )
        with served(RetrieverConfig(engine="web", web=web, server=ServerSettings(max_topk=20))) as url:
            yield url


async def test_client_gets_the_web_by_every_api(web_url: str) -> None:
    for api in ("batch_search", "retrieve", "queries"):
        client = SearchClient(SearchConfig(url=web_url, topk=2, api=api, retries=0))
        try:
            replies = await asyncio.gather(*(client.search(f"{api} {n}") for n in range(4)))
            for reply in replies:
                assert [found.contents for found in reply.documents] == [f"Title {n}\nAll about /{n}." for n in (1, 2)]
        finally:
            await client.aclose()
    answer = httpx.post(f"{web_url}/search", json={"query": "q", "top_n": 12, "return_score": True}, trust_env=False)
    documents, scores = answer.json()
    assert [document["id"].rsplit("/", 1)[1] for document in documents] == [str(n) for n in range(1, 13)]
    assert all(math.isclose(score, 1 / rank) for rank, score in enumerate(scores, start=1))
    health = httpx.get(f"{web_url}/health", trust_env=False).json()
    assert (health["engine"], health["size"]) == ("web", None)


async def test_server_fails_only_the_query_that_the_web_does_not_answer(web_url: str) -> None:
    async with httpx.AsyncClient(base_url=web_url, trust_env=False, timeout=30) as http:
        bodies = [{"query": query, "top_n": 1} for query in ("a", "bad", "b", "c")]
        responses = await asyncio.gather(*(http.post("/search", json=body) for body in bodies))
        assert [response.status_code < 500 for response in responses] == [True, False, True, True]
        assert KEY not in responses[1].text
        assert (await http.post("/search", json={"query": "q", "top_n": 21})).status_code == 400
        assert (await http.post("/search", json={"query": "after", "top_n": 1})).status_code == 200
