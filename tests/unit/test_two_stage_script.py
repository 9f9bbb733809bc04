"""examples/two_stage/run.sh with a stand-in for the trainer: which commands it runs, also when it is run again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Writes its arguments down and leaves what stage 1's training leaves: a checkpoint of step 5 as a Hugging Face folder.
TRAINER = r"""#!/usr/bin/env bash
echo "$*" >>"$CALLS"
[ "${FAIL_AT:-}" = "$(wc -l <"$CALLS")" ] && exit 3
case "$*" in *stage1*) ;; *) exit 0 ;; esac
folder=$(printf '%s\n' "$@" | sed -n 's/^trainer.default_local_dir=//p')
mkdir -p "$folder/global_step_5/actor/$HF"
touch "$folder/global_step_5/actor/$HF/$WEIGHTS"
echo 5 >"$folder/latest_checkpointed_iteration.txt"
"""


@pytest.fixture
def trainer(tmp_path: Path) -> dict[str, str]:
    """The environment of a run whose python is the stand-in."""
    path = tmp_path / "python"
    path.write_text(TRAINER)
    path.chmod(0o755)
    (tmp_path / "calls").touch()
    names = {"PYTHON": str(path), "CALLS": str(tmp_path / "calls"), "RUN_DIR": str(tmp_path / "run")}
    return {**os.environ, **names, "HF": "huggingface", "WEIGHTS": "model.safetensors"}


def run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "examples" / "two_stage" / "run.sh")
    return subprocess.run(["bash", script, *arguments], env=env, capture_output=True, text=True, timeout=60)


def calls(env: dict[str, str]) -> list[list[str]]:
    return [line.split() for line in Path(env["CALLS"]).read_text().splitlines()]


@pytest.mark.parametrize("folder", ["huggingface", "model/huggingface"], ids=["fsdp", "megatron"])
def test_second_stage_starts_from_the_first_ones_last_checkpoint(trainer: dict[str, str], folder: str) -> None:
    env = {**trainer, "HF": folder, "STAGE1_ARGS": "a=1 b=2", "STAGE2_ARGS": "c=3"}
    done = run(env, "--config-dir", ".", "data.val_files=v")
    assert done.returncode == 0, done.stderr
    first, second = calls(env)
    out = env["RUN_DIR"]
    start = ["-m", "verl.trainer.main_ppo"]
    # Options first: argparse takes no override after one that stands in the middle.
    assert first == [
        *start, "--config-dir", ".", "data.val_files=v", "a=1", "b=2",
        "+recipe=r1_searcher_stage1_7b", f"trainer.default_local_dir={out}/stage1",
    ]  # fmt: skip
    assert second == [
        *start, "--config-dir", ".", "data.val_files=v", "c=3",
        f"actor_rollout_ref.model.path={out}/stage1/global_step_5/actor/{folder}",
        "+recipe=r1_searcher_stage2_7b", f"trainer.default_local_dir={out}/stage2",
    ]  # fmt: skip


def test_interrupted_run_goes_on_with_the_stage_that_was_not_through(trainer: dict[str, str]) -> None:
    assert run({**trainer, "FAIL_AT": "2"}).returncode == 3
    assert run(trainer).returncode == 0
    recipes = [word for call in calls(trainer) for word in call if word.startswith("+recipe=")]
    assert recipes == ["+recipe=r1_searcher_stage1_7b", *["+recipe=r1_searcher_stage2_7b"] * 2]
    assert run(trainer).returncode == 0
    assert len(calls(trainer)) == 3


def test_first_stage_without_exported_weights_stops_with_the_setting(trainer: dict[str, str]) -> None:
    done = run({**trainer, "WEIGHTS": "config.json"})
    assert done.returncode == 1
    assert "needs hf_model in actor_rollout_ref.actor.checkpoint.save_contents" in done.stderr
    assert len(calls(trainer)) == 1
