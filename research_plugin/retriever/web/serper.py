"""Google search through a Serper-shaped API (serper.dev): what is asked, what is read, which hits count.

Only the organic hits are documents, as in R1-Searcher's online evaluation: an answer box has no page of its own.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any
from urllib.parse import urldefrag, urlsplit

from research_plugin.errors import SearchError
from research_plugin.retriever.settings import WebSettings
from research_plugin.retriever.web.api import Api
from research_plugin.retriever.web.memo import Memo
from research_plugin.retriever.web.text import one_line

HITS_PER_PAGE = 10


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result; title and snippet are single lines."""

    url: str
    title: str
    snippet: str


class Serper:
    """Searches page by page; every page is one paid request, and the same for every topk."""

    def __init__(self, api: Api, memo: Memo, settings: WebSettings) -> None:
        self._api, self._memo, self._settings = api, memo, settings

    async def find(self, query: str, topk: int) -> list[Hit]:
        """Return at most ``topk`` hits in Google's order, from at most ``ceil(topk / 10)`` pages.

        Raises:
            SearchError: a page could not be had.
        """
        found: dict[str, Hit] = {}
        for page in range(1, math.ceil(topk / HITS_PER_PAGE) + 1):
            hits = await self._page(query, page)
            for hit in hits:
                if on_site(hit.url, self._settings.site):
                    found.setdefault(hit.url, hit)
            if not hits or len(found) >= topk:
                break
        return list(found.values())[:topk]

    async def _page(self, query: str, page: int) -> list[Hit]:
        body = request_body(query, page, self._settings)

        async def search() -> list[tuple[str, ...]]:
            return [astuple(hit) for hit in read_hits(await self._api.post(body))]

        return [Hit(*fields) for fields in await self._memo.get(["search", self._settings.endpoint, body], search)]


def request_body(query: str, page: int, settings: WebSettings) -> dict[str, Any]:
    """Return the JSON of one request; pages count from 1."""
    site = f" site:{settings.site}" if settings.site else ""
    body: dict[str, Any] = {"q": f"{one_line(query)}{site}", "num": HITS_PER_PAGE, "page": page}
    if settings.country:
        body["gl"] = settings.country
    if settings.language:
        body["hl"] = settings.language
    return body


def read_hits(answer: Any) -> list[Hit]:
    """Return the organic hits that have a web address and a title or snippet.

    Raises:
        SearchError: the answer has another shape.
    """
    organic = answer.get("organic", []) if isinstance(answer, dict) else None
    if not isinstance(organic, list):
        raise SearchError("the search API's answer has no list 'organic'; is web.endpoint a Serper-shaped API?")
    hits = [_hit(item) for item in organic if isinstance(item, dict)]
    return [hit for hit in hits if _host(hit.url) and (hit.title or hit.snippet)]


def on_site(url: str, site: str | None) -> bool:
    """Tell whether the URL's host is ``site`` or below it; None: every site will do."""
    host = _host(url)
    return site is None or host == site.lower() or host.endswith(f".{site.lower()}")


def _hit(item: dict[Any, Any]) -> Hit:
    url, title, snippet = (one_line(str(item.get(key) or "")) for key in ("link", "title", "snippet"))
    # Google adds "#:~:text=..." to links into a page.
    return Hit(urldefrag(url).url if _host(url) else "", title, snippet)


def _host(url: str) -> str:
    """The host of an http(s) URL, "" for anything else."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "").rstrip(".") if parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""
