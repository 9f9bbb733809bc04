"""The server's result cache: what serves what, and what goes first."""

from __future__ import annotations

from research_plugin.document import Document
from research_plugin.retriever.result_cache import ResultCache

ROWS = [Document(str(number), "text") for number in range(5)]


def test_cache_serves_a_smaller_topk_from_a_larger() -> None:
    cache = ResultCache(2)
    assert cache.get("q", 1) is None
    cache.put("q", 4, ROWS[:4])
    assert cache.get("q", 4) == ROWS[:4]
    assert cache.get("q", 2) == ROWS[:2]
    assert cache.get("q", 5) is None


def test_cache_knows_that_nothing_was_found() -> None:
    cache = ResultCache(2)
    cache.put("q", 3, [])
    assert cache.get("q", 3) == []


def test_cache_forgets_what_was_not_used_for_longest() -> None:
    cache = ResultCache(2)
    cache.put("a", 1, ROWS[:1])
    cache.put("b", 1, ROWS[1:2])
    cache.get("a", 1)
    cache.put("c", 1, ROWS[2:3])
    assert [cache.get(query, 1) for query in "abc"] == [ROWS[:1], None, ROWS[2:3]]


def test_cache_is_bounded_in_characters() -> None:
    cache = ResultCache(3)  # 3 x 8,192 characters
    long = [Document("0", "x" * 10_000)]
    for query in "abc":
        cache.put(query, 1, long)
    assert [cache.get(query, 1) for query in "abc"] == [None, long, long]
    cache.put("b", 1, [])
    cache.put("d", 1, long)
    assert [cache.get(query, 1) for query in "bcd"] == [[], long, long]
    cache.put("e", 1, [Document("0", "x" * 30_000)])
    assert [cache.get(query, 1) for query in "bcde"] == [None] * 4


def test_cache_of_size_0_keeps_nothing() -> None:
    cache = ResultCache(0)
    cache.put("q", 1, ROWS[:1])
    assert cache.get("q", 1) is None
