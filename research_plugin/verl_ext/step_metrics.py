"""veRL's replay buffers, with the numbers of `metrics.step_metrics` added to each step's.

Recipes name `replay_buffer` in ``trainer.v1.sampler.custom_sampler``: what a buffer's ``sample`` returns beside the
batch goes to veRL's tracker, in all three trainer modes (veRL 0.9.1, trainer/ppo/v1/trainer_base.py, _step_once). veRL
drops what it returns beside a validation batch; `trainers` asks for it through ``on_validation``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from research_plugin.metrics import step_metrics
from research_plugin.verl_ext import left_out

logger = logging.getLogger(__name__)


class _Measuring:
    """Wraps ``sample`` of the replay buffer that it is mixed into.

    Attributes:
        on_validation: Called with each batch of a validation, while its data is there, and the reasons of `LEFT_OUT`.
    """

    on_validation: Callable[[Any, list[str]], None] | None = None

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """Sample as veRL does; a training batch comes with its numbers, a validation that lost rollouts says so."""
        if partition_id == "val":
            # Training rollouts may go on meanwhile (async modes): what is theirs waits for the next training batch.
            prompts = (tq.kv_list("val") or {}).get("val", {})
            batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]
            if lost := left_out.take(prompts):
                logger.warning("validation is missing %d rollouts: %s", len(lost), dict(Counter(lost)))
            if self.on_validation is not None:
                self.on_validation(batch, lost)
            return batch, metrics
        batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]
        return batch, {**metrics, **step_metrics(batch_rollouts(batch), left_out.take())}


class SyncBuffer(_Measuring, ReplayBuffer):
    """For ``trainer_mode: sync``."""


class AsyncBuffer(_Measuring, ReplayBufferAsync):
    """For ``trainer_mode: colocate_async`` and ``separate_async``."""


def replay_buffer(*, sampler_kwargs: Any, **kwargs: Any) -> ReplayBuffer:
    """Return the buffer that veRL would have built itself for this trainer mode, measuring.

    Args:
        sampler_kwargs: ``trainer.v1.sampler.sampler_kwargs``: what veRL passes to its own buffers but not to a custom
            one (recipes/recipe/base/search.yaml fills it).
        **kwargs: what veRL passes to every custom sampler.
    """
    groups = sampler_kwargs.filter_groups
    build = SyncBuffer if kwargs["trainer_mode"] == "sync" else AsyncBuffer
    return build(
        **kwargs,
        sampler_kwargs=sampler_kwargs,
        poll_interval=sampler_kwargs.poll_interval,
        filter_groups_metric=str(groups.metric) if groups and groups.enable else None,
        sync_refill_failed_groups=sampler_kwargs.refill_failed_groups,
        train_batch_size=sampler_kwargs.train_batch_size,
        gen_batch_size=1,  # read only where groups are refilled, and veRL wants 1 there
        max_inflight_gen_batches=groups.max_inflight_gen_batches if groups else 1,
    )


def batch_rollouts(batch: Any) -> list[tuple[str, float | None, dict[str, Any]]]:
    """Return (prompt uid, reward, extra_fields) of every rollout in the batch."""
    if not batch.keys:
        return []
    data = tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=["rm_scores", "extra_fields"]
    )
    # A colocated reward model scores after sampling.
    rewards = [float(scores.sum()) for scores in data["rm_scores"]] if "rm_scores" in data else [None] * len(batch.keys)
    return list(zip(map(group_of, batch.keys), rewards, data.pop("extra_fields").tolist(), strict=True))


def group_of(key: str) -> str:
    """Return the uid of the prompt that a rollout's key in TransferQueue names."""
    return key.rsplit("_", 2)[0]  # {uid}_{session}_{index}
