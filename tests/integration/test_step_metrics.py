"""The numbers of a step on their way to veRL's tracker: real TransferQueue, veRL's buffers and aggregator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from composing import compose_config

pytestmark = pytest.mark.verl
pytest.importorskip("verl")
MODES = pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    """TransferQueue as the CPU recipe configures it, on a small Ray of its own."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        tq.init(OmegaConf.create({**compose_config("+recipe=research_tiny").transfer_queue, "enable": True}))
        yield tq
        tq.close()
    finally:
        ray.shutdown()


def build_buffer(mode: str, *overrides: str) -> Any:
    """The buffer that veRL's trainer builds for the composed recipe."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import PPOTrainer

    config = compose_config("+recipe=research_tiny", f"trainer.v1.trainer_mode={mode}", *overrides)
    OmegaConf.resolve(config.trainer)
    trainer = SimpleNamespace(config=config, trainer_mode=mode, _add_prompts_to_generate=print)
    trainer._resolve_filter_groups_metric = lambda: PPOTrainer._resolve_filter_groups_metric(trainer)  # type: ignore
    return PPOTrainer._build_replay_buffer(trainer)  # type: ignore[arg-type]


def put_group(tq: Any, partition: str, uid: str, rewards: list[float]) -> None:
    """A finished group as veRL's agent-loop worker leaves it; rollout i wrote 10 + i tokens and retrieved i."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    tq.kv_put(key=uid, partition_id=partition, tag={"is_prompt": True, "status": "finished", "global_steps": 1})
    for session, reward in enumerate(rewards):
        output = AgentLoopOutput(
            prompt_ids=[1],
            response_ids=[2] * (10 + session),
            response_mask=[1] * (10 + session),
            reward_score=reward,
            metrics=AgentLoopMetrics(),
            extra_fields={"generated_tokens": 10.0 + session, "retrieved_tokens": float(session)},
        )
        tq.kv_batch_put(
            keys=[f"{uid}_{session}_0"],
            fields=list_of_dict_to_tensordict([output.as_dict()]),
            tags=[{"status": "success", "global_steps": 1}],
            partition_id=partition,
        )


@MODES
def test_numbers_come_back_with_the_training_batch(queue: Any, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    from research_plugin.verl_ext import left_out

    put_group(queue, "train", "flat", [0.1, 0.1, 0.1])
    put_group(queue, "train", "spread", [0.1, 1.0])
    put_group(queue, "train", "survivor", [1.0])
    put_group(queue, "val", "question", [1.0])
    for uid, session, reason in (
        ("spread", 2, "search_failed"),
        ("survivor", 1, "search_failed"),
        ("survivor", 2, "aborted"),
        ("question", 1, "search_failed"),
    ):
        asyncio.run(left_out.record(uid, session, reason))
    buffer = build_buffer(mode)

    # Validation first, as before the first step: it takes what is its own and says so.
    with caplog.at_level(logging.WARNING):
        batch, metrics = buffer.sample(global_steps=1, partition_id="val", batch_size=1)
    assert (list(batch.keys), metrics) == (["question_0_0"], {})
    assert "validation is missing 1 rollouts: {'search_failed': 1}" in caplog.text

    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=3)
    assert sorted(batch.keys) == ["flat_0_0", "flat_1_0", "flat_2_0", "spread_0_0", "spread_1_0", "survivor_0_0"]
    assert metrics == {
        "rollout/generated_tokens/mean": pytest.approx(64 / 6),
        "rollout/retrieved_tokens/mean": pytest.approx(4 / 6),
        "rollout/groups_without_spread/share": 0.5,
        "rollout/search_failed/total": 2.0,
        "rollout/search_failed/share": pytest.approx(2 / 9),
        "rollout/aborted/total": 1.0,
        "rollout/aborted/share": pytest.approx(1 / 9),
        "rollout/no_room/total": 0.0,
        "rollout/no_room/share": 0.0,
    }
    queue.kv_clear(keys=batch.keys, partition_id="train")

    # What was counted is forgotten.
    put_group(queue, "train", "next", [0.5])
    batch, metrics = buffer.sample(global_steps=2, partition_id="train", batch_size=1)
    assert metrics["rollout/search_failed/total"] == 0.0
    queue.kv_clear(keys=batch.keys, partition_id="train")


@MODES
@pytest.mark.parametrize("filtered", ["true", "false"], ids=["groups-filtered", "plain"])
@pytest.mark.parametrize("refilled", ["true", "false"], ids=["failed-refilled", "failed-kept"])
def test_buffer_is_set_up_as_verls_own(mode: str, filtered: str, refilled: str) -> None:
    from research_plugin.verl_ext.step_metrics import AsyncBuffer, SyncBuffer

    overrides = (
        f"algorithm.filter_groups.enable={filtered}",
        "algorithm.filter_groups.metric=f1",
        "algorithm.filter_groups.max_inflight_gen_batches=3",
        f"trainer.v1.sampler.sync_refill_failed_groups={refilled}",
        "trainer.v1.sampler.max_off_policy_threshold=5",
    )
    ours, stock = (
        build_buffer(mode, *overrides),
        build_buffer(mode, *overrides, "trainer.v1.sampler.custom_sampler.path=null"),
    )
    assert type(ours) is (SyncBuffer if mode == "sync" else AsyncBuffer)
    assert type(stock) is type(ours).__mro__[2]
    assert (ours.poll_interval, stock.poll_interval) == (0.05, 2.0)
    # These three are read only by the sync buffer, and only where groups are filtered or refilled.
    unread = {"train_batch_size", "gen_batch_size", "max_inflight_gen_batches"}
    if mode == "sync" and "true" in (filtered, refilled):
        unread = set() if filtered == "true" else {"max_inflight_gen_batches"}
    skipped = {"poll_interval", "sampler_kwargs", *unread}
    assert {k: v for k, v in vars(ours).items() if k not in skipped} == {
        k: v for k, v in vars(stock).items() if k not in skipped
    }


def test_aggregator_adds_up_totals_and_averages_the_rest() -> None:
    """separate_async samples several times a step (trainer/ppo/v1/utils.py, MetricsAggregator goes by names)."""
    from verl.trainer.ppo.v1.utils import MetricsAggregator

    from research_plugin.metrics import step_metrics

    aggregator = MetricsAggregator()
    for tokens in (4.0, 8.0):
        fields = {"generated_tokens": tokens, "retrieved_tokens": tokens}
        rollouts = [("a", reward, fields) for reward in (0.0, tokens - 4)]
        aggregator.add_step_metrics(step_metrics(rollouts, ["search_failed", "aborted", "no_room"]), sample_count=2)
    values = aggregator.get_aggregated_metrics()
    for name, value in values.items():
        expected = {"mean": 6.0, "total": 2.0, "share": 0.5 if "spread" in name else 0.2}[name.rsplit("/")[-1]]
        assert value == pytest.approx(expected), name
    assert len(values) == 9
