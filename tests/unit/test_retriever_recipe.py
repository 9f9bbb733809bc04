"""Retriever recipes: the shipped ones, FlashRAG's key names, overrides, and typos that fail with what is allowed."""

from __future__ import annotations

import importlib
import itertools
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever import flashrag_keys
from research_plugin.retriever.describe import describe, differences
from research_plugin.retriever.engines import ENGINES, make_engine
from research_plugin.retriever.memory import check_memory
from research_plugin.retriever.recipe import load_config, recipe_names, show_config
from research_plugin.retriever.settings import EncoderSettings, IndexSettings, RerankSettings, RetrieverConfig
from research_plugin.retriever.validate import file_faults, get, topk_limits

pytest.importorskip("omegaconf")
RECIPES = Path(__file__).parents[2] / "recipes" / "retriever"

# What ReSearch's server is started with, in the words of FlashRAG's basic_config.yaml; paths and values are ours.
SERVING = """
gpu_id: "0,1,2,3,4,5,6,7"
save_dir: output/
retrieval_method: e5
retrieval_model_path: /models/e5-base-v2
index_path: /data/e5_Flat.index
corpus_path: /data/wiki18_100w.jsonl
faiss_gpu: True
retrieval_topk: 5
retrieval_batch_size: 256
retrieval_use_fp16: True
retrieval_query_max_length: 128
retrieval_pooling_method: mean
instruction: "query: "
use_retrieval_cache: False
use_reranker: False
bm25_backend: ~
"""


def write(folder: Path, text: str) -> str:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def changed(config: RetrieverConfig) -> dict[str, Any]:
    """What differs from the defaults, by dotted key."""
    found = {}
    for key, default in vars(RetrieverConfig()).items():
        value = getattr(config, key)
        if hasattr(default, "__dataclass_fields__"):
            found |= {f"{key}.{name}": item for name, item in vars(value).items() if item != getattr(default, name)}
        elif value != default:
            found[key] = value
    return found


