"""The engine: a query to hits, hits to pages, pages to summaries - each step optional after the first."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from research_plugin.document import Document
from research_plugin.errors import ConfigError, SearchError
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.settings import RetrieverConfig, WebSettings
from research_plugin.retriever.web.api import Api, Pace, read_key
from research_plugin.retriever.web.memo import Memo
from research_plugin.retriever.web.pages import PageError, Pages
from research_plugin.retriever.web.serper import Hit, Serper
from research_plugin.retriever.web.summary import Summarizer
from research_plugin.retriever.web.text import lines

_log = logging.getLogger(__name__)
_KEPT_SECONDS = 5.0
_SITE = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+", re.IGNORECASE)


def make(config: RetrieverConfig) -> WebEngine:
    """Check the settings and read the keys from the environment; sends nothing.

    Raises:
        ConfigError: a setting is missing or wrong, a key is unset, or the cache folder cannot be written.
        ImportError: pages are to be fetched and trafilatura is not installed.
    """
    faults = list(_faults(config.web))
    if faults:
        raise ConfigError("; ".join(faults))
    if config.web.fetch_pages:
        import trafilatura  # noqa: F401  (now, not at the first page)
    return WebEngine(config.web)


class _Kept(NamedTuple):
    """How a query of a failed batch ended, until when that is kept, and for which topk."""

    until: float
    topk: int
    answer: asyncio.Future[list[Document]]


class WebEngine:
    """An `Engine` over the web. ``id`` is the page's URL, ``score`` 1 / rank: the search engine gives no figure.

    A batch runs at once, in an event loop that lives in here and runs only during `search`.
    """

    name, size = "web", None

    def __init__(self, settings: WebSettings) -> None:
        # httpx logs every request at INFO.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._settings = settings
        self._kept: dict[str, _Kept] = {}
        key = read_key("web.key_env", settings.key_env)
        self._memo = memo = Memo(settings.cache_dir, settings.cache_days)
        pace = Pace(settings.requests_per_second)
        self._api = Api(settings.endpoint, ("X-API-KEY", ""), key, settings.key_env, settings, pace)
        self._serper = Serper(self._api, memo, settings)
        self._pages = Pages(memo, settings) if settings.fetch_pages else None
        self._summarizer = Summarizer(memo, settings) if settings.summarize_url else None
        self._loop = asyncio.new_event_loop()  # last: what fails above leaves none open

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        """Return the documents of every query: "title\\ntext", where the text is summary, page or snippet.

        A page that cannot be read, or that the model finds nothing in, leaves its snippet; a page that the model gives
        no answer about is taken as it is. All are cut to ``page_chars``.

        Raises:
            SearchError: a search failed for good. How each query ended is kept for 5 seconds: the batcher calls again
                with the halves of a batch that failed, and no request is to be sent, paid or waited for twice.
        """
        with stages("web"):
            return self._loop.run_until_complete(self._all(queries, topk))

    def close(self) -> None:
        self._loop.run_until_complete(self._aclose())
        self._loop.close()
        self._memo.close()

    async def _all(self, queries: list[str], topk: int) -> list[list[Document]]:
        now = time.monotonic()
        self._kept = {query: kept for query, kept in self._kept.items() if kept.until > now}
        answers = [self._known(query, topk) or asyncio.ensure_future(self._answer(query, topk)) for query in queries]
        await asyncio.gather(*answers, return_exceptions=True)
        if any(answer.exception() for answer in answers):
            until = time.monotonic() + _KEPT_SECONDS
            for query, answer in zip(queries, answers, strict=True):
                if self._known(query, topk) is None:
                    self._kept[query] = _Kept(until, topk, answer)
        return [answer.result()[:topk] for answer in answers]

    def _known(self, query: str, topk: int) -> asyncio.Future[list[Document]] | None:
        kept = self._kept.get(query)
        return kept.answer if kept is not None and kept.topk >= topk else None

    async def _answer(self, query: str, topk: int) -> list[Document]:
        hits = await self._serper.find(query, topk)
        texts = await asyncio.gather(*(self._text(query, hit) for hit in hits))
        return [
            Document(hit.url, f"{hit.title or hit.url}\n{text[: self._settings.page_chars]}", 1 / rank)
            for rank, (hit, text) in enumerate(zip(hits, texts, strict=True), start=1)
        ]

    async def _text(self, query: str, hit: Hit) -> str:
        if self._pages is None:
            return hit.snippet
        try:
            text = await self._pages.text(hit.url)
        except PageError as error:
            _log.info("%s: %s; its snippet stands for it", hit.url, error)
            return hit.snippet
        if self._summarizer is not None:
            try:
                summary = await self._summarizer.summarize(query, text)
                text = hit.snippet if summary is None else lines(summary)
            except SearchError as error:
                _log.warning("%s: no summary, its text stands for it: %s", hit.url, error)
        return text

    async def _aclose(self) -> None:
        await self._api.aclose()
        if self._pages is not None:
            await self._pages.aclose()
        if self._summarizer is not None:
            await self._summarizer.aclose()


def _faults(web: WebSettings) -> Iterator[str]:
    for key in ("endpoint", "summarize_url"):
        url = getattr(web, key)
        if url is not None and not _is_url(url):
            yield f"web.{key}: got {url!r}; an http(s) URL without user name or password is allowed"
    if web.site is not None and not _SITE.fullmatch(web.site):
        yield f"web.site: got {web.site!r}; a host name is allowed, such as en.wikipedia.org"
    if not (web.user_agent.isascii() and web.user_agent.isprintable()):
        yield f"web.user_agent: got {web.user_agent!r}; printable ASCII is allowed"
    if web.summarize_url and not web.fetch_pages:
        yield "web.summarize_url is set, but web.fetch_pages is off: there is no page to summarise; set it, too"
    if web.summarize_url and not web.summarize_model:
        yield "web.summarize_model: not set; name the model that web.summarize_url serves"


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
