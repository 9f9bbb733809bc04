"""Megatron-Core 0.16.1 and mbridge 0.15.1 on a CPU: what veRL 0.9.1's Megatron engine needs besides an accelerator.

For tests only. Each function names the lines it answers to; `apply` runs them all. A training worker imports this
module through ``actor_rollout_ref.model.external_lib``. None of it touches a loss, a mask, a gradient or an optimizer
step: those stay Megatron's and veRL's own.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

OVERRIDES = {
    "transformer_impl": "local",
    "use_cpu_initialization": True,
    "masked_softmax_fusion": False,
    "attention_backend": "unfused",
    "sequence_parallel": False,
}
"""``megatron.override_transformer_config``: Megatron's own settings for its plain PyTorch layers."""


def apply() -> None:
    """Apply every shim; a second call changes nothing."""
    import torch

    if getattr(torch.Tensor.type, "says_cuda", False):
        return
    _cuda_calls()
    _cuda_device_strings()
    _cuda_tensor_types()
    _random_states()
    _local_layers()
    _attention_mask()
    _engine()


def _cuda_calls() -> None:
    """mbridge/core/util.py:151, megatron/core/pipeline_parallel/p2p_communication.py:242 and others."""
    import torch

    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *args: None
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]


def _cuda_device_strings() -> None:
    """``device="cuda"`` in optimizer/optimizer.py:485, optimizer/clip_grads.py:90, transformer/utils.py:35 and others.

    These modules get a ``torch`` of their own; for all others it stays as it is.
    """
    import torch
    from megatron.core import utils as core_utils
    from megatron.core.optimizer import clip_grads, optimizer
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer import utils

    def on_cpu(function: Any) -> Any:
        @functools.wraps(function)
        def build(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            return function(*args, **kwargs)

        return build

    own = ModuleType("torch")
    own.__getattr__ = lambda name: getattr(torch, name)  # type: ignore[method-assign]
    for name in ("tensor", "zeros", "ones", "empty"):
        setattr(own, name, on_cpu(getattr(torch, name)))
    for module in (core_utils, clip_grads, optimizer, schedules, utils):
        module.torch = own


def _cuda_tensor_types() -> None:
    """``tensor.type() == "torch.cuda..."``: megatron/core/optimizer/optimizer.py:671, distrib_optimizer.py:361."""
    import torch

    original = torch.Tensor.type

    def type_of(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    type_of.says_cuda = True  # type: ignore[attr-defined]
    torch.Tensor.type = type_of  # type: ignore[method-assign,assignment]


def _random_states() -> None:
    """megatron/core/tensor_parallel/random.py:235."""
    import torch
    from megatron.core.tensor_parallel import random

    torch.cuda.get_rng_state = lambda *args: torch.get_rng_state()  # type: ignore[assignment]
    torch.cuda.manual_seed = torch.manual_seed  # type: ignore[assignment]
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


def _local_layers() -> None:
    """Layers without TransformerEngine, and HF names for their separate norms: mbridge/core/llm_bridge.py:149."""
    from mbridge.core import llm_bridge
    from mbridge.models.qwen2 import Qwen2Bridge

    original = llm_bridge.get_gpt_decoder_block_spec

    @functools.wraps(original)
    def spec(config: Any, use_transformer_engine: bool, **kwargs: Any) -> Any:
        return original(config, use_transformer_engine=False, **kwargs)

    assert "vp_stage" in inspect.signature(spec).parameters  # mbridge looks for it
    llm_bridge.get_gpt_decoder_block_spec = spec
    layer = "model.layers.{layer_number}."
    Qwen2Bridge._OTHER_MAPPING = {"input_layernorm.weight": [f"{layer}input_layernorm.weight"]}
    Qwen2Bridge._MLP_MAPPING = {
        "pre_mlp_layernorm.weight": [f"{layer}post_attention_layernorm.weight"],
        **Qwen2Bridge._MLP_MAPPING,
    }


def _attention_mask() -> None:
    """veRL passes [batch, length], True on tokens; transformer/dot_product_attention.py has no use for it.

    Rows are padded on the right, so the causal mask that the layer makes itself hides the padding from every token.
    """
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    original = DotProductAttention.forward

    @functools.wraps(original)
    def forward(self: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, query, key, value, None, *args, **kwargs)

    DotProductAttention.forward = forward


def _engine() -> None:
    """veRL registers its Megatron engine for CUDA only (workers/engine/megatron/transformer_impl.py)."""
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.megatron import MegatronEngineWithLMHead

    EngineRegistry.register(model_type="language_model", backend="megatron", device="cpu")(MegatronEngineWithLMHead)