def test_the_shipped_recipes_are_the_files() -> None:
    assert recipe_names() == sorted(path.stem for path in RECIPES.glob("*.yaml"))
    assert {"bm25", "tiny", "web", "wiki18_e5_cpu", "wiki18_e5_gpu"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipe_loads_and_says_how_to_run_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIKI18", "/data/wiki18")
    config = load_config(name)
    assert changed(config), "a recipe that sets nothing"
    lines = (RECIPES / f"{name}.yaml").read_text().splitlines()
    header = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    for word in ("# Needs:", "# Run:", "# Check:"):
        assert [line for line in header if line.startswith(word)], word
    assert f"serve --recipe {name}" in "\n".join(header)


def test_tiny_recipe_serves_the_embedded_corpus() -> None:
    config = load_config("tiny")
    assert list(file_faults(config)) == []
    engine = make_engine(config)
    assert engine.size == config.corpus_rows == 1570


@pytest.mark.parametrize("name", ["wiki18_e5_gpu", "wiki18_e5_cpu"])
def test_wiki18_recipes_say_what_e5_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # facts: E5 wants both prefixes, mean pooling over 128 tokens and length 1.
    monkeypatch.setenv("WIKI18", "/data/wiki18")
    config = load_config(name)
    encoder = config.encoder
    assert (encoder.query_instruction, encoder.passage_instruction) == ("query: ", "passage: ")
    assert (encoder.pooling, encoder.query_max_length, encoder.normalize) == ("mean", 128, True)
    assert (config.engine, config.topk, config.corpus_rows) == ("dense", 5, 21_015_324)
    assert config.corpus == "/data/wiki18/wiki18_100w.jsonl"


def test_a_flashrag_file_is_served_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert changed(load_config(write(tmp_path, SERVING))) == {
        "engine": "dense",
        "corpus": "/data/wiki18_100w.jsonl",
        "topk": 5,
        "encoder.model_path": "/models/e5-base-v2",
        "index.path": "/data/e5_Flat.index",
        "index.backend": "torch",
    }
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith(": gpu_id, save_dir, use_retrieval_cache")


E5 = {"retrieval_method": "e5", "instruction": "query: ", "retrieval_pooling_method": "mean"}
KEYS = [
    ({"corpus_path": "/c.jsonl"}, {"corpus": "/c.jsonl"}),
    ({**E5, "index_path": "/i"}, {"index.path": "/i", "engine": "dense"}),
    ({"retrieval_topk": 7}, {"topk": 7}),
    ({"retrieval_query_max_length": 64}, {"encoder.query_max_length": 64}),
    ({"retrieval_batch_size": 32}, {"server.max_batch": 32}),
    ({**E5, "retrieval_model_path": "/m"}, {"encoder.model_path": "/m"}),
    ({**E5, "retrieval_method": "/m/e5"}, {"encoder.model_path": "/m/e5"}),
    ({**E5, "model2path": {"e5": "/listed"}}, {"encoder.model_path": "/listed"}),
    ({**E5, "method2index": {"e5": "/listed"}}, {"index.path": "/listed"}),
    ({**E5, "retrieval_pooling_method": "cls"}, {"encoder.pooling": "cls"}),
    ({**E5, "retrieval_pooling_method": None, "model2pooling": {"e5": "cls"}}, {"encoder.pooling": "cls"}),
    (
        {**E5, "instruction": "query:"},
        {"encoder.query_instruction": "query: ", "encoder.passage_instruction": "passage: "},
    ),
    ({**E5, "instruction": "  "}, {"encoder.query_instruction": "", "encoder.passage_instruction": ""}),
    ({**E5, "instruction": "Find: "}, {"encoder.query_instruction": "Find: ", "encoder.passage_instruction": ""}),
    ({"retrieval_method": "bm25", "index_path": "/bm25"}, {"engine": "bm25", "index.path": None}),
    ({"retrieval_use_fp16": False}, {"encoder.dtype": "float32"}),
    ({"retrieval_use_fp16": True}, {"encoder.dtype": "auto"}),
    ({"use_sentence_transformer": True}, {"encoder.backend": "sentence_transformers"}),
    ({"use_sentence_transformer": False}, {"encoder.backend": "transformers"}),
    ({**E5, "faiss_gpu": True}, {"index.backend": "torch"}),
    ({**E5, "faiss_gpu": False}, {"index.backend": "faiss"}),
    ({"use_reranker": False, "rerank_model_path": "/r"}, {"rerank.model_path": None}),
    (
        {"use_reranker": True, "rerank_model_path": "r", "retrieval_topk": 9, "rerank_topk": 3, "rerank_max_length": 8},
        {"rerank.model_path": "r", "rerank.candidates": 9, "topk": 3, "rerank.max_length": 8},
    ),
    (
        {"use_reranker": True, "rerank_model_name": "bge", "model2path": {"bge": "/r"}, "rerank_use_fp16": False},
        {"rerank.model_path": "/r", "rerank.dtype": "float32"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), KEYS)
def test_flashrag_key_maps(given: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    config = load_config(write(tmp_path, OmegaConf.to_yaml(given)))
    assert {key: get(config, key) for key in expected} == expected


def test_every_flashrag_key_is_tried() -> None:
    tried = {key for given, _ in KEYS for key in given}
    assert {*flashrag_keys.RENAMED, *flashrag_keys.CONVERTED} - tried == set()


def test_no_key_of_ours_is_taken_for_flashrags() -> None:
    assert [key for key in vars(RetrieverConfig()) if flashrag_keys.is_flashrag_key(key)] == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('instruction: "query: "', 'instruction: not set; add what the index was built for: "query: " for E5'),
        ("retrieval_pooling_method: mean", "retrieval_pooling_method: not set; add mean"),
    ],
)
def test_instruction_and_pooling_are_never_guessed(line: str, message: str, tmp_path: Path) -> None:
    # FlashRAG takes both from the letters "e5" in a name or path.
    assert line in SERVING
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, SERVING.replace(line, "")))
    key = line.split(":")[0]
    assert load_config(write(tmp_path, SERVING.replace(line, "")), [f"{key}={'cls' if 'pool' in key else ''}"])


