"""veRL's asynchronous trainers with our loop: `colocate_async` trains on a CPU, `separate_async` is built.

In colocate_async generation goes on over a weight update: veRL aborts what is in flight, hands the new weights over and
lets its client ask for the rest. The run is Search-R1's: its dialect, with notices, and its reward.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from composing import CUSTOM, clean_environment, compose_config
from tiny_speaker import write_speaker

from research_plugin.checks import check_config
from research_plugin.protocol import SEARCH_R1
from research_plugin.reports.read_records import RunRecords

pytest.importorskip("verl")
pytestmark = [pytest.mark.verl]

STEPS = 2
SEPARATE = (
    "trainer.v1.trainer_mode=separate_async",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.rollout.nnodes=2",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
)


@pytest.mark.e2e
def test_colocate_async_trains_ahead_of_the_weights(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    overrides = (
        "+recipe=research_tiny",
        *write_speaker(SEARCH_R1, tmp_path),
        "reward.custom_reward_function.reward_kwargs={method:search_r1,rules:format}",
        f"{CUSTOM}.max_turn_tokens=40",
        "trainer.v1.trainer_mode=colocate_async",
        f"trainer.total_training_steps={STEPS}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.default_local_dir=run",
    )
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-u", "-m", "verl.trainer.main_ppo", *overrides],
            cwd=tmp_path, env=clean_environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, timeout=900,
        )  # fmt: skip
    assert done.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-4000:]

    rows = [json.loads(line)["data"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "actor/grad_norm" in row]
    assert len(steps) == STEPS
    for row in steps:
        # No token is lost or counted twice where a rollout was resumed.
        tokens = row["rollout/generated_tokens/mean"], row["rollout/retrieved_tokens/mean"]
        assert min(tokens) > 0
        assert sum(tokens) == pytest.approx(row["response_length/mean"], rel=1e-4)
        assert row["rollout/aborted/total"] == 0.0  # resumed, not left out
        assert 0.0 <= row["rollout/groups_without_spread/share"] <= 1.0
    # Step 1 has one weight version: engine and trainer agree. The rollouts of step 2 were begun with the old one; how
    # many were still under way at the update, and ended with the new one, is a matter of time.
    assert steps[0]["training/rollout_probs_diff_max"] < 1e-3 < steps[1]["training/rollout_probs_diff_max"]
    assert steps[1]["training/off_policy/trajectory_spans/max"] in (1, 2)
    dumped = [json.loads(line) for line in (tmp_path / "run" / "rollouts" / "2.jsonl").read_text().splitlines()]
    scores = {round(row["score"], 4) for row in dumped}
    assert scores <= {0.0, 0.1, 0.2, 0.8, 1.0} and max(scores) > 0
    own = [row["output"].replace(SEARCH_R1.invalid_notice, "~") for row in dumped]
    assert any("~" in text for text in own)
    after = [text for row in own for text in row.split("</search>")[1:] if text]
    assert after
    assert all(text.startswith("\n\n<information>") for text in after)
    # The closing tag of an answer ends the rollout.
    assert any("</answer>" in text for text in own)
    assert all(text.endswith("</answer>") for text in own if "</answer>" in text)
    records = [record for _, record in RunRecords(tmp_path / "run").new() if record.step == STEPS]
    assert len(records) == 16 * 5
    assert all(record.tokens is not None and record.advantage is not None for record in records)


@pytest.mark.parametrize("overrides", [(), ("trainer.v1.separate_async.hybrid_rollout.enable_switch=true",)])
def test_separate_async_is_accepted_by_its_trainer(overrides: tuple[str, ...]) -> None:
    """Its constructor checks sizes, resource pools, weight transfer and what a replay buffer has to offer."""
    trainer: Any = separate_trainer(*SEPARATE, *overrides)
    assert type(trainer.replay_buffer).__name__ == "AsyncBuffer"


@pytest.mark.parametrize("left", SEPARATE[1:], ids=lambda override: override.split("=")[0].rsplit(".", 1)[-1])
def test_separate_async_needs_each_of_its_settings(left: str) -> None:
    """What docs/engines.md lists is what it takes."""
    overrides = [override for override in SEPARATE if override != left]
    with pytest.raises(AssertionError):
        separate_trainer(*overrides)
    # Our preflight says so before Ray starts.
    assert len(separate_problems(*overrides)) == len(separate_problems(*SEPARATE)) + 1


def separate_trainer(*overrides: str) -> Any:
    from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

    return PPOTrainerSeparateAsync(compose_config("+recipe=research_7b", *overrides))


def separate_problems(*overrides: str) -> list[str]:
    from omegaconf import OmegaConf

    return check_config(OmegaConf.to_container(compose_config("+recipe=research_7b", *overrides), resolve=True))[1]
