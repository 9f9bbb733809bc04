"""What a recipe may write under ``search``."""

from __future__ import annotations

import pytest

from research_plugin.errors import ConfigError
from research_plugin.search.settings import SearchConfig, is_loopback


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "  ",
        "???",
        "<url>",
        "http://your-retriever:8000",
        "http://your.server:8000",
        "http://host:8000",
        "http://${RETRIEVER}:8000",
        "http://retriever.example.com",
        "http://xxx:8000",
        "CHANGE_ME",
        "placeholder",
    ],
)
def test_settings_unset_or_placeholder_url_is_refused(url: str | None) -> None:
    with pytest.raises(ConfigError, match=r"search\.url: ") as caught:
        SearchConfig(url=url)
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", "not an http"),
        ("ftp://a:1", "not an http"),
        ("http://", "not an http"),
        ("http://a:99999", "not a URL"),
        ("http://a:1/?q=1", "query or fragment"),
        ("http://a:8000/retrieve", "leave /retrieve out and set search.api"),
        ("http://a:8000/search/", "leave /search out"),
    ],
)
def test_settings_malformed_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SearchConfig(url=url)


def test_settings_never_show_a_password() -> None:
    with pytest.raises(ConfigError, match="token_env") as caught:
        SearchConfig(url="http://me:s3cret@a:1")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("https://ip-10-0-0-1.internal/base", "https://ip-10-0-0-1.internal/base"),
        ("http://host-12:8000", "http://host-12:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_settings_good_url(url: str, endpoint: str) -> None:
    assert SearchConfig(url=url).endpoints == [endpoint]


def test_settings_several_urls() -> None:
    assert SearchConfig(urls=["http://a:1", "http://b:2/"]).endpoints == ["http://a:1", "http://b:2"]
    with pytest.raises(ConfigError, match=r"search\.urls: '\?\?\?' is a placeholder"):
        SearchConfig(urls=["http://a:1", "???"])
    with pytest.raises(ConfigError, match="both set"):
        SearchConfig(url="http://a:1", urls=["http://b:2"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "grpc"}, r"search\.engine: got 'grpc'; allowed: http, in_process"),
        ({"api": "search"}, r"search\.api: got 'search'; allowed: batch_search, retrieve, queries"),
        ({"topk": 0}, r"search\.topk: got 0; must be an integer, at least 1"),
        ({"topk": True}, r"search\.topk: got True"),
        ({"topk": "5"}, r"search\.topk: got '5'"),
        ({"topk": 2.5}, r"search\.topk: got 2\.5"),
        ({"retries": -1}, r"search\.retries: got -1; .* at least 0"),
        ({"connect_timeout": 0}, r"search\.connect_timeout: got 0"),
        ({"read_timeout": None}, r"search\.read_timeout: got None; must be a number"),
        ({"read_timeout": float("nan")}, r"search\.read_timeout: got nan"),
        ({"max_concurrency": 0}, r"search\.max_concurrency"),
        ({"batch_size": 0}, r"search\.batch_size"),
    ],
)
def test_settings_out_of_range(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SearchConfig(url="http://a:1", **changes)  # type: ignore[arg-type]


def test_settings_report_all_faults_at_once() -> None:
    with pytest.raises(ConfigError, match=r"search\.topk.*search\.engine"):
        SearchConfig(engine="x", topk=0)


def test_settings_in_process_needs_a_corpus_and_no_url() -> None:
    assert SearchConfig(engine="in_process", corpus="c.jsonl").endpoints == []
    with pytest.raises(ConfigError, match=r"search\.corpus: got None"):
        SearchConfig(engine="in_process")


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://localhost:1", True),
        ("http://127.0.0.5", True),
        ("http://[::1]:1", True),
        ("http://a.localhost", True),
        ("http://10.0.0.1", False),
        ("http://localhost.org", False),
    ],
)
def test_is_loopback(url: str, loopback: bool) -> None:
    assert is_loopback(url) is loopback


def test_settings_fit_a_structured_config() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    schema = omegaconf.OmegaConf.structured(SearchConfig)
    made = omegaconf.OmegaConf.to_object(omegaconf.OmegaConf.merge(schema, {"urls": ["http://a:1"], "topk": 3}))
    assert made == SearchConfig(urls=["http://a:1"], topk=3)
    with pytest.raises(omegaconf.errors.ConfigKeyError):
        omegaconf.OmegaConf.merge(schema, {"read_timout": 3})


def test_settings_embedded_url_is_the_preflights_to_replace() -> None:
    httpx = pytest.importorskip("httpx")
    from research_plugin.search.http import HttpTransport
    from research_plugin.search.transport import SearchStats

    with pytest.raises(ConfigError, match=r"search\.url=embedded needs search\.corpus"):
        SearchConfig(url="embedded")
    with pytest.raises(ConfigError, match=r"search\.urls: 'embedded' is not"):
        SearchConfig(urls=["embedded"], corpus="corpus.jsonl")
    settings = SearchConfig(url="embedded", corpus="corpus.jsonl")
    assert is_loopback(settings.endpoints[0])
    with pytest.raises(ConfigError, match="only a recipe's preflight starts a retriever"):
        HttpTransport(settings, SearchStats(), httpx.MockTransport(lambda request: httpx.Response(200)))
