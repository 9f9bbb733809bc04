"""veRL's three PPO trainers, which also write rollout records and warn when a run starts to collapse.

veRL knows a trainer by the name in ``trainer.v1.trainer_mode`` once its module is imported, which no config can ask
for. The preflight therefore turns the name into ``${research_plugin_trainer:NAME}``: veRL resolves it in the process
that is about to look the trainer up (veRL 0.9.1, trainer/main_ppo.py, TaskRunnerV1.run), and the resolver imports this
module there and nowhere else.
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)

from research_plugin.verl_ext.journal import Journal


class Journaling:
    """Mixed into a trainer: tells its journal of each step and validation while their data is in TransferQueue."""

    mode: str

    def __init__(self, config: Any) -> None:
        # Everything else in veRL goes by the name of its own trainer.
        config.trainer.v1.trainer_mode = self.mode
        super().__init__(config)

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()
        self.journal = Journal(self.config, self.tokenizer)
        self.replay_buffer.on_validation = self.journal.add_validation

    def _validate(self) -> dict[str, float]:
        return {**super()._validate(), **self.journal.end_validation(self.global_steps)}

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        self.journal.end_step(batch, metrics, self.global_steps)

    def _shutdown_dump_executor(self) -> None:
        super()._shutdown_dump_executor()
        self.journal.close()


@register_trainer("research_sync")
class SyncTrainer(Journaling, PPOTrainerSync):
    """``sync``."""

    mode = "sync"


@register_trainer("research_colocate_async")
class ColocateAsyncTrainer(Journaling, PPOTrainerColocateAsync):
    """``colocate_async``."""

    mode = "colocate_async"


@register_trainer("research_separate_async")
class SeparateAsyncTrainer(Journaling, PPOTrainerSeparateAsync):
    """``separate_async``."""

    mode = "separate_async"
