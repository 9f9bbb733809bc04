"""What is wrong with a composed config: one change at a time to a good one, and the sentence it must bring."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from research_plugin.checks import check_config

CUSTOM = "actor_rollout_ref.rollout.custom"


@pytest.fixture
def good(tmp_path: Path) -> dict[str, Any]:
    """A config without a problem: 2 GPUs, 4 rollouts each of 8 questions."""
    for name in ("train.parquet", "val.parquet"):
        (tmp_path / name).touch()
    (tmp_path / "model").mkdir()
    return {
        "data": {
            "train_files": str(tmp_path / "train.parquet"),
            "val_files": [str(tmp_path / "val.parquet")],
            "max_prompt_length": 100,
            "max_response_length": 400,
            "train_batch_size": 8,
        },
        "actor_rollout_ref": {
            "model": {"path": str(tmp_path / "model")},
            "actor": {
                "strategy": "fsdp",
                "ppo_mini_batch_size": 8,
                "use_dynamic_bsz": True,
                "ppo_max_token_len_per_gpu": 500,
            },
            "rollout": {
                "n": 4,
                "max_model_len": 500,
                "log_prob_max_token_len_per_gpu": 500,
                "tensor_model_parallel_size": 1,
                "custom": {"search": {"url": "http://127.0.0.1:8000"}},
            },
        },
        "trainer": {"nnodes": 1, "n_gpus_per_node": 2, "device": "cuda"},
    }


def config_problems(config: dict[str, Any], visible_gpus: int | None = None) -> list[str]:
    return check_config(config, visible_gpus=visible_gpus)[1]


def changed(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of ``config`` with one dotted key set."""
    config = copy.deepcopy(config)
    *path, last = key.split(".")
    node = config
    for name in path:
        node = node[name]
    node[last] = value
    return config


def test_a_good_config_has_no_problem(good: dict[str, Any]) -> None:
    assert config_problems(good, visible_gpus=2) == []
    assert config_problems(good) == []


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("data.train_files", None, "data.train_files is not set"),
        ("data.val_files", [], "data.val_files is not set"),
        ("data.train_files", "/gone/a.parquet", "data.train_files=/gone/a.parquet does not exist"),
        ("data.val_files", ["/gone/a.parquet"], "data.val_files=/gone/a.parquet does not exist"),
        ("actor_rollout_ref.model.path", "/gone/model", "actor_rollout_ref.model.path=/gone/model is no folder"),
        ("actor_rollout_ref.model.path", "~/gone/model", "actor_rollout_ref.model.path=~/gone/model is no folder"),
        ("actor_rollout_ref.rollout.max_model_len", 499, "max_response_length = 500 exceeds "),
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 499, "is below one full sequence of 500 tokens"),
        ("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", 9, "is below one full sequence of 500 tokens"),
        ("data.train_batch_size", 7, "data.train_batch_size=7 is no multiple of "),
        ("trainer.n_gpus_per_node", 3, "ppo_mini_batch_size=8 x actor_rollout_ref.rollout.n=4 = 32 rollouts do not"),
        (
            "actor_rollout_ref.rollout.tensor_model_parallel_size",
            4,
            "tensor_model_parallel_size=4 does not divide 2 GPUs",
        ),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", 0, "tensor_model_parallel_size=0; it must be 1"),
        ("trainer.n_gpus_per_node", 0, "trainer.n_gpus_per_node=0; it must be 1 or more"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 0, "ppo_mini_batch_size=0; it must be 1 or more"),
        (f"{CUSTOM}.max_search", 3, f"unknown key {CUSTOM}.max_search; allowed: mask_observations,"),
        (f"{CUSTOM}.search", {}, f"{CUSTOM}.search.url: not set"),
        (f"{CUSTOM}.search.url", "http://<host>:8000", f"{CUSTOM}.search.url: 'http://<host>:8000' is a placeholder"),
        (CUSTOM, "research", f"{CUSTOM}='research' is a str; a mapping of settings is allowed"),
        (CUSTOM, None, f"{CUSTOM}.search.url: not set"),
        (f"{CUSTOM}.prompt", {"file": "/gone/p.txt"}, "cannot read the prompt file /gone/p.txt"),
        (f"{CUSTOM}.search.token_env", "NO_SUCH_TOKEN", f"{CUSTOM}.search.token_env=NO_SUCH_TOKEN, but that"),
    ],
)
def test_one_fault_brings_one_sentence(good: dict[str, Any], key: str, value: Any, expected: str) -> None:
    problems = config_problems(changed(good, key, value))
    assert len(problems) == 1
    assert expected in problems[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.train_files", "hdfs://cluster/a.parquet"),
        ("actor_rollout_ref.model.path", "Qwen/Qwen2.5-7B"),
        ("actor_rollout_ref.model.path", "hdfs://cluster/model"),
        ("actor_rollout_ref.rollout.max_model_len", None),
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", None),
    ],
)
def test_values_that_cannot_or_need_not_be_checked_pass(good: dict[str, Any], key: str, value: Any) -> None:
    assert config_problems(changed(good, key, value)) == []


