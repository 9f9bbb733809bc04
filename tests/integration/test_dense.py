"""The dense engine on real parts: MiniLM, FAISS files of every family, torch, 20,000 passages."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_world import PASSAGES, DenseWorld, model_path
from passages import make_passages, write_corpus

from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever import dense, packed_linear, torch_device
from research_plugin.retriever.documents import DocumentStore
from research_plugin.retriever.encoder import Encoder
from research_plugin.retriever.engine import Stages
from research_plugin.retriever.faiss_index import FaissIndex
from research_plugin.retriever.manifest import Manifest, write_manifest
from research_plugin.retriever.settings import EncoderSettings, IndexSettings, RetrieverConfig
from research_plugin.retriever.torch_index import TorchIndex

faiss = pytest.importorskip("faiss")
torch = pytest.importorskip("torch")

_SMALL = 400


@pytest.fixture(scope="module")
def settings() -> EncoderSettings:
    return EncoderSettings(model_path=model_path(), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def encoder(settings: EncoderSettings) -> Encoder:
    return Encoder(settings)


@dataclass
class Small:
    """A corpus of 400 passages, their vectors, and FAISS files of any type made from them - without a manifest."""

    corpus: Path
    vectors: Any
    settings: EncoderSettings

    def index(self, spec: str = "Flat", metric: int = faiss.METRIC_INNER_PRODUCT, vectors: Any = None) -> Path:
        path = self.corpus.with_name(f"{spec.replace(',', '_')}_{metric}_{vectors is None}.index")
        if not path.exists():
            index = faiss.index_factory(self.vectors.shape[1], spec, metric)
            index.train(self.vectors)
            index.add(self.vectors if vectors is None else np.ascontiguousarray(vectors))
            faiss.write_index(index, str(path))
        return path

    def config(self, index: Path, settings: EncoderSettings | None = None, **options: Any) -> RetrieverConfig:
        return RetrieverConfig(
            engine="dense",
            corpus=str(self.corpus),
            encoder=settings or self.settings,
            index=IndexSettings(path=str(index), **options),
        )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, settings: EncoderSettings, encoder: Encoder) -> Small:
    corpus = tmp_path_factory.mktemp("small") / "corpus.jsonl"
    write_corpus(corpus, _SMALL)
    texts = [passage.contents for passage in make_passages(_SMALL)]
    return Small(corpus, encoder.encode_passages(texts), settings)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An untrained BERT with 32 dimensions and without a pooler, with MiniLM's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = str(tmp_path_factory.mktemp("model"))
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(tokenizer), **shape), add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# Encoder


def _cosines(left: Any, right: Any) -> Any:
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


def test_vectors_are_those_of_sentence_transformers(settings: EncoderSettings, encoder: Encoder) -> None:
    texts = ["Where is Paris?", "", "A much longer text " * 60, "\u6771\u4eac \U0001f3a4 Beyonc\u00e9"]
    theirs = Encoder(replace(settings, backend="sentence_transformers"))
    np.testing.assert_allclose(encoder.encode_queries(texts), theirs.encode_queries(texts), atol=1e-5)
    np.testing.assert_allclose(encoder.encode_passages(texts), theirs.encode_passages(texts), atol=1e-5)
    assert abs(encoder.encode_queries(texts) - encoder.encode_passages(texts)).max() > 0.01


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "pooler"])
def test_pooling_looks_at_real_tokens_only(encoder: Encoder, pooling: str) -> None:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(model_path()), AutoModel.from_pretrained(model_path())
    texts = ["short", "this one is quite a bit longer than the other one"]
    for text, vector in zip(texts, encoder.encode(texts, "", 128, pooling, normalize=False), strict=True):
        with torch.no_grad():
            output = model(**tokenizer(text, return_tensors="pt"))
        hidden = output.last_hidden_state[0]
        expected = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1], "pooler": output.pooler_output[0]}
        np.testing.assert_allclose(vector, expected[pooling].numpy(), atol=1e-5)


def test_a_vector_does_not_depend_on_its_batch(encoder: Encoder, settings: EncoderSettings) -> None:
    texts = ["word " * (1 + 7 * i % 60) + str(i) for i in range(120)]
    together = encoder.encode_queries(texts)
    np.testing.assert_allclose(together, np.concatenate([encoder.encode_queries([text]) for text in texts]), atol=1e-5)
    rounded = Encoder(replace(settings, dtype="bfloat16"))
    assert _cosines(rounded.encode_queries(texts), together).min() > 0.999
    assert _cosines(rounded.encode_queries(texts), rounded.encode_queries(texts[:1] * 300)[:1]).argmax() == 0


def _linear_model(width: int, bias: bool) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, 3 * width, bias=bias)).to(torch.bfloat16).eval()


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("width", [5, 384])
def test_packed_layers_give_the_same_numbers(width: int, bias: bool) -> None:
    model = _linear_model(width, bias)
    inputs = [torch.randn(rows, 9, width).to(torch.bfloat16) for rows in (1, 7, 33)]
    with torch.inference_mode():
        before = [model(rows) for rows in inputs]
        packed = packed_linear.pack_linear_layers(model)
        assert packed == 1 or not torch_device._cpu_multiplies_bfloat16()
        assert all(torch.equal(model(rows), wanted) for rows, wanted in zip(inputs, before, strict=True))
    assert packed_linear.pack_linear_layers(_linear_model(width, bias).float()) == 0


@pytest.mark.parametrize("fault", [AttributeError, RuntimeError, None], ids=["missing", "fails", "other-numbers"])
def test_a_layer_that_cannot_be_packed_stays(fault: type[Exception] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(weight: Any, bias: Any, rows: Any) -> Any:
        if fault is not None:
            raise fault
        return torch.zeros(*rows.shape[:-1], len(bias), dtype=rows.dtype)

    monkeypatch.setattr(packed_linear, "_linear", linear)
    model = _linear_model(8, True)
    assert packed_linear.pack_linear_layers(model) == 0
    assert model(torch.ones(1, 8, dtype=torch.bfloat16)).abs().sum() > 0


_UNKNOWN = "y" * 200  # one token: BERT's tokenizer takes no word of more than 100 characters


@pytest.mark.parametrize(
    "text",
    ["word " * 200_000, "x" * 1_000_000, " " * 1_000_000 + "the end", f"{_UNKNOWN} " * 5_000, "\u6771" * 100_000],
    ids=["words", "one-word", "blanks-first", "unknown-words", "no-blanks"],
)
def test_only_the_start_of_a_long_text_is_read_and_that_changes_no_token(encoder: Encoder, text: str) -> None:
    model: Any = encoder._model
    # In the second text the cut falls into a word whose first half alone would fill 16 tokens.
    for cut, longest in ((text, 128), (f"{_UNKNOWN} {_UNKNOWN} {text[:1000]}", 16)):
        whole = model._tokenizer(cut, truncation=True, max_length=longest)["input_ids"]
        assert model._tokenize([cut, "short"], longest)[0] == whole


def test_odd_texts_are_encoded(encoder: Encoder) -> None:
    vectors = encoder.encode_queries(["", "\ud800", "\x00", "\ufffd"])
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    np.testing.assert_allclose(vectors[1], vectors[3], atol=1e-6)
    assert encoder.encode_queries([]).shape == (0, 384)


def test_a_compute_thread_keeps_to_its_threads(encoder: Encoder) -> None:
    before, seen = torch.get_num_threads(), []

    def work() -> None:
        torch.set_num_threads(3)
        encoder.encode_queries(["a query"])
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.set_num_threads(before)
    assert seen == [1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_path": None}, "encoder.model_path is not set"),
        ({"model_path": "/nowhere/e5"}, r"'/nowhere/e5': cannot be loaded \(no such folder\).*copy config.json"),
        ({"model_path": str(Path(__file__).parent)}, "cannot be loaded"),
        ({"query_max_length": 513}, "query_max_length=513: .* takes 3 to 512 tokens"),
        ({"passage_max_length": 2}, "passage_max_length=2: .* takes 3 to 512 tokens"),
        ({"device": "cuda:7"}, "this process sees 0 GPUs"),
        ({"device": "tpu7x"}, "device 'tpu7x': unknown"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: EncoderSettings, changes: dict[str, Any], message: str) -> None:
    if torch.cuda.is_available() and "GPUs" in message:
        pytest.skip("a machine with GPUs")
    with pytest.raises(ConfigError, match=message):
        Encoder(replace(settings, **changes))


def test_random_weights_are_never_used(settings: EncoderSettings, tiny_model: str) -> None:
    assert Encoder(replace(settings, model_path=tiny_model)).dimension == 32
    with pytest.raises(ConfigError, match=r"no weights for pooler"):
        Encoder(replace(settings, model_path=tiny_model, pooling="pooler"))


# Indexes

_SPECS = [
    "Flat",
    "IVF8,Flat",
    "HNSW8",
    "SQfp16",
    "SQ8",
    "PQ48x4",
    "IVF8,PQ48x4",
    "PCA64,Flat",
    "PCA64,IVF8,PQ16x4,RFlat",
]


@pytest.mark.parametrize("spec", _SPECS)
@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
def test_every_family_answers_as_faiss_does(small: Small, spec: str, mmap: bool) -> None:
    path = small.index(spec)
    theirs = faiss.read_index(str(path))
    ivf = faiss.try_extract_index_ivf(theirs)
    if ivf is not None:
        ivf.nprobe = 3
    index = FaissIndex(IndexSettings(path=str(path), mmap=mmap, nprobe=None if ivf is None else 3))
    assert (index.size, index.dimension, index.metric) == (_SMALL, 384, "ip")
    for count in (1, 50):
        scores, rows = index.search(small.vectors[:count], 4)
        expected_scores, expected_rows = theirs.search(small.vectors[:count], 4)
        np.testing.assert_array_equal(rows, expected_rows)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    stored = index.stored([0, 399])
    assert stored is None if spec.startswith("IVF") else stored is not None and stored.shape == (2, 384)


def test_effort_reaches_the_part_that_has_it(small: Small) -> None:
    exact = FaissIndex(IndexSettings(path=str(small.index()))).search(small.vectors, 5)[1]
    for spec in ("IVF8,Flat", "L2norm,IVF8,Flat"):
        rows = FaissIndex(IndexSettings(path=str(small.index(spec)), nprobe=8)).search(small.vectors, 5)[1]
        assert (rows == exact).mean() > 0.99
    rows = FaissIndex(IndexSettings(path=str(small.index("HNSW8")), ef_search=_SMALL)).search(small.vectors, 5)[1]
    assert (rows == exact).mean() > 0.99


def test_one_list_per_query_is_warned_about(small: Small, caplog: pytest.LogCaptureFixture) -> None:
    path = str(small.index("IVF8,Flat"))
    FaissIndex(IndexSettings(path=path))
    assert "visits 1 of its 8 lists" in caplog.text
    assert "index.nprobe" in caplog.text
    caplog.clear()
    FaissIndex(IndexSettings(path=path, nprobe=1))
    assert caplog.text == ""


def test_matrices_are_multiplied_for_batches_only(small: Small) -> None:
    index = FaissIndex(IndexSettings(path=str(small.index())))
    alone = np.concatenate([index.search(vector[None], 5)[1] for vector in small.vectors[:40]])
    assert faiss.cvar.distance_compute_blas_threshold == 2**31 - 1
    np.testing.assert_array_equal(index.search(small.vectors[:40], 5)[1], alone)
    assert faiss.cvar.distance_compute_blas_threshold == 1


def test_higher_is_better_for_l2_too(small: Small) -> None:
    index = FaissIndex(IndexSettings(path=str(small.index(metric=faiss.METRIC_L2))))
    scores, rows = index.search(small.vectors[:5], 3)
    assert index.metric == "l2"
    assert rows[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert (np.diff(scores, axis=1) <= 0).all()
    assert (abs(scores[:, 0]) < 1e-4).all()


@pytest.mark.parametrize("backend", [FaissIndex, TorchIndex])
def test_a_file_that_is_no_index_is_refused(small: Small, tmp_path: Path, backend: Any) -> None:
    whole = small.index().read_bytes()
    for name, content in {"cut": whole[:-100], "junk": b"junk" * 100, "empty": b""}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError, match=re.escape(str(path))):
            backend(IndexSettings(path=str(path)))
    with pytest.raises(DataError, match="no such file"):
        backend(IndexSettings(path=str(tmp_path / "gone.index")))


@pytest.mark.parametrize(
    ("spec", "option", "message"),
    [("Flat", {"nprobe": 4}, "nprobe=4: .* IndexFlatIP .*only IVF"), ("IVF8,Flat", {"ef_search": 9}, "only HNSW")],
)
def test_an_effort_that_the_index_does_not_have_is_refused(
    small: Small, spec: str, option: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        FaissIndex(IndexSettings(path=str(small.index(spec)), **option))


# Engine


@pytest.fixture(scope="module")
def engine(dense_world: DenseWorld, settings: EncoderSettings) -> dense.DenseEngine:
    encoder = replace(
        settings, query_instruction="", passage_instruction="", query_max_length=64, passage_max_length=64
    )
    index = IndexSettings(path=str(dense_world.index))
    return dense.make(RetrieverConfig("dense", str(dense_world.corpus), encoder=encoder, index=index))


def test_questions_find_their_passages(engine: dense.DenseEngine) -> None:
    passages = list(make_passages(PASSAGES))[::100]
    seen: list[str] = []
    found = engine.search([passage.question for passage in passages], 5, Stages(lambda stage, _: seen.append(stage)))
    assert engine.size == PASSAGES
    assert seen == ["encode", "search", "fetch"]
    first = sum(documents[0].id == passage.id for documents, passage in zip(found, passages, strict=True))
    assert first > 0.95 * len(passages)
    contents = {passage.id: passage.contents for passage in make_passages(PASSAGES)}
    for documents in found:
        assert len({document.id for document in documents}) == 5
        assert all(document.contents == contents[document.id] for document in documents)
        scores = [document.score or 0.0 for document in documents]
        assert scores == sorted(scores, reverse=True)


def test_results_depend_on_the_query_alone(engine: dense.DenseEngine) -> None:
    queries = [passage.question for passage in make_passages(60)]
    together = engine.search(queries, 7)
    for query, documents in zip(queries[::6], together[::6], strict=True):
        (alone,) = engine.search([query], 3)
        assert [document.id for document in alone] == [document.id for document in documents[:3]]


def test_no_index_is_asked_for_more_than_there_is(small: Small, encoder: Encoder) -> None:
    class Bounded(FaissIndex):
        def search(self, vectors: Any, topk: int) -> Any:
            assert topk <= self.size
            return super().search(vectors, topk)

    index = Bounded(IndexSettings(path=str(small.index())))
    (documents,) = dense.DenseEngine(encoder, index, DocumentStore(small.corpus)).search(["bridge"], 10**9)
    assert sorted(document.id for document in documents) == [f"{row:05d}" for row in range(_SMALL)]


def test_missing_neighbours_are_left_out(small: Small) -> None:
    found = dense.make(small.config(small.index("IVF8,Flat"), nprobe=1)).search(["bridge", "violins"], _SMALL)
    for documents in found:
        assert 0 < len(documents) < _SMALL
        assert len({document.id for document in documents}) == len(documents)
        assert all(abs(document.score or 0.0) <= 1.001 for document in documents)


def test_an_index_without_neighbours_answers_with_empty_lists(small: Small, encoder: Encoder) -> None:
    class Nothing(FaissIndex):
        def search(self, vectors: Any, topk: int) -> Any:
            return np.full((len(vectors), topk), -3.4e38, np.float32), np.full((len(vectors), topk), -1)

    nothing = Nothing(IndexSettings(path=str(small.index())))
    assert dense.DenseEngine(encoder, nothing, DocumentStore(small.corpus)).search(["a", "b"], 3) == [[], []]


@pytest.mark.parametrize("backend", ["faiss", "torch"])
def test_corpus_and_index_of_different_sizes_are_refused(small: Small, tmp_path: Path, backend: str) -> None:
    shorter = tmp_path / "corpus.jsonl"
    shorter.write_text("".join(small.corpus.open(encoding="utf-8").readlines()[:-1]), encoding="utf-8")
    config = replace(small.config(small.index(), backend=backend), corpus=str(shorter))
    with pytest.raises(DataError, match=r"has 400 vectors, .* has 399 documents"):
        dense.make(config)


def test_a_model_of_another_width_is_refused(small: Small, tiny_model: str) -> None:
    with pytest.raises(ConfigError, match=r"vectors of 384 numbers, .* gives 32"):
        dense.make(small.config(small.index(), replace(small.settings, model_path=tiny_model)))


@pytest.mark.parametrize("spec", ["Flat", "IVF8,Flat", "HNSW8", "PQ48x4"])
def test_an_index_without_a_manifest_is_probed(small: Small, spec: str) -> None:
    options = {"nprobe": 2} if "IVF" in spec else {}
    dense.make(small.config(small.index(spec), **options))
    for change, named in (
        ({"pooling": "cls"}, "encoder.pooling='mean'"),
        ({"normalize": False}, "encoder.normalize=True"),
    ):
        with pytest.raises(ConfigError, match=named):
            dense.make(small.config(small.index(spec), replace(small.settings, **change), **options))


def test_the_instruction_of_the_passages_is_found_out(small: Small) -> None:
    wrong = replace(small.settings, passage_instruction="")
    with pytest.raises(ConfigError, match=r"encoder.passage_instruction='passage: ': set that, and encoder.query_inst"):
        dense.make(small.config(small.index(), wrong))


def test_a_manifest_that_names_no_encoder_does_not_stand_for_the_probe(small: Small, tmp_path: Path) -> None:
    index = tmp_path / "converted.index"
    index.write_bytes(small.index().read_bytes())
    write_manifest(index, Manifest(_SMALL, 384, "ip", "Flat"))
    with pytest.raises(ConfigError, match=r"encoder\.pooling='mean'"):
        dense.make(small.config(index, replace(small.settings, pooling="cls")))


def test_an_index_in_another_order_is_refused(small: Small) -> None:
    with pytest.raises(ConfigError, match=r"of 16 passages are among their own .* another order"):
        dense.make(small.config(small.index(vectors=small.vectors[::-1])))


def test_a_manifest_is_held_against_what_is_loaded(small: Small, encoder: Encoder, tmp_path: Path) -> None:
    index = tmp_path / "mini_Flat.index"
    index.write_bytes(small.index().read_bytes())
    store = DocumentStore(small.corpus)
    facts = Manifest(_SMALL, 384, "ip", "Flat", store.fingerprint(), encoder.fingerprint())
    write_manifest(index, facts)
    dense.make(small.config(index, replace(small.settings, dtype="bfloat16", query_max_length=32)))
    with pytest.raises(ConfigError, match=r"mini_Flat.index.json\): encoder.query_instruction=''.*'query: '"):
        dense.make(small.config(index, replace(small.settings, query_instruction="")))
    swapped = tmp_path / "corpus.jsonl"
    lines = small.corpus.read_text(encoding="utf-8").splitlines(keepends=True)
    swapped.write_text("".join([lines[1], lines[0], *lines[2:]]), encoding="utf-8")
    with pytest.raises(ConfigError, match="another order"):
        dense.make(replace(small.config(index), corpus=str(swapped)))
