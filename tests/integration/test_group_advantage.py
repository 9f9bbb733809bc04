"""Advantages of rollouts with observations, and what stock veRL does with rollouts that are left out.

The middle part fixes what veRL 0.9.1 does when groups shrink or vanish, so that a new version that changes it is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.verl
pytest.importorskip("verl")

# Reward 1, 0.5, 0 and 0.1: mean 0.4, squared distances 0.36 + 0.01 + 0.16 + 0.09 = 0.62, spread sqrt(0.62 / 3).
REWARDS = [1.0, 0.5, 0.0, 0.1]
SPREAD = (0.62 / 3) ** 0.5
ADVANTAGES = [0.6 / SPREAD, 0.1 / SPREAD, -0.4 / SPREAD, -0.3 / SPREAD]


def advantages(rows: list[tuple[str, float, list[int]]], estimator: str = "grpo", **kwargs: Any) -> Any:
    """veRL's advantages for rows of (key ``uid_session_index``, reward, response_mask)."""
    import numpy as np
    import torch
    from verl import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    masks = torch.tensor([mask for _, _, mask in rows])
    rewards = torch.zeros(masks.shape)
    rewards[:, -1] = torch.tensor([reward for _, reward, _ in rows])
    data = DataProto.from_dict(
        tensors={"response_mask": masks, "token_level_rewards": rewards},
        non_tensors={"uid": np.array([key.split("_")[0] for key, _, _ in rows], dtype=object)},
    )
    keys = [key for key, _, _ in rows]
    return compute_advantage_for_multi_trajectories(data, keys, AdvantageEstimator(estimator), **kwargs).batch


def test_grpo_advantage_stands_on_policy_tokens_only() -> None:
    result = advantages([(f"a_{i}_0", reward, [1, 0, 1]) for i, reward in enumerate(REWARDS)])["advantages"]
    for row, expected in zip(result.tolist(), ADVANTAGES, strict=True):
        assert row == pytest.approx([expected, 0.0, expected], rel=1e-4)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_group_without_reward_spread_has_zero_advantage(reward: float) -> None:
    result = advantages([(f"a_{i}_0", reward, [1, 0, 1]) for i in range(5)])["advantages"]
    assert result.tolist() == [[0.0, 0.0, 0.0]] * 5


def test_group_without_reward_spread_has_a_finite_zero_loss() -> None:
    import torch
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import FSDPActorConfig

    rows = [(f"a_{i}_0", 1.0, [1, 0, 1]) for i in range(2)]
    log_prob = torch.full((2, 3), -1.0, requires_grad=True)
    loss, _ = compute_policy_loss_vanilla(
        torch.full((2, 3), -1.1),
        log_prob,
        advantages(rows)["advantages"],
        torch.tensor([mask for _, _, mask in rows]),
        "token-mean",
        FSDPActorConfig(strategy="fsdp2", rollout_n=2, ppo_micro_batch_size_per_gpu=2),
    )
    loss.backward()
    assert loss.item() == 0.0
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [[0.0] * 3] * 2


def test_left_out_rollout_changes_neither_mean_nor_spread() -> None:
    """Session 2 of 5 failed. Had it been scored 0 instead, every advantage of its siblings would differ."""
    sessions = [0, 1, 3, 4]
    rows = [(f"a_{s}_0", reward, [1, 0, 1]) for s, reward in zip(sessions, REWARDS, strict=True)]
    others = [(f"b_{s}_0", reward, [1, 1, 1]) for s, reward in enumerate([1.0, 1.0, 0.0, 0.0, 0.0])]
    result = advantages(rows + others)["advantages"]
    assert result[:4, 0].tolist() == pytest.approx(ADVANTAGES, rel=1e-4)
    scored = advantages([*rows, ("a_2_0", 0.0, [0, 0, 0])])["advantages"]
    assert abs(scored[0, 0].item() - ADVANTAGES[0]) > 0.1


def test_padding_that_fills_the_batch_changes_no_group() -> None:
    """trainer/ppo/padding_utils.py tops the batch up with rows of their own uid, mask 0 and reward 0."""
    rows = [(f"a_{i}_0", reward, [1, 0, 1]) for i, reward in enumerate(REWARDS)]
    padded = advantages([*rows, ("pad7_0_0", 0.0, [0, 0, 0]), ("pad7_1_0", 0.0, [0, 0, 0])])["advantages"]
    assert padded[:4, 0].tolist() == pytest.approx(ADVANTAGES, rel=1e-4)
    assert not padded[4:].any()


def test_last_survivor_of_a_group_has_its_reward_as_advantage() -> None:
    """veRL's rule for groups of one (core_algos.py): mean 0, spread 1. With rewards in [0, 1] it is at most 1."""
    result = advantages([("a_3_0", 0.7, [1, 0, 1])])["advantages"]
    assert result[0].tolist() == pytest.approx([0.7, 0.0, 0.7], rel=1e-4)


def test_reinforce_plus_plus_returns_carry_across_an_observation() -> None:
    from verl.trainer.config import AlgoConfig

    result = advantages([("a_0_0", 1.0, [1, 0, 1])], "reinforce_plus_plus", config=AlgoConfig(gamma=0.5))
    assert result["returns"].tolist() == [[0.5, 0.0, 1.0]]