@pytest.mark.parametrize(
    ("gpus", "megatron", "expected"),
    [
        (8, {"tensor_model_parallel_size": 2}, ""),
        (12, {"tensor_model_parallel_size": 3}, ""),
        (12, {"tensor_model_parallel_size": 2}, "= 32 rollouts do not divide over 12 GPUs (trainer.nnodes x "),
        (12, {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4}, "= 8 does not divide 12 GPUs"),
        (4, {"tensor_model_parallel_size": 2, "context_parallel_size": 4}, "= 8 does not divide 4 GPUs"),
    ],
)
def test_megatron_counts_copies_of_the_model(
    good: dict[str, Any], gpus: int, megatron: dict[str, int], expected: str
) -> None:
    config = changed(changed(good, "actor_rollout_ref.actor.strategy", "megatron"), "trainer.n_gpus_per_node", gpus)
    problems = config_problems(changed(config, "actor_rollout_ref.actor.megatron", megatron))
    assert len(problems) == bool(expected)
    assert all(expected in problem and "actor.megatron.tensor_model_parallel_size" in problem for problem in problems)


def test_sequence_parallel_ranks_share_a_rollout(good: dict[str, Any]) -> None:
    # 32 rollouts over 12 GPUs: two or three to a sequence make 6 or 4 shares.
    config = changed(good, "trainer.n_gpus_per_node", 12)
    sizes = {size: changed(config, "actor_rollout_ref.actor.ulysses_sequence_parallel_size", size) for size in (2, 3)}
    assert [len(config_problems(sizes[size])) for size in (2, 3)] == [1, 0]


def test_token_limits_count_only_with_dynamic_batches(good: dict[str, Any]) -> None:
    config = changed(good, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 10)
    config["actor_rollout_ref"]["actor"]["use_dynamic_bsz"] = False
    assert config_problems(config) == []


def test_the_same_file_for_training_and_validation(good: dict[str, Any]) -> None:
    # Case 43.
    path = good["data"]["train_files"]
    problems = config_problems(changed(good, "data.val_files", [path]))
    assert problems == [f"data.train_files and data.val_files both hold {path}: validation would measure memory"]


def test_loopback_retriever_on_several_nodes(good: dict[str, Any]) -> None:
    # Case 43.
    config = changed(good, "trainer.nnodes", 2)
    problems = config_problems(config)
    assert len(problems) == 1
    assert f"{CUSTOM}.search.url=http://127.0.0.1:8000 is this machine only, but trainer.nnodes=2" in problems[0]
    assert config_problems(changed(config, f"{CUSTOM}.search.url", "http://10.0.0.7:8000")) == []


