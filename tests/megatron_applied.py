"""Applies the shims where it is imported: the ``actor_rollout_ref.model.external_lib`` of a Megatron run on a CPU."""

import megatron_shims

megatron_shims.apply()
