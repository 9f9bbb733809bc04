"""examples/own_recipe as its README line says it is run: one's own prompt, reward and corpus, two steps.

With LoRA on top, so that one training proves both.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from composing import ROOT, clean_environment

pytest.importorskip("verl")
pytest.importorskip("vllm")
pytestmark = [pytest.mark.e2e, pytest.mark.verl]

LORA = [
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.rollout.load_format=safetensors",
    "actor_rollout_ref.actor.optim.lr=5e-3",
    "actor_rollout_ref.actor.use_kl_loss=true",
]


def test_own_recipe_trains_with_own_prompt_reward_and_corpus(tmp_path: Path) -> None:
    folder = tmp_path / "own_recipe"
    shutil.copytree(ROOT / "examples" / "own_recipe", folder, ignore=shutil.ignore_patterns("runs", "outputs"))
    env = clean_environment()
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, env=env, check=True, timeout=60)
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", ".", "+recipe=my_search"]
    overrides = ["trainer.total_training_steps=2", "trainer.default_local_dir=run", *LORA]
    done = subprocess.run([*command, *overrides], cwd=folder, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    rows = [json.loads(line) for line in (folder / "run" / "rollouts" / "1.jsonl").read_text().splitlines()]
    assert len(rows) == 16 * 5
    assert all("Answer from the workshop's log." in row["input"] for row in rows)
    assert {round(row["score"], 4) for row in rows} <= {0.0, 0.05, 1.0, 1.05}  # exact match, and a little for a search
    searched = [row["output"] for row in rows if "<result>" in row["output"]]
    assert searched
    own = ("is kept by", "is in the workshop on", "No passage was found", "The search was empty", "No more searches")
    assert all(any(text in output for text in own) for output in searched)
    assert (folder / "run" / "summary.json").is_file()

    # vLLM samples step 2 with the adapters of step 1's update; the reference is the model without them.
    metrics = [json.loads(line)["data"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    first, second = (row for row in metrics if "actor/grad_norm" in row)
    assert min(first["actor/grad_norm"], second["actor/kl_loss"]) > 0
    assert second["training/rollout_probs_diff_max"] < 1e-3
    assert second["actor/kl_loss"] > first["actor/kl_loss"]
