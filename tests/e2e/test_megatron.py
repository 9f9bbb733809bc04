"""Our agent loop through `model_engine=megatron`: two steps of main_ppo on a CPU, weights handed to vLLM in between.

Megatron 0.16.1 by way of tests/megatron_shims.py, one process (no tensor or pipeline parallelism). The mask's own proof
on this engine is tests/integration/test_megatron_engine.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import megatron_shims
import pytest
import yaml
from composing import RECIPES, ROOT, clean_environment

pytest.importorskip("verl")
pytest.importorskip("vllm")
pytest.importorskip("megatron.core")
pytest.importorskip("mbridge")
pytestmark = [pytest.mark.e2e, pytest.mark.verl]

STEPS = 2
OVERRIDES = (
    "+recipe=research_tiny",
    "recipe/engine@_global_=cpu_megatron",
    f"trainer.total_training_steps={STEPS}",
    "data.train_batch_size=8",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.default_local_dir=run",
)


def cpu_engine() -> dict[str, Any]:
    """recipes/recipe/engine/cpu.yaml with Megatron in FSDP's place."""
    engine = yaml.safe_load((RECIPES / "engine" / "cpu.yaml").read_text())
    megatron = {
        "vanilla_mbridge": True,
        "use_remove_padding": False,
        "override_transformer_config": megatron_shims.OVERRIDES,
    }
    part = engine["actor_rollout_ref"]
    part["model"]["external_lib"] = "megatron_applied"
    part["actor"] = {"megatron": megatron}
    del part["ref"]
    part["rollout"]["dtype"] = "bfloat16"  # Megatron knows no float32 here (McoreEngineConfig)
    return {"defaults": [{"override /model_engine": "megatron"}, "_self_"], **engine}


def test_search_loop_trains_on_megatron(tmp_path: Path) -> None:
    (tmp_path / "recipe" / "engine").mkdir(parents=True)
    text = "# @package _global_\n" + yaml.safe_dump(cpu_engine(), sort_keys=False)
    (tmp_path / "recipe" / "engine" / "cpu_megatron.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-u", "-m", "verl.trainer.main_ppo", "--config-dir", ".", *OVERRIDES],
        cwd=tmp_path,
        env={**clean_environment(), "PYTHONPATH": str(ROOT / "tests")},
        stdout=(tmp_path / "log").open("wb"),
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=900,
    )
    assert done.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-4000:]

    rows = [json.loads(line)["data"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "actor/grad_norm" in row]
    assert len(steps) == STEPS
    for row in steps:
        assert row["actor/grad_norm"] > 0.0
        assert min(row["rollout/generated_tokens/mean"], row["rollout/retrieved_tokens/mean"]) > 0
        # vLLM samples step 2 with the weights that Megatron exported after step 1. Both compute in bfloat16: a mean of
        # 0.0006; with the weights of the step before it was 0.008.
        assert row["training/rollout_probs_diff_mean"] < 0.003
    dumped = [json.loads(line) for line in (tmp_path / "run" / "rollouts" / "2.jsonl").read_text().splitlines()]
    assert any("<result>" in row["output"] for row in dumped)
    # Megatron's own wrapper, not FSDP's.
    assert "DistributedDataParallel contains 640.64K parameters" in (tmp_path / "log").read_text(errors="replace")
