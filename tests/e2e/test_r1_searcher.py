"""R1-Searcher in the real stack: its dialect, stage 1's reward and REINFORCE++, on a tiny model that speaks its tags.

With LoRA whose adapters are merged into the weights that vLLM gets. Search-R1's turn is in test_async_modes.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from composing import CUSTOM, clean_environment
from tiny_speaker import write_speaker

from research_plugin.protocol import R1_SEARCHER

pytest.importorskip("verl")
pytest.importorskip("vllm")
pytestmark = [pytest.mark.e2e, pytest.mark.verl]

RECIPE = """# @package _global_
defaults: [research_tiny, base/reinforce_plus_plus, _self_]
"""
OVERRIDES = [
    "reward.custom_reward_function.reward_kwargs.method=r1_searcher_stage1",
    f"{CUSTOM}.max_searches=2",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.model.lora.merge=true",
    "actor_rollout_ref.actor.optim.lr=5e-3",
    "data.train_batch_size=8",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.default_local_dir=run",
]


def test_r1_searcher_trains_with_merged_adapters(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(RECIPE)
    command = [sys.executable, "-u", "-m", "verl.trainer.main_ppo", "--config-dir", ".", "+recipe=mine"]
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run(
            [*command, *OVERRIDES, *write_speaker(R1_SEARCHER, tmp_path)],
            cwd=tmp_path, env=clean_environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, timeout=900,
        )  # fmt: skip
    assert done.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-4000:]

    metrics = [json.loads(line)["data"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, second = (row for row in metrics if "actor/grad_norm" in row)
    # Merged weights travel in bfloat16 (workers/engine/fsdp/transformer_impl.py, _merged_lora_per_tensor_param).
    assert max(row["training/rollout_probs_diff_mean"] for row in (first, second)) < 0.003
    for row in (first, second):
        # Rollouts that all score the same teach nothing, which happens: nine of ten score 0.5, after one step all may.
        assert (row["actor/grad_norm"] > 0) == (row["critic/score/max"] > row["critic/score/min"])
        assert min(row["rollout/generated_tokens/mean"], row["rollout/retrieved_tokens/mean"]) > 0

    rollouts = [
        json.loads(line)
        for step in (1, 2)
        for line in (tmp_path / "run" / "rollouts" / f"{step}.jsonl").read_text().splitlines()
    ]
    assert len(rollouts) == 2 * 8 * 4
    assert all(row["input"].endswith("assistant <think>") for row in rollouts)
    assert {row["score"] for row in rollouts} <= {0.0, 0.5, 1.0}
    assert max(row["score"] for row in rollouts) >= 0.5
    for row in rollouts:
        _, *after = row["output"].split("<|end_of_query|>")
        assert all(text.startswith("\n\n<|begin_of_documents|>\n") for text in after[:2] if text)
        assert not any(after[2:])  # the third search ends the rollout
    assert any("<|begin_of_documents|>\n(1)" in row["output"] for row in rollouts)
