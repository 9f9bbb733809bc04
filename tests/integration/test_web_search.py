"""The web engine against a search API on loopback: paging, site, key, retries, pace, cache."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from web_fakes import KEY, Asked, FakeServer, Reply, Results, closed_port, engine, html, texts

from research_plugin.document import Document
from research_plugin.errors import SearchError
from research_plugin.retriever.engine import Stages


def test_search_asks_the_api_and_reads_its_hits() -> None:
    stages: list[str] = []
    with FakeServer(Results()) as api, engine(api, country="us", language="en") as web:
        rows = web.search(["b", "a"], 2, Stages(lambda stage, seconds: stages.append(stage)))
    assert rows == [
        [Document(f"https://{n}.pages.test/{query}", f"Title {n}\nSnippet {n} of {query}", 1 / n) for n in (1, 2)]
        for query in ("b", "a")
    ]
    assert sorted(asked.body["q"] for asked in api.asked) == ["a", "b"]
    assert {"q": "a", "num": 10, "page": 1, "gl": "us", "hl": "en"} in [asked.body for asked in api.asked]
    assert {asked.headers["x-api-key"] for asked in api.asked} == {KEY}
    assert (web.name, web.size, stages) == ("web", None, ["web"])


@pytest.mark.parametrize(
    ("topk", "total", "documents", "requests"),
    [(3, 100, 3, 1), (10, 100, 10, 1), (11, 100, 11, 2), (25, 100, 25, 3), (25, 14, 14, 3), (25, 0, 0, 1)],
)
def test_search_pages_until_topk(topk: int, total: int, documents: int, requests: int) -> None:
    with FakeServer(Results(total=total)) as api, engine(api) as web:
        (row,) = web.search(["q"], topk)
    assert [document.id for document in row] == [f"https://{n}.pages.test/q" for n in range(1, documents + 1)]
    assert [asked.body["page"] for asked in api.asked] == list(range(1, requests + 1))


def test_search_serves_every_topk_from_the_same_paid_page() -> None:
    with FakeServer(Results()) as api, engine(api) as web:
        assert [len(web.search(["q"], topk)[0]) for topk in (3, 10, 1)] == [3, 10, 1]
    assert len(api.asked) == 1


def test_search_keeps_to_the_site_and_drops_repeats() -> None:
    links = [
        "https://en.wikipedia.org/wiki/A#:~:text=x",
        "https://evil.com/?u=en.wikipedia.org",
        "https://en.wikipedia.org/wiki/A",
        "https://en.wikipedia.org/wiki/B",
    ]
    with FakeServer(Results(links)) as api, engine(api, site="en.wikipedia.org") as web:
        (row,) = web.search(["q"], 5)
    assert [document.id for document in row] == ["https://en.wikipedia.org/wiki/A", "https://en.wikipedia.org/wiki/B"]
    assert [document.score for document in row] == [1.0, 0.5]
    assert api.asked[0].body["q"] == "q site:en.wikipedia.org"


@pytest.mark.parametrize("status", [401, 403])
def test_refused_key_is_named_not_shown_and_not_tried_again(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    echo = Reply({"message": f"Unauthorized: {KEY} is no key"}, status)
    message = rf"check the key in SERPER_API_KEY: HTTP {status}: .*\*\*\* is no key"
    with FakeServer(lambda asked: echo) as api, engine(api, retries=5) as web, pytest.raises(SearchError) as caught:
        web.search(["q"], 3)
    assert re.search(message, str(caught.value))
    assert len(api.asked) == 1
    assert KEY not in str(caught.value)
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply({"message": "Not enough credits"}, 400), "request, not retried: HTTP 400: .*Not enough credits"),
        (Reply(b"<html>proxy</html>"), "answered without JSON: <html>proxy"),
        (Reply({"results": []}), "ok"),
        (Reply([]), "no list 'organic'"),
        (Reply(b"", 302, {"Location": "http://127.0.0.1:9/"}), "HTTP 302: empty body"),
    ],
    ids=["credits", "html", "empty", "shape", "redirect"],
)
def test_answers_that_are_not_tried_again(reply: Reply, message: str) -> None:
    with FakeServer(lambda asked: reply) as api, engine(api, retries=5) as web:
        if message == "ok":
            assert web.search(["q"], 3) == [[]]
        else:
            with pytest.raises(SearchError, match=message):
                web.search(["q"], 3)
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    "reply", [Reply(b"", 503), Reply(b"slow down", 429), Reply(b"", 500), Reply(seconds=1.0)], ids=str
)
def test_search_is_tried_again(reply: Reply) -> None:
    results = Results()
    results.replies = [reply, reply]
    with FakeServer(results) as api, engine(api, retries=2, timeout=0.5) as web:
        assert len(web.search(["q"], 3)[0]) == 3
    assert len(api.asked) == 3


def test_search_waits_as_long_as_the_api_asks() -> None:
    results = Results()
    results.replies = [Reply(b"", 429, {"Retry-After": "1"})]
    with FakeServer(results) as api, engine(api) as web:
        web.search(["q"], 3)
    assert api.asked[1].time - api.asked[0].time >= 1.0


def test_search_does_not_wait_for_an_hour() -> None:
    reply, message = Reply(b"quota", 429, {"Retry-After": "3600"}), r"gave no answer after 1 try in .*HTTP 429: quota"
    with FakeServer(lambda asked: reply) as api, engine(api) as web, pytest.raises(SearchError, match=message):
        web.search(["q"], 3)
    assert len(api.asked) == 1


@pytest.mark.parametrize("reply", [Reply(seconds=2.0), Reply({"organic": []}, drip=0.05)], ids=["silent", "dripping"])
def test_search_that_never_ends_is_bounded(reply: Reply) -> None:
    message = r"gave no answer after 2 tries in .*last cause: \w*Timeout"
    with (
        FakeServer(lambda asked: reply) as api,
        engine(api, timeout=0.3, retries=1) as web,
        pytest.raises(SearchError, match=message),
    ):
        web.search(["q"], 3)
    assert len(api.asked) == 2


def test_search_api_that_is_not_there() -> None:
    url, message = (
        f"http://127.0.0.1:{closed_port()}/search",
        r"1:\d+/search gave no answer after 4 tries .*ConnectError",
    )
    with (
        FakeServer(Results()) as api,
        engine(api, endpoint=url) as web,
        pytest.raises(SearchError, match=message),
    ):
        web.search(["q"], 3)


def test_search_api_on_loopback_is_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with FakeServer(Results()) as api, engine(api, retries=0) as web:
        assert len(web.search(["q"], 3)[0]) == 3


def test_searches_keep_the_pace() -> None:
    with FakeServer(Results()) as api, engine(api, requests_per_second=20.0) as web:
        web.search([f"q{n}" for n in range(11)], 3)
    assert len(api.asked) == 11
    assert api.asked[-1].time - api.asked[0].time >= 10 / 20 - 0.05


def test_a_failed_query_fails_alone_and_nothing_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results()
    results.down = {"bad"}
    with (
        FakeServer(lambda asked: Reply(b"", 500)) as pages,
        FakeServer(results) as api,
        engine(api, retries=1, fetch_pages=True, allow_private_addresses=True) as web,
    ):
        results.links = [f"{pages.url}/{n}" for n in range(3)]
        with pytest.raises(SearchError, match="HTTP 503: overloaded"):
            web.search(["a", "bad", "b"], 3)
        asked = (len(api.asked), len(pages.asked))
        assert asked[0] == 4
        # As the batcher goes on: halves, then single queries, each with the largest topk in it.
        assert [len(row) for row in web.search(["a"], 2)] == [2]
        for part in (["bad", "b"], ["bad"]):
            with pytest.raises(SearchError, match="HTTP 503: overloaded"):
                web.search(part, 3)
        assert [len(row) for row in web.search(["b"], 3)] == [3]
        assert (len(api.asked), len(pages.asked)) == asked
        monkeypatch.setattr("research_plugin.retriever.web.engine._KEPT_SECONDS", -1.0)
        results.down = {"worse"}
        with pytest.raises(SearchError):
            web.search(["worse"], 3)
        results.down = set()
        assert [len(row) for row in web.search(["worse"], 3)] == [3]


def test_cache_outlives_the_engine_and_holds_no_key(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        return html("Paris is the capital of France.")

    with FakeServer(answer) as pages, FakeServer(Results([f"{pages.url}/paris"])) as api:
        options = {"cache_dir": str(tmp_path), "fetch_pages": True, "allow_private_addresses": True}
        for _ in range(2):
            with engine(api, **options) as web:
                assert texts(web.search(["q"], 3)[0]) == ["Paris is the capital of France."]
        assert (len(api.asked), len(pages.asked)) == (1, 1)
        with engine(api, country="fr", **options) as web:
            web.search(["q"], 3)
        assert (len(api.asked), len(pages.asked)) == (2, 1)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"Paris is the capital" in written
    assert KEY.encode() not in written
