"""Batches over HTTP: pooled connections, replicas, and the only place in the package that retries."""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from research_plugin.document import Document
from research_plugin.errors import ConfigError, SearchError
from research_plugin.search.apis import APIS
from research_plugin.search.settings import EMBEDDED, SearchConfig, is_loopback
from research_plugin.search.transport import Rejected, SearchStats

if TYPE_CHECKING:
    import httpx

# Besides 5xx. 404 and 408 come from what stands in front of a retriever, such as Ray Serve's proxy: the application is
# being replaced, a replica hangs. A wrong path answers 404, too, and is found at start (`check`).
_PASSING = (404, 408, 429)
_SPLITTABLE = (400, 413, 422)
_LONGEST_RETRY_AFTER = 60.0
_POISON_TRIES = 2


class _Transient(Exception):
    """A failure that may pass: the cause in words, and the pause the server asked for."""

    def __init__(self, cause: str, retry_after: float = 0.0, status: int | None = None) -> None:
        super().__init__(cause)
        self.cause, self.retry_after, self.status = cause, retry_after, status


@dataclass(eq=False)
class _Endpoint:
    url: str
    http: httpx.AsyncClient
    outstanding: int = 0
    sick: bool = False
    sick_until: float = 0.0

    def usable(self, now: float) -> bool:
        """A sick replica gets one request at a time after its cool-down, until one succeeds."""
        return not self.sick or (now >= self.sick_until and self.outstanding == 0)


