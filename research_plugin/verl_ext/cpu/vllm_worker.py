"""Weight updates for vLLM's CPU worker; recipes name it in ``rollout.engine_kwargs.vllm.worker_extension_cls``."""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead


class CPUWorkerExtension(vLLMColocateWorkerExtension):
    """veRL's worker extension with vLLM's own reload instead of ``model.load_weights``.

    vLLM's CPU backend repacks linear weights once they are loaded, after which parameters have no weight loader
    (vllm/model_executor/layers/linear.py); ``model_runner.reload_weights`` (vllm/v1/worker/gpu_model_runner.py)
    restores the layers first. It wants all tensors of the model in one go.
    """

    def update_weights_from_ipc(
        self, peft_config: dict[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Receive every bucket, then reload the model; LoRA adapters are added to it as on a GPU.

        Base weights of a LoRA model, whose names ("base_layer") vLLM's reload does not know, do not come: the preflight
        refuses the setting that would have them sent (`research_plugin.checks`).
        """
        self.device = self.device or torch.device("cpu")
        if peft_config:
            super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
            return
        weights: list[tuple[str, torch.Tensor]] = []

        def keep(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            # Cloned: the bucket is a view of shared memory that cannot be closed while a view is alive.
            weights.extend((name, tensor.clone()) for name, tensor in bucket)

        receiver = BucketedWeightReceiver(zmq_handle=self._get_zmq_handle(), device=self.device, use_shm=use_shm)
        receiver.receive_weights(on_bucket_received=keep)
        self.model_runner.reload_weights(weights_iterator=iter(weights))
        # A head tied to the embedding receives no weight of its own, so the reload keeps the packed copy of its old
        # one (vocab_parallel_embedding.py, process_weights_after_loading): the logits would never change.
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
