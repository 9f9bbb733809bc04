"""The web engine's pure parts and its cache: pace, request and hits, site filter, addresses, text, settings."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from research_plugin.errors import ConfigError, SearchError
from research_plugin.retriever.engines import make_engine
from research_plugin.retriever.settings import RetrieverConfig, WebSettings
from research_plugin.retriever.web.api import Pace, read_key
from research_plugin.retriever.web.engine import make
from research_plugin.retriever.web.memo import Memo
from research_plugin.retriever.web.pages import is_public
from research_plugin.retriever.web.serper import Hit, on_site, read_hits, request_body
from research_plugin.retriever.web.text import decode, lines, one_line


def test_pace_spaces_requests_and_saves_nothing_up() -> None:
    pace = Pace(4)
    assert [pace.reserve(100.0) for _ in range(4)] == [0.0, 0.25, 0.5, 0.75]
    assert pace.reserve(200.0) == 0.0  # a long pause earns one place, not four hundred
    assert pace.reserve(200.0) == 0.25


def test_pace_holds_when_the_service_asks_for_it() -> None:
    pace = Pace(4)
    pace.reserve(100.0)
    pace.hold(103.0)
    assert [pace.reserve(100.0), pace.reserve(100.0)] == [3.0, 3.25]


def test_pace_without_limit() -> None:
    pace = Pace(math.inf)
    assert [pace.reserve(100.0) for _ in range(3)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "body"),
    [
        ({}, {"q": "who is", "num": 10, "page": 2}),
        ({"site": "en.wikipedia.org"}, {"q": "who is site:en.wikipedia.org", "num": 10, "page": 2}),
        ({"country": "us", "language": "en"}, {"q": "who is", "num": 10, "page": 2, "gl": "us", "hl": "en"}),
    ],
    ids=["plain", "site", "place"],
)
def test_request_body(settings: dict[str, Any], body: dict[str, Any]) -> None:
    assert request_body(" who\n\tis ", 2, WebSettings(**settings)) == body


def test_read_hits_takes_what_has_an_address_and_some_text() -> None:
    organic: list[Any] = [
        {"link": "https://a.org/x#:~:text=part", "title": " A\nB ", "snippet": "s\ud800", "position": 1},
        {"link": "http://b.org", "title": "only a title"},
        {"link": "https://c.org", "snippet": "only a snippet", "title": None},
        {"link": "https://d.org"},
        {"link": "javascript:alert(1)", "title": "t"},
        {"link": "file:///etc/passwd", "title": "t"},
        {"link": "https://[broken", "title": "t"},
        {"link": 7, "title": "t"},
        {"title": "t"},
        "no object",
    ]
    assert read_hits({"organic": organic}) == [
        Hit("https://a.org/x", "A B", "s\ufffd"),
        Hit("http://b.org", "only a title", ""),
        Hit("https://c.org", "", "only a snippet"),
    ]
    assert read_hits({"answerBox": {"answer": "42"}}) == []


@pytest.mark.parametrize("answer", [[], None, "text", {"organic": None}, {"organic": {}}])
def test_read_hits_refuses_another_shape(answer: Any) -> None:
    with pytest.raises(SearchError, match=r"no list 'organic'; is web\.endpoint a Serper-shaped API"):
        read_hits(answer)


@pytest.mark.parametrize(
    ("url", "site", "expected"),
    [
        ("https://anything.org/", None, True),
        ("https://en.wikipedia.org/wiki/A", "en.wikipedia.org", True),
        ("https://EN.Wikipedia.org:443/wiki/A", "en.wikipedia.ORG", True),
        ("https://en.wikipedia.org./wiki/A", "wikipedia.org", True),
        ("https://notwikipedia.org/", "wikipedia.org", False),
        ("https://wikipedia.org.evil.com/", "wikipedia.org", False),
        ("https://wikipedia.org@evil.com/", "wikipedia.org", False),
        ("https://evil.com/wikipedia.org", "wikipedia.org", False),
        ("ftp://wikipedia.org/", "wikipedia.org", False),
    ],
)
def test_on_site(url: str, site: str | None, expected: bool) -> None:
    assert on_site(url, site) is expected


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:4700:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),  # the metadata service of clouds
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", False),
        ("2002:7f00:1::", False),
        ("64:ff9b:1::1", False),
        ("64:ff9b::5db8:d70e", True),
        ("64:ff9b::a01:203", False),
    ],
)
def test_is_public(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("caf\u00e9".encode(), "utf-8", "caf\u00e9"),
        ("caf\u00e9".encode(), None, "caf\u00e9"),
        ("caf\u00e9".encode("latin-1"), "ISO-8859-1", "caf\u00e9"),
        (b"<meta charset='windows-1251'>" + "\u041c\u0438\u0440".encode("cp1251"), None, "\u041c\u0438\u0440"),
        (b'<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS">' + b"\x93\x8c", None, "\u6771"),
        ("caf\u00e9".encode(), "no-such-charset", "caf\u00e9"),
        ("caf\u00e9".encode(), "punycode", "caf\u00e9"),
        ("caf\u00e9".encode(), "zlib", "caf\u00e9"),
        ("caf\u00e9".encode(), "\x00", "caf\u00e9"),
        (b"cut in a character \xe6\x9d", None, "cut in a character \ufffd"),
        (b"\xff\xfe\x00", "utf-8", "\ufffd\ufffd\x00"),
    ],
)
def test_decode(body: bytes, charset: str | None, text: str) -> None:
    assert decode(body, charset).split(">")[-1] == text


def test_text_is_cleaned() -> None:
    assert one_line(" a\n b\u2003c\x00\ud83d ") == "a b c\ufffd\ufffd"
    assert lines("  a  \r\n\r\n\x00b\n \n c\td") == "a\n\ufffdb\nc\td"


class Service:
    """An async answer that counts its calls and fails as told."""

    def __init__(self, fails: bool = False) -> None:
        self.calls, self.fails = 0, fails

    async def __call__(self) -> dict[str, int]:
        self.calls += 1
        await asyncio.sleep(0)
        if self.fails:
            raise SearchError("down")
        return {"call": self.calls}


async def test_memo_asks_once() -> None:
    memo, service = Memo(None, 30), Service()
    together = await asyncio.gather(memo.get(["a", 1], service), memo.get(["a", 1], service))
    assert together == [{"call": 1}, {"call": 1}]
    assert await memo.get(["a", 1], service) == {"call": 1}
    assert await memo.get(["a", 2], service) == {"call": 2}


async def test_memo_shares_a_failure_and_forgets_it() -> None:
    memo, service = Memo(None, 30), Service(fails=True)
    results = await asyncio.gather(*(memo.get("q", service) for _ in range(3)), return_exceptions=True)
    assert [str(result) for result in results] == ["down"] * 3
    assert service.calls == 1
    service.fails = False
    assert await memo.get("q", service) == {"call": 2}


async def test_memo_on_disk_outlives_it_and_ages(tmp_path: Path) -> None:
    service, folder = Service(), str(tmp_path / "new" / "folder")
    first = Memo(folder, 30)
    await first.get("q", service)
    first.close()
    second = Memo(folder, 30)
    assert await second.get("q", service) == {"call": 1}
    with sqlite3.connect(tmp_path / "new" / "folder" / "web.sqlite3") as database:
        database.execute("UPDATE answers SET time = time - 31 * 86400")
    assert await second.get("q", service) == {"call": 2}
    second.close()


async def test_memo_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research_plugin.retriever.web.memo._MOST_IN_MEMORY", 3)
    memo, service = Memo(None, 30), Service()
    for number in range(5):
        await memo.get(number, service)
    for number in (4, 3, 2):
        assert await memo.get(number, service) == {"call": number + 1}
    assert await memo.get(1, service) == {"call": 6}


async def test_memo_goes_on_in_memory_when_its_file_breaks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memo, service = Memo(str(tmp_path), 30), Service()
    await memo.get("q", service)
    with sqlite3.connect(tmp_path / "web.sqlite3") as database:
        database.execute("DROP TABLE answers")
    with caplog.at_level(logging.WARNING):
        assert await memo.get("q", service) == {"call": 2}
        assert await memo.get("q", service) == {"call": 2}
    assert [record.message for record in caplog.records if "web.sqlite3 is not used any more" in record.message]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"endpoint": "google.serper.dev"}, r"web\.endpoint: got 'google\.serper\.dev'; an http\(s\) URL"),
        ({"endpoint": "https://user:pass@host/"}, r"web\.endpoint: .*without user name"),
        ({"endpoint": "https://[broken"}, r"web\.endpoint: got"),
        ({"site": "https://en.wikipedia.org/wiki"}, r"web\.site: got .*a host name is allowed"),
        ({"site": "a b.org"}, r"web\.site: got"),
        ({"user_agent": "caf\u00e9"}, r"web\.user_agent: got .*printable ASCII"),
        ({"summarize_url": "http://h/v1", "summarize_model": "m"}, r"web\.fetch_pages is off"),
        ({"summarize_url": "http://h/v1", "fetch_pages": True}, r"web\.summarize_model: not set"),
        ({"site": "x", "endpoint": "y"}, r"web\.endpoint: .*; web\.site: "),
    ],
)
def test_make_refuses_settings(settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "key")
    with pytest.raises(ConfigError, match=message):
        make(RetrieverConfig(engine="web", web=WebSettings(**settings)))


@pytest.mark.parametrize("value", ["", " \n", "two\nlines", "sch\u00fcssel"])
def test_key_must_be_usable_and_is_not_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", value)
    with pytest.raises(ConfigError, match=r"web\.key_env: .*'SERPER_API_KEY'") as caught:
        make(RetrieverConfig(engine="web"))
    assert not value.strip() or value.strip() not in str(caught.value)
    monkeypatch.setenv("SERPER_API_KEY", " key \n")
    assert read_key("web.key_env", "SERPER_API_KEY") == "key"


def test_make_refuses_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "key")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"web\.cache_dir: .*web\.sqlite3 cannot be used: .*; name a writable folder"):
        make(RetrieverConfig(engine="web", web=WebSettings(cache_dir=str(tmp_path / "file"))))


def test_missing_page_reader_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "key")
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    with pytest.raises(
        ConfigError, match=r"trafilatura is not installed; pip install 'research-plugin\[retriever-web\]'"
    ):
        make_engine(RetrieverConfig(engine="web", web=WebSettings(fetch_pages=True)))