def test_token_is_read_from_the_environment_and_never_shown(
    good: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Case 43.
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    assert config_problems(changed(good, f"{CUSTOM}.search.token_env", "MY_TOKEN")) == []
    assert "s3cret" not in str(config_problems(changed(good, f"{CUSTOM}.search", {"token_env": "MY_TOKEN"})))


@pytest.mark.parametrize(
    ("visible", "device", "count"), [(0, "cuda", 1), (1, "cuda", 1), (2, "cuda", 0), (0, "cpu", 0), (None, "cuda", 0)]
)
def test_gpus_of_this_machine(good: dict[str, Any], visible: int | None, device: str, count: int) -> None:
    problems = config_problems(changed(good, "trainer.device", device), visible_gpus=visible)
    assert len(problems) == count
    assert all("trainer.n_gpus_per_node=2 asks for more" in problem for problem in problems)


def test_settings_come_back_unless_something_is_wrong_with_them(good: dict[str, Any]) -> None:
    settings, problems = check_config(changed(good, "data.train_files", None))
    assert settings is not None
    assert settings.search.url == "http://127.0.0.1:8000"
    assert len(problems) == 1
    for key, value in (("max_search", 3), ("search.url", None), ("search.token_env", "NO_SUCH_TOKEN")):
        assert check_config(changed(good, f"{CUSTOM}.{key}", value))[0] is None


def test_embedded_retriever_needs_a_corpus_and_one_node(good: dict[str, Any]) -> None:
    config = changed(good, f"{CUSTOM}.search.url", "embedded")
    assert config_problems(config) == [f"{CUSTOM}.search.url=embedded needs search.corpus, a JSONL file"]
    config = changed(config, f"{CUSTOM}.search.corpus", "corpus.jsonl")
    assert config_problems(config) == []
    (problem,) = config_problems(changed(config, "trainer.nnodes", 2))
    assert problem.startswith(f"{CUSTOM}.search.url=embedded is this machine only, but trainer.nnodes=2")


def test_all_problems_come_at_once(good: dict[str, Any]) -> None:
    config = changed(changed(good, "data.train_files", None), "data.train_batch_size", 7)
    config = changed(changed(config, "actor_rollout_ref.model.path", "/gone"), CUSTOM, {})
    assert len(config_problems(config, visible_gpus=0)) == 5


def test_schedule_needs_the_trainer_that_tells_the_step(good: dict[str, Any]) -> None:
    config = changed(good, f"{CUSTOM}.max_searches_schedule", [[0, 1], [10, 2]])
    assert config_problems(config) == []
    (problem,) = config_problems(changed(config, "trainer.use_v1", False))
    assert f"{CUSTOM}.max_searches_schedule needs trainer.use_v1=true" in problem


def test_base_weights_of_a_lora_model_are_read_by_vllm_on_a_cpu(good: dict[str, Any]) -> None:
    config = changed(changed(good, "trainer.device", "cpu"), "actor_rollout_ref.rollout.load_format", "dummy")
    assert config_problems(config) == []
    config = changed(config, "actor_rollout_ref.model.lora_rank", 8)
    (problem,) = config_problems(config)
    assert "actor_rollout_ref.rollout.load_format=safetensors" in problem
    assert config_problems(changed(config, "actor_rollout_ref.rollout.load_format", "safetensors")) == []
    assert config_problems(changed(config, "actor_rollout_ref.model.lora", {"merge": True})) == []
    assert config_problems(changed(config, "trainer.device", "cuda"), visible_gpus=None) == []


def test_separate_async_needs_gpus_a_transfer_and_a_batch_of_its_own(good: dict[str, Any]) -> None:
    config = changed(good, "trainer.v1", {"trainer_mode": "sync", "separate_async": {"parameter_sync_step": 4}})
    config["actor_rollout_ref"]["rollout"] |= {"nnodes": 0, "checkpoint_engine": {"backend": "naive"}}
    assert config_problems(config) == []
    config = changed(config, "trainer.v1.trainer_mode", "separate_async")
    nodes, transfer, batch = config_problems(config)
    assert "actor_rollout_ref.rollout.nnodes=0" in nodes
    assert "checkpoint_engine.backend=naive" in transfer
    assert "data.train_batch_size=8" in batch
    assert batch.endswith("= 32")
    config = changed(config, "actor_rollout_ref.rollout.nnodes", 1)
    config = changed(config, "actor_rollout_ref.rollout.checkpoint_engine.backend", "nccl")
    assert config_problems(changed(config, "data.train_batch_size", 32)) == []
