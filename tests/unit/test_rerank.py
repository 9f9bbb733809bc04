"""The engine around another one: order, ties, candidates. `tests/integration/test_cross_encoder.py` has the model."""

from __future__ import annotations

from collections.abc import Sequence

from research_plugin.document import Document
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.rerank import RerankEngine


class NumberEngine:
    """Finds "0", "1", "2", ... for every query but "nothing"."""

    name, size, closed = "bm25", 8, False

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        row = [Document(str(number), f"text {number}", -number) for number in range(min(topk, self.size))]
        return [[] if query == "nothing" else row for query in queries]

    def close(self) -> None:
        self.closed = True


class TableScorer:
    """Scores a text by its number in the query's row of the table."""

    def __init__(self, table: dict[str, list[float]]) -> None:
        self.table, self.texts = table, 0

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        self.texts += len(texts)
        return [self.table[query][int(text.removeprefix("text "))] for text in texts]


TABLE = {"up": [0.0, 1.0, 2.0, 3.0], "down": [-1.0, -2.0, -3.0, -4.0], "even": [5.0, 1.0, 5.0, 1.0]}


def _reranked(queries: list[str], topk: int) -> list[list[tuple[str, float | None]]]:
    found = RerankEngine(NumberEngine(), TableScorer(TABLE), 4).search(queries, topk)  # type: ignore[arg-type]
    return [[(document.id, document.score) for document in row] for row in found]


def test_documents_stand_by_score_and_ties_in_the_engines_order() -> None:
    assert _reranked(["up", "nothing", "even"], 9) == [
        [("3", 3.0), ("2", 2.0), ("1", 1.0), ("0", 0.0)],
        [],
        [("0", 5.0), ("2", 5.0), ("1", 1.0), ("3", 1.0)],
    ]


def test_a_small_request_sees_the_same_candidates_as_a_large_one() -> None:
    assert _reranked(["up"], 1) == [[("3", 3.0)]]
    assert _reranked(["up", "down"], 2) == [[("3", 3.0), ("2", 2.0)], [("0", -1.0), ("1", -2.0)]]


def test_it_answers_for_the_engine_inside() -> None:
    inner = NumberEngine()
    stages: list[str] = []
    scorer = TableScorer(TABLE)
    engine = RerankEngine(inner, scorer, 3)  # type: ignore[arg-type]
    assert (engine.name, engine.size) == ("bm25", 8)
    engine.search(["up", "down"], 1, Stages(lambda stage, seconds: stages.append(stage)))
    assert (stages, scorer.texts) == (["rerank"], 6)
    engine.close()
    assert inner.closed
