"""examples/sft_tiny: veRL's SFT trainer reads exported rollouts on a CPU, and its loss leaves observations alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from composing import ROOT, clean_environment

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

STEPS = 8


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example after some steps."""
    folder = tmp_path_factory.mktemp("sft") / "sft_tiny"
    shutil.copytree(ROOT / "examples/sft_tiny", folder, ignore=shutil.ignore_patterns("runs", "*.parquet", "*.jsonl"))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "run.sh", f"trainer.total_training_steps={STEPS}"],
            env=clean_environment() | {"PYTHON": sys.executable},
            cwd=folder, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(timeout=300)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, (folder / "log").read_text(errors="replace")[-4000:]
    return folder


def test_the_loss_falls(example: Path) -> None:
    lines = (example / "runs/sft_tiny/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["data"]["train/loss"] for line in lines]
    assert len(losses) == STEPS
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


def test_a_model_in_hugging_face_form_is_saved(example: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(example / f"runs/sft_tiny/global_step_{STEPS}/huggingface")
    assert sum(parameter.numel() for parameter in model.parameters()) > 600_000


def dataset(path: Path, **config: Any) -> Any:
    """The dataset as veRL's trainer makes it from the example's recipe."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.trainer.sft_trainer import create_sft_dataset

    from research_plugin.data.tiny_files import tiny_dir

    with initialize_config_module("verl.trainer.config", version_base=None):
        data = compose("sft_trainer_engine").data
    recipe = OmegaConf.load(path.parent / "recipe/sft_tiny.yaml")
    settings = OmegaConf.merge(data, recipe.data, config)
    return create_sft_dataset(str(path), settings, AutoTokenizer.from_pretrained(tiny_dir() / "model"), None)


def test_masked_tokens_are_the_prompt_and_the_observations(example: Path) -> None:
    rows = dataset(example / "sft.parquet")
    tokenizer, masked = rows.codec.tokenizer, 0
    for index in range(0, len(rows), 20):
        item, row = rows[index], rows.rows[index]
        ids, mask = item["input_ids"].tolist(), item["loss_mask"].bool().tolist()
        policy = "".join(segment["text"] for segment in row["segments"] if segment["by_policy"])
        seen = "".join(segment["text"] for segment in row["segments"] if not segment["by_policy"])
        assert tokenizer.decode([token for token, own in zip(ids, mask, strict=True) if own]) == policy
        unseen = tokenizer.decode([token for token, own in zip(ids, mask, strict=True) if not own])
        assert unseen.endswith(seen) and row["question"] in unseen.removesuffix(seen)
        masked += len(seen)
    assert masked > 1000


def test_the_trainers_loss_does_not_change_with_an_observation(example: Path) -> None:
    """The log-probabilities of observation tokens may be anything: veRL's own loss function."""
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import SFTTensorCollator
    from verl.workers.utils.losses import sft_loss

    rows = dataset(example / "sft.parquet")
    batch = SFTTensorCollator("no_padding")([rows[0], rows[1]])
    mask = batch["loss_mask"].values().bool()
    data = tu.get_tensordict(dict(batch), {"dp_size": 1, "batch_num_tokens": int(mask.sum())})
    predicts = torch.roll(mask, -1)  # position t holds the log-probability of token t + 1

    def loss(log_probs: torch.Tensor) -> float:
        nested = torch.nested.nested_tensor_from_jagged(log_probs, batch["loss_mask"].offsets())
        return sft_loss(None, {"log_probs": nested}, data)[0].item()

    flat = -torch.rand(len(mask))
    other = torch.where(predicts, flat, -9.0)
    assert loss(flat) == pytest.approx(loss(other))
    assert loss(flat) == pytest.approx(-flat[predicts].mean().item(), rel=1e-5)


def test_a_rollout_that_is_too_long_is_named_or_cut(example: Path) -> None:
    from research_plugin.errors import ConfigError, DataError

    short = dataset(example / "sft.parquet", max_length=20)
    with pytest.raises(DataError, match=r"rollout tiny_world-\S+: \d+ tokens, data.max_length=20"):
        short[0]
    assert len(dataset(example / "sft.parquet", max_length=20, truncation="right")[0]["input_ids"]) == 20
    with pytest.raises(ConfigError, match="no_padding"):
        dataset(example / "sft.parquet", pad_mode="right")
