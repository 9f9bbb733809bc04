"""Fetches pages whose addresses come from outside: from a search engine, and from redirects of those pages.

A page may not lead this server to itself or into its network. Every hop's host is resolved here, every address checked,
and the connection goes to an address that was checked, so that a second look-up cannot give another one.
"""

from __future__ import annotations

import asyncio
import http.cookiejar
import ipaddress
import socket
import zlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from research_plugin.errors import SearchError
from research_plugin.retriever.settings import WebSettings
from research_plugin.retriever.web.memo import Memo
from research_plugin.retriever.web.serper import on_site
from research_plugin.retriever.web.text import decode, lines, page_text

if TYPE_CHECKING:
    import httpx

_MOST_BYTES = 2**20
_MOST_CHARS = 100_000
_MOST_REDIRECTS = 5
_HTML = ("text/html", "application/xhtml+xml")
_PLAIN = "text/plain"
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")


class PageError(SearchError):
    """A page cannot be read: no such host, a private address, an error status, not HTML or plain text."""


class Pages:
    """Reads the text of pages; keeps what it read in ``memo``."""

    def __init__(self, memo: Memo, settings: WebSettings) -> None:
        import httpx

        self._memo, self._settings = memo, settings
        self._slots = asyncio.Semaphore(settings.max_concurrency)
        # One thread: extraction is Python code, and more of it would only keep the server from answering.
        self._extraction = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pages")
        self._http = httpx.AsyncClient(
            headers={"User-Agent": settings.user_agent, "Accept-Encoding": "gzip, deflate"},
            # A proxy resolves names by itself, so it is used only where addresses need no check.
            trust_env=settings.allow_private_addresses,
            timeout=httpx.Timeout(settings.timeout, pool=None),
            # No connection is kept: it belongs to an address, and another host at that address is another server.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            # No cookies: they would be kept by address, too.
            cookies=http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[])),
        )

    async def text(self, url: str) -> str:
        """Return the page's text, at most 100,000 characters from at most 1 MiB of it.

        Raises:
            PageError: there is none to be had.
        """

        async def read() -> str:
            try:
                async with self._slots:
                    body, kind, charset = await asyncio.wait_for(self._fetch(url), self._settings.timeout)
                return await self._extract(body, kind, charset)
            except PageError:
                raise
            except Exception as error:
                # Network, TLS, URLs, encodings, HTML: a page must never cost more than itself.
                raise PageError(f"{type(error).__name__} {error}".strip()) from error

        return str(await self._memo.get(["page", url, self._settings.user_agent], read))

    async def aclose(self) -> None:
        await self._http.aclose()
        self._extraction.shutdown(wait=False, cancel_futures=True)

    async def _extract(self, body: bytes, kind: str, charset: str | None) -> str:
        def extract() -> str:
            text = decode(body, charset)
            return (lines(text) if kind == _PLAIN else page_text(text))[:_MOST_CHARS]

        text = await asyncio.get_running_loop().run_in_executor(self._extraction, extract)
        if not text:
            raise PageError("it holds no text")
        return text

    async def _fetch(self, address: str) -> tuple[bytes, str, str | None]:
        """Return body, content type and charset, after redirects."""
        import httpx

        url = httpx.URL(address)
        for _ in range(_MOST_REDIRECTS + 1):
            async with self._open(url) as response:
                if response.has_redirect_location:
                    url = url.join(response.headers["location"])
                    continue
                if response.status_code != 200:
                    raise PageError(f"HTTP {response.status_code}")
                kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
                if kind not in (*_HTML, _PLAIN):
                    raise PageError(f"content type {kind or 'not given'}; HTML and plain text are read")
                return await _read(response), kind, response.charset_encoding
        raise PageError(f"more than {_MOST_REDIRECTS} redirects")

    @asynccontextmanager
    async def _open(self, url: httpx.URL) -> AsyncIterator[httpx.Response]:
        if url.scheme not in ("http", "https") or not url.host:
            raise PageError(f"{url} is no http(s) address")
        if not on_site(str(url), self._settings.site):
            raise PageError(f"leads to {url.host}, away from web.site={self._settings.site}")
        if self._settings.allow_private_addresses:
            request = self._http.build_request("GET", url)
        else:
            request = self._http.build_request(
                "GET",
                url.copy_with(host=await _public_address(url)),
                headers={"Host": url.netloc.decode("ascii")},
                extensions={"sni_hostname": url.raw_host.decode("ascii")},  # the certificate must be the host's
            )
        response = await self._http.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


def is_public(address: str) -> bool:
    """Tell whether an IP address belongs to the public Internet."""
    ip = ipaddress.ip_address(address.split("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:  # what an IPv6-only network calls every IPv4 address
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip in _LOCAL_NAT64 or ip.ipv4_mapped or ip.sixtofour or ip.teredo:
            return False
    return ip.is_global and not ip.is_multicast


async def _public_address(url: httpx.URL) -> str:
    port = url.port or (443 if url.scheme == "https" else 80)
    host = url.raw_host.decode("ascii").strip("[]")
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    for address in addresses:
        if not is_public(address):
            raise PageError(f"{url.host} is {address}, no public address (web.allow_private_addresses)")
    return addresses[0]


async def _read(response: httpx.Response) -> bytes:
    """Return at most 1 MiB, unpacked step by step: a small gzip file can hold gigabytes."""
    packing = response.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("identity", "gzip", "x-gzip", "deflate"):
        raise PageError(f"content encoding {packing}; gzip and deflate are read")
    unpack = None if packing == "identity" else zlib.decompressobj(32 + zlib.MAX_WBITS)
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk if unpack is None else unpack.decompress(chunk, _MOST_BYTES - len(body))
        if len(body) >= _MOST_BYTES:
            break
    return bytes(body[:_MOST_BYTES])