def test_sentence_transformers_pool_by_themselves(tmp_path: Path) -> None:
    text = SERVING.replace("retrieval_pooling_method: mean", "use_sentence_transformer: True")
    assert load_config(write(tmp_path, text)).encoder.backend == "sentence_transformers"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("use_multi_retriever=true", "use_multi_retriever: True .* set engine=hybrid"),
        ("use_remote_retriever=true", "use_remote_retriever: True .*search.url"),
        ("retrieval_method=splade", "'splade' .* engine=flashrag"),
        ("use_reranker=true", "rerank_model_path is not set"),
    ],
)
def test_what_a_flashrag_file_cannot_ask_for(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override])
    assert load_config(None, [override.replace("true", "false").replace("splade", "bm25")])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("enginee=bm25", r"unknown key enginee \(did you mean engine\?\); allowed: engine, corpus, "),
        ("index.nprob=3", r"unknown key index\.nprob \(did you mean index\.nprobe\?\); allowed: path, backend, "),
        ("retrieval_topkk=3", r"unknown key retrieval_topkk \(did you mean retrieval_topk\?\)"),
        ("xyz=3", r"unknown key xyz; allowed: engine, "),
        ("topk.x=3", r"topk"),
        ("topk", r"override 'topk': expected key=value"),
        ("=3", r"override '=3': expected key=value"),
        ("topk=[1", r"override 'topk=\[1': '\[1' is no YAML value"),
        ("topk=many", r"topk: Value 'many' of type 'str' could not be converted to Integer"),
        ("topk=2.5", r"topk: Value '2\.5'"),
        ("topk=true", r"topk: Value 'True'"),
        ("index.mmap=maybe", r"index\.mmap: Value 'maybe' is not a valid bool"),
        ("index.devices=cuda:0", r"index\.devices: "),
        ("index=3", r"index: got 3; a mapping of settings is allowed"),
        ("encoder=null", r"encoder: got None; a mapping of settings is allowed"),
        ("engine=densee", r"engine: got 'densee'; allowed: bm25, dense, flashrag, hybrid, web"),
        ("encoder.pooling=avg", r"encoder\.pooling: got 'avg'; allowed: mean, cls, last, pooler"),
        ("topk=0", r"topk: got 0; must be at least 1"),
        ("topk=101", r"topk: got 101; server\.max_topk=100 is the most"),
        ("server.deadline=0", r"server\.deadline: got 0\.0; must be above 0"),
        ("server.deadline=.nan", r"server\.deadline: got nan"),
        ("index.path=/i", r"index\.path: got '/i', but engine bm25 makes its own index; is engine=dense missing\?"),
        ("hybrid=[bm25,denes]", r"hybrid: got 'denes'; allowed: bm25, dense, flashrag, web"),
        ("corpus=${oc.env:NO_SUCH_VARIABLE}", r"corpus: .*'NO_SUCH_VARIABLE' not found"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(override: str, message: str) -> None:
    also = ["engine=hybrid"] if override.startswith("hybrid") else []
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override, *also])


