"""veRL's FSDP2 training engine for the CPU, registered when a recipe's ``model.external_lib`` imports this module."""

from __future__ import annotations

from typing import Any

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from research_plugin.errors import ConfigError


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithLMHead(FSDPEngineWithLMHead):
    """FSDP2 over gloo. FSDP1 moves parameters to an accelerator when it starts, so it is refused."""

    def _build_fsdp_module(self, module: Any) -> Any:
        """Build the module without an offload policy.

        A forward-only model (the reference) always gets CPUOffloadPolicy(pin_memory=True) in veRL 0.9.1
        (workers/engine/fsdp/transformer_impl.py, _build_fsdp_module); pinning memory needs an accelerator, and its
        parameters are on the CPU already.
        """
        config = self.engine_config
        if config.strategy != "fsdp2":
            raise ConfigError(
                f"trainer.device=cpu needs strategy fsdp2, but actor_rollout_ref.*.strategy={config.strategy!r}"
            )
        forward_only, config.forward_only = config.forward_only, False
        try:
            return super()._build_fsdp_module(module)
        finally:
            config.forward_only = forward_only
