"""The recipe of examples/own_dialect through veRL: it composes, and veRL loads the reward of its module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from composing import ROOT

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

REWARD = """
from omegaconf import OmegaConf
from verl.trainer.ppo.reward import get_custom_reward_fn
from research_plugin.config import AgentConfig, build_config
from research_plugin.protocol import get_dialect

config = OmegaConf.load("job.yaml")
custom = OmegaConf.to_container(config.actor_rollout_ref.rollout.custom)
print(get_dialect(build_config(AgentConfig, custom).protocol).name)
text = "[ask]a[/ask]\\n[shelf]\\nb\\n[/shelf]\\n[answer]Ada Quill[/answer]"
print(get_custom_reward_fn(config)("films", text, ["Ada Quill"], {})["score"])
"""


def test_own_dialect_composes_and_its_reward_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "own_dialect"
    shutil.copytree(ROOT / "examples" / "own_dialect", folder)
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    url = "actor_rollout_ref.rollout.custom.search.url=http://10.0.0.1:8000"
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", ".", "+recipe=my_dialect", url]

    def run(arguments: list[str]) -> str:
        done = subprocess.run(
            arguments,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    job = run([*command, "--cfg", "job"])
    (folder / "job.yaml").write_text(job)
    config = yaml.safe_load(job)
    assert config["actor_rollout_ref"]["rollout"]["custom"]["prompt"] == {"style": "instruct", "file": "my_prompt.txt"}
    assert (config["data"]["train_batch_size"], config["actor_rollout_ref"]["rollout"]["n"]) == (256, 5)
    assert run([sys.executable, "-c", REWARD]).split()[-2:] == ["library", "1.0"]
