"""The BM25 engine and the corpus reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research_plugin.document import Document
from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever import bm25
from research_plugin.retriever.bm25 import BM25Engine, make, tokenize
from research_plugin.retriever.corpus import read_corpus
from research_plugin.retriever.settings import RetrieverConfig

DOCUMENTS = [
    Document("00012", "Paris\nParis is the capital of France."),
    Document("1", "Beyoncé\nBeyoncé is a singer."),
    Document("2", "Tokyo\n東京は日本の首都です。"),
    Document("3", "Berlin\nBerlin is the capital of Germany."),
]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The Capital, of FRANCE!", ["the", "capital", "of", "france"]),
        ("Beyonce\u0301 BEYONC\u00c9", ["beyonc\u00e9", "beyonc\u00e9"]),
        ("東京 Tower2", ["東", "京", "tower2"]),
        ("서울 시", ["서울", "시"]),
        (" \n?!", []),
        ("A\x00b", ["a", "b"]),
    ],
    ids=["english", "nfd-and-nfc", "han", "hangul", "no-words", "nul"],
)
def test_tokenize(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


def _ids(engine: BM25Engine, query: str, topk: int = 3) -> list[str]:
    return [document.id for document in engine.search([query], topk)[0]]


def test_bm25_ranks_and_leaves_out_documents_without_a_common_word() -> None:
    engine = BM25Engine(DOCUMENTS)
    assert (engine.name, engine.size) == ("bm25", 4)
    assert _ids(engine, "capital of France") == ["00012", "3"]
    assert _ids(engine, "東京") == ["2"]
    assert _ids(engine, "Beyonce\u0301") == ["1"]


@pytest.mark.parametrize("query", ["", "?!", "zebra"], ids=["empty", "punctuation", "unknown-word"])
def test_bm25_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert BM25Engine(DOCUMENTS).search([query, "singer"], 5)[0] == []


def test_bm25_topk_above_the_corpus_returns_each_match_once() -> None:
    assert sorted(_ids(BM25Engine(DOCUMENTS), "is the capital singer", topk=100)) == ["00012", "1", "3"]


def test_bm25_equal_scores_come_in_corpus_order() -> None:
    engine = BM25Engine([Document(str(place), "same words") for place in range(50)])
    assert _ids(engine, "words", topk=3) == ["0", "1", "2"]


def test_bm25_returns_scores_highest_first() -> None:
    first, second = BM25Engine(DOCUMENTS).search(["capital of France"], 2)[0]
    assert first.score is not None and second.score is not None
    assert first.score > second.score > 0


def test_bm25_plural_matches_only_with_a_stemmer() -> None:
    documents = [Document("0", "old villages"), Document("1", "a town")]
    assert _ids(BM25Engine(documents), "village") == []
    pytest.importorskip("Stemmer")
    assert _ids(BM25Engine(documents, stemmer="english"), "village") == ["0"]
    with pytest.raises(ConfigError, match=r"klingon.*allowed"):
        BM25Engine(documents, stemmer="klingon")


def test_bm25_corpus_without_a_word_is_refused() -> None:
    with pytest.raises(DataError, match="no document holds a single word"):
        BM25Engine([Document("0", "..."), Document("1", "")])


def test_read_corpus_accepts_flashrag_rows(tmp_path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(
        '{"id": "00012", "contents": "A\\nb", "title": "A"}\n\n{"id": 7, "text": "c \\ud800 d"}\n', encoding="utf-8"
    )
    assert read_corpus(path) == [Document("00012", "A\nb"), Document("7", "c \ufffd d")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"id": "0", "contents": "a"}\n{"id": "1", "conte', r"corpus\.jsonl, line 2: .*half-downloaded"),
        (b'{"id": "0", "contents": "a"}\nnot json\n{"id": "1", "contents": "b"}\n', r"line 2: not valid JSON"),
        (b'{"id": "0", "contents": "\xff"}\n', r"line 1: not valid JSON in UTF-8"),
        (b'["0", "a"]\n', r"line 1: expected a JSON object .* got list"),
        (b'{"contents": "a"}\n', r'line 1: "id" must be'),
        (b'{"id": true, "contents": "a"}\n', r'line 1: "id" must be .* got True'),
        (b'{"id": "0"}\n', r'line 1: "contents" .* got None'),
        (b"\n \n", r"no documents"),
        (b"", r"no documents"),
    ],
    ids=["cut", "bad-line", "bad-utf8", "array", "no-id", "bool-id", "no-contents", "blank", "empty"],
)
def test_read_corpus_names_file_and_line(tmp_path, content: bytes, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_corpus(path)


def test_read_corpus_missing_file(tmp_path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl: cannot be read \(No such file"):
        read_corpus(tmp_path / "nowhere.jsonl")


def test_a_mapped_corpus_answers_as_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": str(i), "contents": f"Town {i}\nIn valley {i % 7}, on river {i % 11}."} for i in range(1500)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = RetrieverConfig(corpus=str(path))
    queries = ["valley 3 river 5", "town 1499", "nothing of it"]
    in_memory = make(config).search(queries, 4)
    assert [len(found) for found in in_memory] == [4, 4, 0]
    monkeypatch.setattr(bm25, "_MAP_FROM_BYTES", 0)
    mapped = make(config)
    assert mapped.size == 1500
    assert mapped.search(queries, 4) == in_memory
    mapped.close()
    with pytest.raises(ValueError, match="closed"):
        mapped.search(queries, 4)