class HttpTransport:
    """A `Transport` over one or more retriever servers, for one event loop.

    Args:
        settings: an "http" configuration.
        stats: requests and retries are counted here.
        mock: an httpx transport to use instead of the network.

    Raises:
        ConfigError: ``token_env`` names an unset variable, or the URL is still `EMBEDDED`.
    """

    def __init__(
        self, settings: SearchConfig, stats: SearchStats, mock: httpx.AsyncBaseTransport | None = None
    ) -> None:
        if EMBEDDED in settings.endpoints:
            raise ConfigError("search.url=embedded: only a recipe's preflight starts a retriever; give the URL of one")
        self._settings, self._stats = settings, stats
        self._api = APIS[settings.api]
        headers = bearer_headers(settings)
        self._endpoints = [_Endpoint(url, _open(url, settings, headers, mock)) for url in settings.endpoints]

    async def fetch(self, queries: list[str], topk: int) -> list[list[Document]]:
        """Answer a batch (see `Transport`), on another replica at each try where there is one."""
        started = time.monotonic()
        server_errors = 0
        for tried in range(1, self._settings.retries + 2):
            endpoint = self._pick()
            try:
                rows = await self._post(endpoint, queries, topk)
            except _Transient as failure:
                self._mark_sick(endpoint, failure.retry_after)
                server_errors += failure.status == 500
                if len(queries) > 1 and server_errors >= _POISON_TRIES:
                    # Published servers answer 500 to a query they cannot take; the client then splits the batch.
                    raise Rejected(self._message(endpoint, tried, started, failure.cause)) from failure
                if tried > self._settings.retries:
                    raise SearchError(self._message(endpoint, tried, started, failure.cause)) from failure
                await self._pause(tried, failure.retry_after)
                self._stats.retries += 1
            else:
                endpoint.sick = False
                return rows
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        """Close every connection."""
        for endpoint in self._endpoints:
            await endpoint.http.aclose()

    async def _post(self, endpoint: _Endpoint, queries: list[str], topk: int) -> list[list[Document]]:
        import httpx

        self._stats.requests += 1
        endpoint.outstanding += 1
        try:
            response = await endpoint.http.post(self._api.path, json=self._api.body(queries, topk))
        except httpx.TransportError as error:
            raise _Transient(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error
        finally:
            endpoint.outstanding -= 1
        return self._read(endpoint, response, len(queries), topk)

    def _read(self, endpoint: _Endpoint, response: httpx.Response, queries: int, topk: int) -> list[list[Document]]:
        status = response.status_code
        if status == 200:
            try:
                return self._api.parse(response.json(), queries, topk)
            except (ValueError, RecursionError) as error:
                cause = f"HTTP 200 but no {self._settings.api} answer ({error}): {_excerpt(response)}"
                raise _Transient(cause) from error
        cause = f"HTTP {status}: {_excerpt(response)}"
        if status in _PASSING or status >= 500:
            raise _Transient(cause, _retry_after(response), status)
        # The server is up, whatever it thinks of this request.
        endpoint.sick = False
        kind = Rejected if status in _SPLITTABLE else SearchError
        raise kind(f"search at {endpoint.url}{self._api.path} was refused, not retried: {cause}")

    def _pick(self) -> _Endpoint:
        """Return the well replica with the fewest requests out, or, if all are sick, the one sick for longest."""
        now = time.monotonic()
        usable = [endpoint for endpoint in self._endpoints if endpoint.usable(now)]
        if not usable:
            return min(self._endpoints, key=lambda endpoint: endpoint.sick_until)
        fewest = min(endpoint.outstanding for endpoint in usable)
        return random.choice([endpoint for endpoint in usable if endpoint.outstanding == fewest])

    def _mark_sick(self, endpoint: _Endpoint, retry_after: float) -> None:
        endpoint.sick = True
        endpoint.sick_until = time.monotonic() + (retry_after or self._settings.cooldown)

    async def _pause(self, tried: int, retry_after: float) -> None:
        """Wait before the next try, unless another replica can take it at once."""
        now = time.monotonic()
        if any(endpoint.usable(now) for endpoint in self._endpoints):
            return
        longest = min(self._settings.backoff_max, self._settings.backoff * 2 ** min(tried - 1, 30))
        await asyncio.sleep(max(longest * random.uniform(0.5, 1.0), retry_after))

    def _message(self, endpoint: _Endpoint, tried: int, started: float, cause: str) -> str:
        others = f" (and {len(self._endpoints) - 1} more)" if len(self._endpoints) > 1 else ""
        spent = time.monotonic() - started
        tries = "1 try" if tried == 1 else f"{tried} tries"
        where = f"{endpoint.url}{self._api.path}{others}"
        return f"search at {where} failed after {tries} in {spent:.1f} s; last cause: {cause}. Is the retriever up?"


def bearer_headers(settings: SearchConfig) -> dict[str, str]:
    """Return the Authorization header that ``token_env`` asks for; raises ConfigError if the variable is unset."""
    if settings.token_env is None:
        return {}
    token = os.environ.get(settings.token_env, "")
    if not token:
        raise ConfigError(f"search.token_env: environment variable {settings.token_env!r} is unset; export it first")
    return {"Authorization": f"Bearer {token}"}


def _open(
    url: str, settings: SearchConfig, headers: dict[str, str], mock: httpx.AsyncBaseTransport | None
) -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(
        base_url=url,
        headers=headers,
        transport=mock,
        # A proxy named in the environment cannot reach this machine's own loopback.
        trust_env=not is_loopback(url),
        # pool=None: waiting for a free connection is our own queue, not the server's fault.
        timeout=httpx.Timeout(settings.read_timeout, connect=settings.connect_timeout, pool=None),
        # uvicorn closes idle connections after 5 s by default; expire ours sooner than that.
        limits=httpx.Limits(
            max_connections=settings.max_concurrency,
            max_keepalive_connections=settings.max_concurrency,
            keepalive_expiry=4.0,
        ),
    )


def _retry_after(response: httpx.Response) -> float:
    """Seconds from a Retry-After header in either of its forms (RFC 9110, 10.2.3); 0 if absent or unreadable."""
    value = response.headers.get("retry-after", "")
    try:
        seconds = float(value) if value.strip().isdigit() else parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError):
        return 0.0
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER)


def _excerpt(response: httpx.Response) -> str:
    return " ".join(response.text[:1000].split())[:200] or "empty body"
