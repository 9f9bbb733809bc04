"""Reciprocal-rank fusion: scores by hand, ties, ids, and that an answer does not depend on its batch."""

from __future__ import annotations

import dataclasses
import math

import pytest

from research_plugin.document import Document
from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.fusion import HybridEngine, fuse, make
from research_plugin.retriever.settings import RerankSettings, RetrieverConfig


class ListEngine:
    """Returns one ranking, whatever the query, and keeps what it was asked for."""

    def __init__(self, name: str, ids: str, size: int | None = 9) -> None:
        self.name, self.size, self.closed = name, size, False
        self.asked: list[int] = []
        self._ids = ids

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        self.asked.append(topk)
        return [_ranking(self._ids)[:topk] for _ in queries]

    def close(self) -> None:
        self.closed = True


def _ranking(ids: str) -> list[Document]:
    return [Document(identity, f"text {identity}", 100.0 - place) for place, identity in enumerate(ids)]


def test_scores_are_sums_of_reciprocal_ranks() -> None:
    found = fuse([_ranking("abc"), _ranking("cd")], 10)
    assert [document.id for document in found] == ["c", "a", "b", "d"]
    assert [document.score for document in found] == pytest.approx([1 / 63 + 1 / 61, 1 / 61, 1 / 62, 1 / 62])
    assert [document.contents for document in found] == ["text c", "text a", "text b", "text d"]


def test_equal_scores_stand_in_the_order_of_the_rankings() -> None:
    assert [document.id for document in fuse([_ranking("ab"), _ranking("cd")], 4)] == ["a", "c", "b", "d"]
    assert [document.id for document in fuse([_ranking("cd"), _ranking("ab")], 4)] == ["c", "a", "d", "b"]


def test_equal_sums_are_equal_whatever_the_order_of_their_terms() -> None:
    # Ranks 8, 2, 1 (a) and 1, 2, 8 (b): added up one after the other, b would come out ahead by a rounding.
    assert 1 / 68 + 1 / 62 + 1 / 61 < 1 / 61 + 1 / 62 + 1 / 68
    found = fuse([_ranking("b123456a"), _ranking("7b"), _ranking("8a"), _ranking("a9cdefgb")], 2)
    assert found[0].score == found[1].score == math.fsum([1 / 61, 1 / 62, 1 / 68])


def test_an_empty_ranking_adds_nothing() -> None:
    assert [document.id for document in fuse([[], _ranking("ba")], 5)] == ["b", "a"]
    assert fuse([[], []], 5) == []


def test_topk_does_not_change_what_is_fused() -> None:
    engines = [ListEngine("bm25", "abcdef"), ListEngine("dense", "fedcba")]
    hybrid = HybridEngine(engines, 4)
    one, many = hybrid.search(["q"], 1), hybrid.search(["q", "r"], 100)
    assert one[0] == many[0][:1] and many[0] == many[1]
    assert [len(row) for row in many] == [6, 6]
    assert engines[0].asked == engines[1].asked == [4, 4]


def test_engines_of_different_sizes_are_refused() -> None:
    with pytest.raises(DataError, match=r"'bm25': 9, 'dense': 8"):
        HybridEngine([ListEngine("bm25", "a"), ListEngine("dense", "a", 8)], 50)


def test_size_is_the_corpus_and_close_reaches_all() -> None:
    engines = [ListEngine("bm25", "a"), ListEngine("web", "b", None)]
    hybrid = HybridEngine(engines, 50)
    assert (hybrid.name, hybrid.size) == ("hybrid", 9)
    hybrid.close()
    assert [engine.closed for engine in engines] == [True, True]


@pytest.mark.parametrize("names", [["bm25"], [], ["bm25", "bm25"], ["bm25", "hybrid"]], ids=str)
def test_engines_must_be_two_and_different(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="two or more different engines"):
        make(RetrieverConfig(engine="hybrid", hybrid=names))


def test_members_share_the_configuration_but_not_the_reranker(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RetrieverConfig] = []

    def make_engine(config: RetrieverConfig) -> ListEngine:
        seen.append(config)
        return ListEngine(config.engine, "ab")

    monkeypatch.setattr("research_plugin.retriever.engines.make_engine", make_engine)
    config = RetrieverConfig(engine="hybrid", corpus="c.jsonl", rerank=RerankSettings(model_path="m"), threads=2)
    assert make(config).search(["q"], 1)[0][0].id == "a"
    expected = dataclasses.replace(config, rerank=RerankSettings())
    assert seen == [dataclasses.replace(expected, engine=name) for name in ("bm25", "dense")]