class Queue:
    """TransferQueue's calls that the replay buffer makes."""

    def __init__(self, partition: str, prompts: dict[str, str], trajectories: list[str]) -> None:
        """``prompts``: uid -> status; ``trajectories``: keys of the rollouts that came back."""
        tags: dict[str, Any] = {
            uid: {"is_prompt": True, "status": status, "global_steps": 1} for uid, status in prompts.items()
        }
        tags |= {key: {"status": "success", "seq_len": 9} for key in trajectories}
        self.data = {partition: tags}

    def kv_list(self) -> dict[str, dict[str, Any]]:
        return self.data

    def kv_clear(self, partition_id: str, keys: list[str]) -> None:
        for key in keys:
            self.data[partition_id].pop(key, None)


Sample = Callable[..., list[str]]


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Sample:
    """Draw a batch from veRL's replay buffer; return the trajectory keys in it."""
    from verl.trainer.ppo.v1 import replay_buffer

    def draw(
        prompts: dict[str, str], trajectories: list[str], *, partition: str = "train", mode: str = "sync", **kwargs: Any
    ) -> list[str]:
        from omegaconf import OmegaConf

        monkeypatch.setattr(replay_buffer, "tq", Queue(partition, prompts, trajectories))
        buffer = (replay_buffer.ReplayBuffer if mode == "sync" else replay_buffer.ReplayBufferAsync)(
            mode, OmegaConf.create({}), None, "drop", OmegaConf.create({}), 0.0, **kwargs
        )
        batch, _ = buffer.sample(global_steps=1, partition_id=partition, batch_size=len(prompts))
        return list(batch.keys)

    return draw


BOTH = pytest.mark.parametrize("mode", ["sync", "colocate_async"])


@BOTH
def test_group_that_lost_some_or_all_rollouts_only_shrinks_the_batch(sample: Sample, mode: str) -> None:
    kept = ["a_0_0", "a_2_0", "c_0_0", "c_1_0", "c_2_0"]
    assert sample({"a": "finished", "b": "finished", "c": "finished"}, kept, mode=mode) == kept


def test_training_batch_without_any_rollout_stops_the_run(sample: Sample) -> None:
    with pytest.raises(RuntimeError, match="no materializable trajectories"):
        sample({"a": "finished", "b": "finished"}, [])


def test_async_training_batch_without_any_rollout_is_handed_on_empty(sample: Sample) -> None:
    """And fails later, on an assertion that names no cause."""
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    assert sample({"a": "finished", "b": "finished"}, [], mode="colocate_async") == []
    with pytest.raises(AssertionError, match="number of items"):
        get_seqlen_balanced_partitions([], k_partitions=1, equal_size=True)


def test_validation_batch_without_any_rollout_is_handed_on_empty(sample: Sample) -> None:
    """And fails later: TransferQueue refuses an empty list of keys."""
    assert sample({"a": "finished", "b": "finished"}, [], partition="val") == []


def test_sync_trainer_uses_what_came_back_of_a_failed_group(sample: Sample) -> None:
    """Status "failure" is what an exception in one of the group's rollouts leaves."""
    assert sample({"a": "failure", "b": "finished"}, ["a_1_0", "b_0_0"]) == ["a_1_0", "b_0_0"]


def test_async_trainer_replaces_a_failed_group(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.v1 import replay_buffer

    def refill(count: int) -> None:
        assert count == 1
        prompt = {"is_prompt": True, "status": "finished", "global_steps": 1}
        replay_buffer.tq.data["train"] |= {"c": prompt, "c_0_0": {"status": "success"}}

    prompts = {"a": "failure", "b": "finished"}
    assert sample(prompts, ["a_1_0", "b_0_0"], mode="colocate_async", refill_fn=refill) == ["b_0_0", "c_0_0"]


def test_group_filter_refuses_a_finished_group_without_rollouts(sample: Sample) -> None:
    """algorithm.filter_groups (DAPO) wants a reward from every finished group."""
    with pytest.raises(RuntimeError, match="missing DAPO metric 'reward'"):
        sample(
            {"a": "finished"}, [], filter_groups_metric="reward", refill_fn=print, train_batch_size=1, gen_batch_size=1
        )


def test_left_out_validation_rollout_leaves_the_mean_of_the_others() -> None:
    """No key of our reward is called "acc", the one for which veRL would count the missing rollout as 0."""
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    expected = {("tiny", uid): 1 for uid in "abc"}
    infos: dict[str, list[Any]] = {"reward": [1.0, 0.5], "f1": [1.0, 0.5]}
    metrics = process_validation_metrics(["tiny"] * 2, ["a", "b"], infos, expected_acc_counts=expected)["tiny"]
    assert metrics["reward"] == {"mean@1": 0.75}
    infos["acc"] = [1.0, 0.5]
    metrics = process_validation_metrics(["tiny"] * 2, ["a", "b"], infos, expected_acc_counts=expected)["tiny"]
    assert metrics["acc"]["mean@1"] == 0.5
    assert metrics["acc_success_only"]["mean@1"] == 0.75


def test_our_reward_has_no_key_that_verl_treats_as_accuracy() -> None:
    from research_plugin.rewards import compute_score

    assert "acc" not in compute_score("tiny", "<answer> \\boxed{Nim} </answer>", ["Nim"])