@pytest.mark.parametrize(
    ("overrides", "limits"),
    [
        ([], {"server.max_topk": 100}),
        (["engine=hybrid", "hybrid_candidates=30"], {"server.max_topk": 100, "hybrid_candidates": 30}),
        (["rerank.model_path=m", "rerank.candidates=20"], {"server.max_topk": 100, "rerank.candidates": 20}),
        (["rerank.candidates=20", "hybrid_candidates=30"], {"server.max_topk": 100}),
    ],
    ids=["plain", "hybrid", "rerank", "unused"],
)
def test_no_request_may_ask_for_more_than_the_candidates(overrides: list[str], limits: dict[str, int]) -> None:
    config = load_config(None, overrides)
    assert topk_limits(config) == limits
    assert describe(config)["max_topk"] == min(limits.values())
    if len(limits) > 1:
        key, most = list(limits.items())[1]
        with pytest.raises(ConfigError, match=f"topk: got {most + 1}; {key}={most} is the most"):
            load_config(None, [*overrides, f"topk={most + 1}"])


def test_values_out_of_range_come_all_at_once() -> None:
    with pytest.raises(ConfigError, match=r"threads: got 0.*server\.max_queue: got -1"):
        load_config(None, ["server.max_queue=-1", "threads=0"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"retriever recipe '.*nowhere\.yaml': No such file or directory; give a YAML file, or one of bm25, "),
        ("a: [1", r"retriever recipe .*recipe\.yaml: "),
        ("- engine", r"holds a list; a mapping of settings is allowed"),
        ("topk: 1\ntopk: 2", r"topk"),
        ("encoder:\n  poling: mean", r"unknown key encoder\.poling \(did you mean encoder\.pooling\?\)"),
    ],
    ids=["missing", "no-yaml", "list", "twice", "typo"],
)
def test_a_faulty_recipe_file_is_named(text: str | None, message: str, tmp_path: Path) -> None:
    path = str(tmp_path / "nowhere.yaml") if text is None else write(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["encoder.query_instruction=query: "], {"encoder.query_instruction": "query: "}),
        (["encoder.query_instruction='query: '"], {"encoder.query_instruction": "query: "}),
        (["encoder.query_instruction="], {"encoder.query_instruction": ""}),
        (["instruction=query: "], {"encoder.query_instruction": "query: "}),
        (["corpus=a=b.jsonl"], {"corpus": "a=b.jsonl"}),
        (["corpus=007"], {"corpus": "007"}),
        (["corpus=x", "corpus=null"], {"corpus": None}),
        (["corpus=~/c.jsonl", "encoder.model_path=~/m"], {"encoder.model_path": str(Path.home() / "m")}),
        (["index.devices=[cuda:0,cuda:1]"], {"index.devices": ["cuda:0", "cuda:1"]}),
        (["index.memory_gb=5"], {"index.memory_gb": 5.0}),
        (["topk=3", "topk=4"], {"topk": 4}),
    ],
)
def test_overrides(overrides: list[str], expected: dict[str, Any]) -> None:
    config = load_config(None, overrides)
    assert {key: get(config, key) for key in expected} == expected


@pytest.mark.parametrize("text", ["topk: 5", "retrieval_topk: 5"])
@pytest.mark.parametrize("override", ["topk=3", "retrieval_topk=3"])
def test_the_command_line_beats_the_file_in_either_language(text: str, override: str, tmp_path: Path) -> None:
    assert load_config(write(tmp_path, text)).topk == 5
    assert load_config(write(tmp_path, text), [override]).topk == 3


def test_a_shown_configuration_reads_back(tmp_path: Path) -> None:
    config = load_config("tiny", ["topk=3", "encoder.query_instruction=q: ", "index.devices=[cpu]"])
    assert load_config(write(tmp_path, show_config(config))) == config


def test_missing_files_and_settings_are_named_by_key(tmp_path: Path) -> None:
    config = RetrieverConfig(engine="dense", corpus=str(tmp_path / "c.jsonl"))
    assert list(file_faults(config)) == [
        f"corpus: {tmp_path}/c.jsonl: no such file",
        "encoder.model_path: not set; engine dense needs it (encoder.model_path=..., or a recipe that says it)",
        "index.path: not set; engine dense needs it (index.path=..., or a recipe that says it)",
    ]
    assert list(file_faults(RetrieverConfig(engine="web"))) == []
    hybrid = file_faults(RetrieverConfig(engine="hybrid", hybrid=["bm25", "dense"]))
    assert [fault.split(":")[0] for fault in hybrid] == ["corpus", "encoder.model_path", "index.path"]


