"""What a recipe can set about search. Plain types only, so that OmegaConf's structured configs take it as it is."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from research_plugin.errors import ConfigError

EMBEDDED = "embedded"
"""As ``url``: the recipe's preflight starts a server over ``corpus`` and puts its URL here."""
ENGINES = ("http", "in_process")
APIS = ("batch_search", "retrieve", "queries")
_PLACEHOLDER = re.compile(
    r"[<>{}$]|\?\?\?|\byour\b|your[-_.]|place-?holder|change-?me|\btodo\b|\bexample\.(com|org|net)\b|^https?://(host|hostname|ip|x+)(:|/|$)"
)
_AT_LEAST = {
    "topk": 1,
    "connect_timeout": 0.001,
    "read_timeout": 0.001,
    "retries": 0,
    "backoff": 0,
    "backoff_max": 0,
    "cooldown": 0,
    "max_concurrency": 1,
    "batch_size": 1,
    "max_query_chars": 1,
    "cache_size": 0,
}
_SECONDS = ("connect_timeout", "read_timeout", "backoff", "backoff_max", "cooldown")


@dataclass
class SearchConfig:
    """Settings of one `SearchClient`; checked when made, all faults reported together.

    Raises:
        ConfigError: a value is missing, a placeholder, of the wrong type or out of range; names the key.
    """

    engine: str = "http"
    """"http": a retriever server at `url`/`urls`; "in_process": BM25 over `corpus` in a thread of this process."""
    url: str | None = None
    """Base URL of the retriever, without a route: http://127.0.0.1:8000; or `EMBEDDED`."""
    urls: list[str] = field(default_factory=list)
    """Several replicas instead of `url`: balanced by outstanding requests, skipped while sick."""
    corpus: str | None = None
    """JSONL corpus for "in_process" and url "embedded"."""
    api: str = "batch_search"
    """The server's route: batch_search (ReSearch), retrieve (Search-R1), queries (R1-Searcher)."""
    topk: int = 5
    """Documents per query."""
    expects: str | None = None
    """Retriever recipe (a name in recipes/retriever/ or a YAML file) that the servers must match; None: any will do."""
    connect_timeout: float = 5.0
    """Seconds to wait for a connection."""
    read_timeout: float = 60.0
    """Seconds to wait for an answer once connected."""
    retries: int = 5
    """Tries after the first one, before `SearchError`."""
    backoff: float = 0.5
    """Seconds before the first retry when no other replica is well; doubled each time, with jitter."""
    backoff_max: float = 10.0
    """Longest such pause; a server's Retry-After may ask for more, up to 60 s."""
    cooldown: float = 5.0
    """Seconds for which a replica that failed is skipped."""
    max_concurrency: int = 16
    """Requests in flight; further queries wait and then travel together, so a higher number rarely helps (and httpcore
    1.0 walks its whole pool for each idle connection at each request's end)."""
    batch_size: int = 256
    """Most queries in one request."""
    max_query_chars: int = 16384
    """A longer query is cut here: what a policy writes must not become a refused request."""
    cache_size: int = 10000
    """Queries whose results are kept in memory (least recently used out first); 0: none."""
    cache_dir: str | None = None
    """Folder for an on-disk cache that outlives the run and is shared by processes (not on NFS); None: off."""
    token_env: str | None = None
    """Name of the environment variable that holds the server's bearer token."""

    def __post_init__(self) -> None:
        faults = [*_range_faults(self), *_choice_faults(self)]
        if self.engine == "http" and not faults:
            faults = self._url_faults()
        if self.engine == "in_process" and not self.corpus:
            faults.append(f"search.corpus: got {self.corpus!r}; engine in_process needs a JSONL file")
        if faults:
            raise ConfigError("; ".join(faults))

    @property
    def endpoints(self) -> list[str]:
        """Base URLs without a trailing slash; empty for "in_process"."""
        if self.engine != "http":
            return []
        return [url.strip().rstrip("/") for url in self.urls or [self.url or ""]]

    def _url_faults(self) -> list[str]:
        if self.url and self.urls:
            return ["search.url and search.urls are both set; set one of them"]
        if self.urls:
            return [fault for url in self.urls if (fault := _url_fault("search.urls", url))]
        if self.url == EMBEDDED:
            return [] if self.corpus else ["search.url=embedded needs search.corpus, a JSONL file"]
        fault = _url_fault("search.url", self.url)
        return [fault] if fault else []


def is_loopback(url: str) -> bool:
    """Tell whether the URL's host is this machine by name or address (no look-up); `EMBEDDED` is."""
    if url == EMBEDDED:
        return True
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _range_faults(settings: SearchConfig) -> list[str]:
    faults = []
    for key, least in _AT_LEAST.items():
        value = getattr(settings, key)
        kinds, name = ((int, float), "a number") if key in _SECONDS else ((int,), "an integer")
        if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
            faults.append(f"search.{key}: got {value!r}; must be {name}, at least {least}")
    return faults


def _choice_faults(settings: SearchConfig) -> list[str]:
    faults = []
    for key, allowed in (("engine", ENGINES), ("api", APIS)):
        value = getattr(settings, key)
        if value not in allowed:
            faults.append(f"search.{key}: got {value!r}; allowed: {', '.join(allowed)}")
    return faults


def _url_fault(key: str, url: object) -> str | None:
    allowed = "set it to the retriever's base URL, such as http://127.0.0.1:8000"
    if not isinstance(url, str) or not url.strip():
        return f"{key}: not set (got {url!r}); {allowed}"
    if _PLACEHOLDER.search(url.strip().lower()):
        return f"{key}: {url!r} is a placeholder; {allowed}"
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{key}: {url!r} is not a URL ({error}); {allowed}"
    if parts.username is not None or parts.password is not None:
        return f"{key}: holds a user name or password; put a token into an environment variable (search.token_env)"
    if parts.scheme not in ("http", "https") or not host:
        return f"{key}: {url!r} is not an http(s) URL; {allowed}"
    if parts.query or parts.fragment:
        return f"{key}: {url!r} has a query or fragment; {allowed}"
    route = parts.path.rstrip("/").rsplit("/", 1)[-1]
    if route in (*APIS, "search"):
        return f"{key}: {url!r} names a route; leave /{route} out and set search.api ({', '.join(APIS)})"
    return None
