"""The adapter over a FlashRAG retriever: what it hands over, what it drops, what it refuses at start."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flashrag_fake
import pytest

from research_plugin.document import Document
from research_plugin.errors import ConfigError, DataError, VersionError
from research_plugin.retriever.flashrag_engine import FlashRAGEngine, make
from research_plugin.retriever.flashrag_start import failure
from research_plugin.retriever.settings import RetrieverConfig


def _ids(rows: list[list[Document]]) -> list[list[str]]:
    return [[document.id for document in row] for row in rows]


def test_a_query_is_not_cut_to_64_characters() -> None:
    retriever = flashrag_fake.Dense()
    query = "please " * 20 + "whales"
    assert retriever.search(query, 1)[0]["id"] != 9  # the fault that is there
    assert _ids(FlashRAGEngine(retriever).search([query], 1)) == [["9"]]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_query_has_its_own_list_in_any_batch(count: int) -> None:
    engine = FlashRAGEngine(flashrag_fake.Dense())
    queries = ["river mill", "villages", "whales"][:count]
    found = engine.search(queries, 2)
    assert _ids(found) == [["7", "8"], ["00012", "7"], ["9", "7"]][:count]
    assert found == [engine.search([query], 2)[0] for query in queries]


def test_numbers_as_ids_become_strings_and_zeros_are_kept() -> None:
    found = FlashRAGEngine(flashrag_fake.Dense()).search(["Beyonc\u00e9"], 4)[0]
    assert {document.id for document in found} == {"7", "00012", "8", "9"}
    assert found[0] == Document("00012", "Beyonc\u00e9\nBeyonc\u00e9 sings about the villages.", 1.0)


@pytest.mark.parametrize("metric", [0, 1], ids=["inner product", "L2"])
def test_missing_neighbours_are_left_out(metric: int) -> None:
    retriever = flashrag_fake.Dense(metric=metric, reach=2)
    assert retriever.batch_search(["mill"], num=4)[0][-1]["id"] == 9  # the last document, which was never looked at
    assert _ids(FlashRAGEngine(retriever).search(["mill"], 4)) == [["7", "00012"]]
    assert FlashRAGEngine(flashrag_fake.Dense(metric=metric, reach=0)).search(["mill", "x"], 4) == [[], []]


def test_scores_of_an_l2_index_are_higher_for_better() -> None:
    found = FlashRAGEngine(flashrag_fake.Dense(metric=1)).search(["mill river"], 2)[0]
    assert [(document.id, document.score) for document in found] == [("7", -98.0), ("8", -99.0)]


def test_topk_is_clamped_to_the_corpus() -> None:
    retriever = flashrag_fake.Dense()
    engine = FlashRAGEngine(retriever)
    assert len(engine.search(["river"], 10**5)[0]) == engine.size == 4
    assert retriever.asked == [(1, 4)]


def test_a_retriever_that_knows_no_corpus_gets_topk_as_it_is() -> None:
    retriever = SimpleNamespace(batch_search=lambda queries, num, return_score: ([[]] * len(queries), [[]]))
    engine = FlashRAGEngine(retriever)
    assert engine.size is None
    assert engine.search(["q"], 10**6) == [[]]
    engine.probe()


def test_the_first_argument_may_have_either_name() -> None:
    assert _ids(FlashRAGEngine(flashrag_fake.OldDense()).search(["whales"], 1)) == [["9"]]


def test_prints_and_progress_bars_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    retriever = flashrag_fake.Dense()
    retriever.texts = [*retriever.texts]
    loud = SimpleNamespace(
        corpus=retriever.corpus, batch_search=lambda *args, **kwargs: _shout(retriever, args, kwargs)
    )
    FlashRAGEngine(loud).search(["whales"], 1)
    assert tuple(capsys.readouterr()) == ("", "")


def _shout(retriever: flashrag_fake.Dense, args: Any, kwargs: Any) -> Any:
    print("Encoding process: 100%", file=sys.stderr)
    return retriever.batch_search(*args, **kwargs)


@pytest.mark.parametrize("rows", [3, 5])
def test_index_and_corpus_of_different_sizes_are_refused(rows: int) -> None:
    retriever = flashrag_fake.Dense()
    retriever.index.ntotal = rows
    with pytest.raises(DataError, match=f"index has {rows} rows, its corpus 4 documents"):
        FlashRAGEngine(retriever)
    bm25 = flashrag_fake.BM25()
    bm25.searcher.scores["num_docs"] = rows
    with pytest.raises(DataError, match=f"index has {rows} rows, its corpus 4 documents"):
        FlashRAGEngine(bm25)


def test_an_answer_with_too_few_lists_is_an_error() -> None:
    retriever = SimpleNamespace(batch_search=lambda queries, num, return_score: ([[]], [[]]))
    with pytest.raises(DataError, match="2 queries, 1 results"):
        FlashRAGEngine(retriever).search(["a", "b"], 1)


@pytest.mark.parametrize("row", [{"contents": "no id"}, {"id": 1}, {"id": 1, "contents": None}], ids=str)
def test_a_document_without_id_or_text_is_an_error(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="id and contents"):
        FlashRAGEngine(flashrag_fake.Dense([row])).search(["id"], 1)


def test_text_may_stand_for_contents_and_lone_surrogates_are_replaced() -> None:
    engine = FlashRAGEngine(flashrag_fake.Dense([{"id": "a\ud800", "text": "whale \udfff"}]))
    assert engine.search(["whale"], 1) == [[Document("a\ufffd", "whale \ufffd", 1.0)]]


def test_bm25_returns_no_document_without_a_common_word() -> None:
    engine = FlashRAGEngine(flashrag_fake.BM25())
    assert _ids(engine.search(["village", "zzz", "river"], 4)) == [["00012"], [], ["7", "8"]]
    assert len(engine.search(["the"], 10**5)[0]) == 3


def test_the_probe_passes_what_is_right() -> None:
    FlashRAGEngine(flashrag_fake.Dense()).probe()
    FlashRAGEngine(flashrag_fake.BM25()).probe()


def test_the_probe_refuses_an_index_of_another_order() -> None:
    retriever = flashrag_fake.Dense([{"id": row, "contents": f"w{row} v{row} u{row}"} for row in range(64)])
    FlashRAGEngine(retriever).probe()
    retriever.texts = retriever.texts[::-1]
    with pytest.raises(DataError, match="only 1 of 8 documents are found by their own text"):
        FlashRAGEngine(retriever).probe()


def test_the_probe_refuses_bm25_that_stems_the_index_only() -> None:
    with pytest.raises(DataError, match=r"nothing for \d+ of \d+ words .*engine=bm25 stemmer=english"):
        FlashRAGEngine(flashrag_fake.BM25(stems_queries=False)).probe()


def _config(folder: Path, text: str, corpus: str | None = None) -> RetrieverConfig:
    file = folder / "flashrag.yaml"
    file.write_text(text, encoding="utf-8")
    return RetrieverConfig(engine="flashrag", flashrag_config=str(file), corpus=corpus)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("use_multi_retriever: true", "use_multi_retriever=True is not served: .*engine=hybrid"),
        ("use_reranker: true", "use_reranker=True is not served: .*rerank.model_path"),
        ("use_retrieval_cache: true", "use_retrieval_cache=True is not served"),
        ("save_retrieval_cache: true", "save_retrieval_cache=True is not served"),
        ("retrieval_method: e5", 'instruction is not set.*"query: "'),
        ("retrieval_method: bm25\ncorpus_path: a.jsonl", "corpus_path=a.jsonl, but corpus=b.jsonl"),
        ("- a list", "got list; a mapping"),
        ("a: [", "while parsing"),
    ],
    ids=["multi", "reranker", "use-cache", "save-cache", "instruction", "corpus", "list", "no-yaml"],
)
def test_files_that_cannot_be_served_rightly_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(_config(tmp_path, text, "b.jsonl"))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match="flashrag_config is not set"):
        make(RetrieverConfig(engine="flashrag"))
    with pytest.raises(ConfigError, match="No such file"):
        make(RetrieverConfig(engine="flashrag", flashrag_config="nowhere.yaml"))


def test_a_missing_flashrag_and_one_without_its_yaml_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tmp_path, "retrieval_method: bm25")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed. Install FlashRAG from its repository .*engine=dense"):
        make(config)
    package = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    with pytest.raises(VersionError, match=r"not usable. FlashRAG's release on PyPI .*git\+https.*engine=dense"):
        make(config)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (AssertionError("Torch not compiled with CUDA enabled"), VersionError, "release on PyPI"),
        (TypeError("parse_query() missing 1 required positional argument"), VersionError, "release on PyPI"),
        (AssertionError(), ConfigError, "dimension"),
        (ModuleNotFoundError("No module named 'faiss'", name="faiss"), ConfigError, "faiss-cpu"),
        (Warning("Index file x does not exist!"), ConfigError, "Warning: Index file x does not exist!"),
    ],
    ids=["cuda", "parse_query", "dimension", "module", "other"],
)
def test_what_flashrag_says_is_passed_on_and_explained(error: Exception, kind: type, message: str) -> None:
    explained = failure("answer a query", error)
    assert type(explained) is kind
    assert message in str(explained) and str(error) in str(explained)
