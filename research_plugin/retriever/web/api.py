"""A service that takes JSON by POST: its key, its pace, its retries. It knows neither searches nor summaries."""

from __future__ import annotations

import asyncio
import os
import random
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from research_plugin.errors import ConfigError, SearchError
from research_plugin.retriever.settings import WebSettings

if TYPE_CHECKING:
    import httpx

_BACKOFF, _LONGEST_BACKOFF = 0.5, 10.0
_LONGEST_RETRY_AFTER = 60.0
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class _Transient(Exception):
    """A failure that may pass, and the pause in seconds that the service asked for."""

    def __init__(self, cause: str, retry_after: float = 0.0) -> None:
        super().__init__(cause)
        self.retry_after = retry_after


class Pace:
    """Spaces requests evenly: a token bucket that holds one token, so that no second sees more than its share.

    Args:
        per_second: requests a second; ``math.inf`` for no limit.
    """

    def __init__(self, per_second: float) -> None:
        self._gap, self._free = 1 / per_second, 0.0

    def reserve(self, now: float) -> float:
        """Take the next free place in time; return the seconds from ``now`` until then."""
        start = max(now, self._free)
        self._free = start + self._gap
        return start - now

    def hold(self, until: float) -> None:
        """Give no place before ``until``: the service has said that it is too much."""
        self._free = max(self._free, until)


def read_key(setting: str, name: str) -> str:
    """Return the key that an environment variable holds; no message ever shows it.

    Raises:
        ConfigError: the variable is unset, empty, or holds what no HTTP header can carry.
    """
    key = os.environ.get(name, "").strip()
    if not key:
        raise ConfigError(f"{setting}: environment variable {name!r} is unset or empty; export the key first")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{setting}: the value of environment variable {name!r} is no key: not printable ASCII")
    return key


class Api:
    """POSTs JSON to one URL.

    Args:
        url: where to.
        header: name of the header that carries the key, and what stands before it there.
        key, key_env: the key and the environment variable it came from, for messages; None: the service wants none.
        settings: timeout, retries, concurrency.
        pace: shared by all requests, tries after a first one included.
    """

    def __init__(
        self, url: str, header: tuple[str, str], key: str | None, key_env: str | None, settings: WebSettings, pace: Pace
    ) -> None:
        import httpx

        self._url, self._key, self._key_env = url, key, key_env
        self._settings, self._pace = settings, pace
        self._slots = asyncio.Semaphore(settings.max_concurrency)
        name, prefix = header
        self._http = httpx.AsyncClient(
            headers={name: prefix + key} if key is not None else {},
            # A proxy named in the environment cannot reach this machine's own loopback.
            trust_env=urlsplit(url).hostname not in _LOOPBACK,
            timeout=httpx.Timeout(settings.timeout, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=settings.max_concurrency),
        )

    async def post(self, body: dict[str, Any]) -> Any:
        """Return the JSON of the answer.

        Raises:
            SearchError: refused, no JSON, or no answer after all retries.
        """
        started = time.monotonic()
        tried = 0
        while True:
            tried += 1
            await asyncio.sleep(self._pace.reserve(time.monotonic()))
            try:
                return await self._once(body)
            except _Transient as failure:
                pause = failure.retry_after
                if tried > self._settings.retries or pause > _LONGEST_RETRY_AFTER:
                    spent = f"{tried} {'try' if tried == 1 else 'tries'} in {time.monotonic() - started:.1f} s"
                    raise SearchError(f"{self._url} gave no answer after {spent}; last cause: {failure}") from failure
            self._pace.hold(time.monotonic() + pause)
            longest = min(_LONGEST_BACKOFF, _BACKOFF * 2 ** min(tried - 1, 30))
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _once(self, body: dict[str, Any]) -> Any:
        import httpx

        try:
            async with self._slots:
                # httpx limits the silence between two chunks; this limits the whole.
                response = await asyncio.wait_for(self._http.post(self._url, json=body), self._settings.timeout)
        except (httpx.HTTPError, asyncio.TimeoutError) as error:
            raise _Transient(f"{type(error).__name__} {error}".strip()) from error
        if response.status_code == 200:
            try:
                return response.json()
            except (ValueError, RecursionError) as error:
                raise SearchError(f"{self._url} answered without JSON: {self._excerpt(response)}") from error
        status, cause = response.status_code, f"HTTP {response.status_code}: {self._excerpt(response)}"
        if status in (408, 429) or status >= 500:
            raise _Transient(cause, _retry_after(response))
        if status in (401, 403):
            key = "it asks for a key" if self._key_env is None else f"check the key in {self._key_env}"
            raise SearchError(f"{self._url} refused this server, not retried; {key}: {cause}")
        raise SearchError(f"{self._url} refused the request, not retried: {cause}")

    def _excerpt(self, response: httpx.Response) -> str:
        """The start of the body for a message. A service may echo the key that it was sent."""
        text = " ".join(response.text[:1000].split())
        return (text.replace(self._key, "***") if self._key else text)[:200] or "empty body"


def _retry_after(response: httpx.Response) -> float:
    """Seconds from a Retry-After header in either of its forms (RFC 9110, 10.2.3); 0 if absent or unreadable."""
    value = response.headers.get("retry-after", "").strip()
    try:
        return max(0.0, float(value) if value.isdigit() else parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