@pytest.mark.parametrize("target", [target for target, _ in ENGINES.values()])
def test_every_engine_is_there(target: str) -> None:
    module, _, function = target.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    message = r"engine bm25: package bm25s is not installed; pip install 'research-plugin\[retriever\]'"
    with pytest.raises(ConfigError, match=message):
        make_engine(load_config("tiny"))


def test_a_corpus_of_another_size_is_refused() -> None:
    # Case 33: half-downloaded.
    with pytest.raises(DataError, match=r"has 1570 documents, corpus_rows=1571; is it whole\?"):
        make_engine(load_config("tiny", ["corpus_rows=1571"]))


@pytest.fixture
def huge(tmp_path: Path) -> RetrieverConfig:
    """A dense engine over an index file of 4 TB, all of it a hole."""
    with (tmp_path / "huge.index").open("wb") as file:
        file.truncate(4 * 2**40)
    return RetrieverConfig(engine="dense", index=IndexSettings(path=str(tmp_path / "huge.index")))


def test_memory_that_is_not_there_is_refused_before_loading(huge: RetrieverConfig) -> None:
    # Case 39.
    huge.index.mmap = False
    with pytest.raises(
        ConfigError, match=r"engine dense: 4398\.0 GB .* needed at least \(vector index 4398\.05 GB\), "
    ):
        check_memory(huge)


def test_a_mapped_index_larger_than_memory_is_warned_of(
    huge: RetrieverConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    check_memory(huge)
    line, warning = (record.getMessage() for record in caplog.records)
    assert line.startswith("memory, at least: vector index 4398.05 GB (mapped); ")
    assert "searches will wait for the disk" in warning


def test_a_small_corpus_fits() -> None:
    check_memory(load_config("tiny"))


EXPECTED = RetrieverConfig(
    engine="dense",
    corpus="/a/wiki.jsonl",
    corpus_rows=100,
    topk=5,
    encoder=EncoderSettings(model_path="/a/e5"),
    rerank=RerankSettings(model_path="/a/bge"),
)
HEALTH = {**describe(EXPECTED), "size": 100, "status": "ready"}


def test_a_server_of_the_same_recipe_does_not_differ() -> None:
    assert differences(EXPECTED, HEALTH) == []
    elsewhere = RetrieverConfig(**{**vars(EXPECTED), "corpus": "/b/wiki.jsonl"})
    assert differences(elsewhere, HEALTH) == []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"engine": "bm25"}, ["engine is 'bm25', expected 'dense'"]),
        ({"corpus": "old.jsonl"}, ["corpus is 'old.jsonl', expected 'wiki.jsonl'"]),
        ({"model": "bge"}, ["model is 'bge', expected 'e5'"]),
        ({"reranker": None}, ["reranker is None, expected 'bge'"]),
        ({"topk": 3}, ["topk is 3, expected 5"]),
        ({"topk": None}, ["topk is None, expected 5"]),
        ({"size": 99}, ["size is 99, expected 100"]),
        ({"max_topk": 4}, ["max_topk is 4, expected 50 or more"]),
        ({"max_topk": 1000, "something": "else"}, []),
        ({"engine": "bm25", "size": 1}, ["engine is 'bm25', expected 'dense'", "size is 1, expected 100"]),
    ],
)
def test_planted_differences_are_all_said(planted: dict[str, Any], said: list[str]) -> None:
    assert differences(EXPECTED, {**HEALTH, **planted}) == said


def test_what_a_recipe_leaves_open_is_not_compared() -> None:
    assert differences(RetrieverConfig(engine="bm25"), {"engine": "bm25", "corpus": "any", "size": 7, "topk": 9}) == []
