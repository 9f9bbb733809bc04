"""Requests and answers of the three servers' batch routes. Pure: values in, values out, ValueError on a wrong shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from research_plugin.document import Document, without_surrogates


@dataclass(frozen=True, slots=True)
class Api:
    """One route: how to ask it, and how to find the list of result lists in its answer."""

    path: str
    body: Callable[[list[str], int], dict[str, Any]]
    rows: Callable[[Any], Any]

    def parse(self, answer: Any, queries: int, topk: int) -> list[list[Document]]:
        """Return the documents of each query, at most ``topk`` each.

        Raises:
            ValueError: the answer does not hold one list of documents per query.
        """
        rows = self.rows(answer)
        if not isinstance(rows, list) or len(rows) != queries or not all(isinstance(row, list) for row in rows):
            raise ValueError(f"expected {queries} result lists")
        return [[_document(item) for item in row[:topk]] for row in rows]


def _document(item: Any) -> Document:
    """Read a document as one of the servers writes it: a string, an object, or an object beside its score."""
    if isinstance(item, str):
        return Document("", item)
    if not isinstance(item, dict):
        raise ValueError("a document is neither an object nor a string")
    score = item.get("score")
    inner = item.get("document", item)
    if isinstance(inner, str):
        inner = {"contents": inner}
    contents = inner.get("contents", inner.get("text")) if isinstance(inner, dict) else None
    if not isinstance(contents, str):
        raise ValueError("a document has no contents")
    score = float(score) if isinstance(score, (int, float)) else None
    return Document(str(inner.get("id", "")), without_surrogates(contents), score)


def _key(name: str) -> Callable[[Any], Any]:
    return lambda answer: answer.get(name) if isinstance(answer, dict) else None


APIS = {
    "batch_search": Api("/batch_search", lambda queries, topk: {"query": queries, "top_n": topk}, lambda rows: rows),
    # Search-R1's server answers wrongly without scores: one query fails, two are mixed up (retrieval_server.py).
    "retrieve": Api(
        "/retrieve", lambda queries, topk: {"queries": queries, "topk": topk, "return_scores": True}, _key("result")
    ),
    "queries": Api("/queries", lambda queries, topk: {"queries": queries, "k": topk}, _key("answers")),
}
"""search.api -> how to speak it."""
