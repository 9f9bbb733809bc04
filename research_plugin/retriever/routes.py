"""The JSON of the four search routes, as the published servers speak it. Pure: bytes in, values out.

/search and /batch_search are ReSearch's, /retrieve is Search-R1's, /queries is R1-Searcher's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from research_plugin.document import Document, without_surrogates
from research_plugin.retriever.asgi import Refused
from research_plugin.retriever.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may ask for; a violation is a 4xx, never a silent cut."""

    max_body_bytes: int = 8 * 2**20
    max_query_chars: int = 32_768
    max_batch_queries: int = 1_024
    max_topk: int = 100
    default_topk: int | None = None
    """Used when a request names no topk; None: the route's own default (10 or 3)."""

    @classmethod
    def of(cls, settings: ServerSettings, max_topk: int | None, default_topk: int | None) -> RequestLimits:
        return cls(
            settings.max_body_mb * 2**20,
            settings.max_query_chars,
            settings.max_queries,
            max_topk or settings.max_topk,
            default_topk,
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request: the queries as written (some may be blank), 1 <= topk <= corpus size."""

    queries: list[str]
    topk: int
    scores: bool


@dataclass(frozen=True, slots=True)
class SearchRoute:
    """Field names of one route, and how it lays out the answer."""

    queries_key: str
    topk_key: str
    scores_key: str | None
    default_topk: int
    render: Callable[[Request, list[list[Document]]], Any]
    single: bool = False
    """One query string, not a list; blank is then an error."""
    null_topk: bool = False
    """``null`` counts as "not given" (Search-R1's clients send it)."""

    def parse(self, body: bytes, limits: RequestLimits, size: int | None) -> Request:
        """Check a request body against the limits and a corpus of ``size`` documents.

        Raises:
            Refused: not JSON, a field is missing, of the wrong type or out of range.
        """
        try:
            fields = json.loads(body.decode("utf-8"))
        except (ValueError, RecursionError):
            raise Refused("the body is not JSON in UTF-8", "not_json") from None
        if not isinstance(fields, dict):
            raise Refused(f"the body must be a JSON object, got {_kind(fields)}")
        queries = self._queries(fields, limits)
        scores = fields.get(self.scores_key, False) if self.scores_key else False
        if not isinstance(scores, bool):
            raise Refused(f"{self.scores_key} must be true or false, got {_kind(scores)}")
        return Request(queries, self._topk(fields, limits, size), scores)

    def _queries(self, fields: dict[str, Any], limits: RequestLimits) -> list[str]:
        given = fields.get(self.queries_key)
        if self.single:
            if not isinstance(given, str):
                raise Refused(f"{self.queries_key} must be a string, got {_kind(given)}")
            if not given.strip():
                raise Refused(f"{self.queries_key} is empty")
            given = [given]
        if not isinstance(given, list) or not all(isinstance(query, str) for query in given):
            raise Refused(f"{self.queries_key} must be a list of strings, got {_kind(given)}")
        if len(given) > limits.max_batch_queries:
            raise Refused(f"{len(given)} queries in one request; at most {limits.max_batch_queries}", status=413)
        for place, query in enumerate(given):
            if len(query) > limits.max_query_chars:
                message = f"query {place} has {len(query)} characters; at most {limits.max_query_chars}"
                raise Refused(message, "query_too_long")
            if without_surrogates(query) != query:
                raise Refused(f"query {place} holds a lone surrogate, which is no character", "invalid_text")
        return given

    def _topk(self, fields: dict[str, Any], limits: RequestLimits, size: int | None) -> int:
        most = limits.max_topk if size is None else min(limits.max_topk, size)
        if self.topk_key not in fields or (self.null_topk and fields[self.topk_key] is None):
            return min(limits.default_topk or self.default_topk, most)
        topk = fields[self.topk_key]
        if isinstance(topk, bool) or not isinstance(topk, int):
            raise Refused(f"{self.topk_key} must be an integer, got {_kind(topk)}")
        if not 1 <= topk <= most:
            corpus = "" if size is None else f" (corpus: {size} documents)"
            raise Refused(f"{self.topk_key} must be from 1 to {most} here{corpus}", "topk_range")
        return topk


def json_encoder() -> Callable[[Any], bytes]:
    """Return the fastest way here to write compact JSON in UTF-8: orjson if installed, else the standard library."""
    try:
        import orjson
    except ImportError:
        encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
        return lambda value: encode(value).encode("utf-8")
    return orjson.dumps


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null or nothing"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else "something else")


def _plain(document: Document) -> dict[str, str]:
    return {"id": document.id, "contents": document.contents}


def _render_search(request: Request, rows: list[list[Document]]) -> Any:
    documents = [_plain(document) for document in rows[0]]
    return [documents, [document.score for document in rows[0]]] if request.scores else documents


def _render_batch_search(request: Request, rows: list[list[Document]]) -> Any:
    documents = [[_plain(document) for document in row] for row in rows]
    return [documents, [[document.score for document in row] for row in rows]] if request.scores else documents


def _render_retrieve(request: Request, rows: list[list[Document]]) -> Any:
    if request.scores:
        return {"result": [[{"document": _plain(found), "score": found.score} for found in row] for row in rows]}
    return {"result": [[_plain(document) for document in row] for row in rows]}


def _render_queries(request: Request, rows: list[list[Document]]) -> Any:
    return {"queries": request.queries, "answers": [[document.contents for document in row] for row in rows]}


ROUTES = {
    "/search": SearchRoute("query", "top_n", "return_score", 10, _render_search, single=True),
    "/batch_search": SearchRoute("query", "top_n", "return_score", 10, _render_batch_search),
    "/retrieve": SearchRoute("queries", "topk", "return_scores", 3, _render_retrieve, null_topk=True),
    "/queries": SearchRoute("queries", "k", None, 3, _render_queries),
}
"""Path -> route. In a batch, a blank query gets an empty result list in its place."""
