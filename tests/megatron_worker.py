"""One process of a Megatron engine on the CPU; `test_megatron_engine.py` starts one or two of them.

    python megatron_worker.py RANK WORLD PORT TENSOR_PARALLEL PIPELINE_PARALLEL OUTPUT

Rolls out a scripted search, trains veRL's engine on it and writes what the test judges as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ["VERL_PLATFORM"] = "cpu"  # read while veRL is imported

import megatron_shims
import torch
import verl  # noqa: F401  (loads the plugin, which registers the CPU platform)

from research_plugin.document import Document
from research_plugin.plugin import data_file
from research_plugin.protocol import RESEARCH
from research_plugin.rollout import Rollout
from research_plugin.search_loop import Generation, Limits, run_search_loop
from research_plugin.tokens import HFCodec

END = 2
SCRIPTS = (
    ["<search> who is it </search>", "<answer> It is Torvale. </answer>"],
    ["<answer> No search. </answer>"],
    ["<search> who </search>", "<search> where </search>", "<answer> Nim. </answer>"],
    ["<search> where is that </search>", "no answer " * 20],
)
FIELDS = ("advantages", "old_log_probs", "ref_log_prob")
Values = dict[str, list[torch.Tensor]]


def roll_out(codec: HFCodec, turns: list[str]) -> Rollout:
    """Every turn but those with a query ends with the end token, if it fits."""
    script = iter(turns)

    async def generate(context: list[int], max_tokens: int) -> Generation:
        text = next(script)
        ids = codec.encode(text) + [END] * ("</search>" not in text)
        return Generation(ids[:max_tokens], [-0.5] * len(ids[:max_tokens]))

    async def search(query: str) -> list[Document]:
        return [Document("d", f"{query} - in the town of Ost, in the land of Nim.")]

    limits = Limits(response_length=110)
    loop = run_search_loop(
        codec.encode("Who?"), generate=generate, search=search, codec=codec, dialect=RESEARCH, limits=limits
    )
    return asyncio.run(loop).rollout


def build_engine(tensor_parallel: int, pipeline_parallel: int) -> Any:
    """veRL's registered Megatron engine over the tiny model."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine.base import EngineRegistry

    overrides = dict(megatron_shims.OVERRIDES)
    if pipeline_parallel > 1:
        overrides["num_layers_in_first_pipeline_stage"] = 2  # of three
    engine = EngineRegistry.new(
        "language_model",
        "megatron",
        model_config=HFModelConfig(path=data_file("tiny/model"), use_remove_padding=False),
        engine_config=McoreEngineConfig(
            vanilla_mbridge=True,
            use_remove_padding=False,
            sequence_parallel=False,
            tensor_model_parallel_size=tensor_parallel,
            pipeline_model_parallel_size=pipeline_parallel,
            override_transformer_config=overrides,
        ),
        optimizer_config=McoreOptimizerConfig(lr=1e-3, total_training_steps=4),
        checkpoint_config=CheckpointConfig(save_contents=["model"]),
    )
    engine.initialize()
    return engine


def batch(rollouts: list[Rollout], values: Values, masked: bool = True) -> Any:
    """The tensors that veRL's trainer hands to the engine, two rollouts a micro-batch."""
    from verl.utils import tensordict_utils as tu

    def nested(rows: list[Any]) -> Any:
        return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)

    masks = [r.response_mask if masked else [1] * len(r.response_ids) for r in rollouts]
    data = {
        "prompts": nested([r.prompt_ids for r in rollouts]),
        "responses": nested([r.response_ids for r in rollouts]),
        "input_ids": nested([r.context_ids for r in rollouts]),
        "position_ids": nested([list(range(len(r.context_ids))) for r in rollouts]),
        "response_mask": nested(masks),
        "loss_mask": nested(masks),
        **{name: nested(rows) for name, rows in values.items()},
    }
    settings = {
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": 2,
        "use_fused_kernels": False,
        "calculate_entropy": True,
        "temperature": 1.0,
        "global_batch_size": len(rollouts),
    }
    return tu.get_tensordict(data, non_tensor_dict=settings)


def log_probs(engine: Any, rollouts: list[Rollout]) -> list[torch.Tensor] | None:
    """Of every response token, as the engine computes them; None on ranks without outputs."""
    with engine.eval_mode():
        output = engine.infer_batch(batch(rollouts, {}))
    if not engine.is_mp_src_rank_with_outputs():
        return None
    rows = output["model_output"]["log_probs"].unbind()
    return [row[len(r.prompt_ids) - 1 : -1].float() for r, row in zip(rollouts, rows, strict=True)]


def hf_log_probs(rollouts: list[Rollout]) -> list[torch.Tensor]:
    """The same by transformers, in single precision."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(data_file("tiny/model"), dtype=torch.float32)
    found = []
    for rollout in rollouts:
        ids = torch.tensor(rollout.context_ids)
        with torch.no_grad():
            scores = model(ids.unsqueeze(0)).logits[0].log_softmax(-1)
        picked = scores[:-1].gather(1, ids[1:].unsqueeze(1)).squeeze(1)
        found.append(picked[len(rollout.prompt_ids) - 1 :])
    return found


def loss_function() -> Any:
    """veRL's own actor loss, with policy, KL and entropy terms."""
    from verl.workers.config import McoreActorConfig
    from verl.workers.utils.losses import ppo_loss

    config = McoreActorConfig(
        strategy="megatron",
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=2,
        entropy_coeff=0.01,
        use_kl_loss=True,
        kl_loss_coef=0.1,
    )
    return partial(ppo_loss, config=config)


def gradients(engine: Any, data: Any) -> list[torch.Tensor]:
    """Of one forward and backward pass over all micro-batches, as Megatron's optimizer would read them."""
    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(data, loss_function(), forward_only=False)
        return [p.main_grad.clone() for module in engine.module for p in module.parameters()]


def shifted(values: Values, field: str, places: list[tuple[int, int]], by: float) -> Values:
    changed = {name: [row.clone() for row in rows] for name, rows in values.items()}
    for row, position in places:
        changed[field][row][position] += by
    return changed


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def main(rank: int, world: int, port: int, tensor_parallel: int, pipeline_parallel: int, output: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    megatron_shims.apply()
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    engine = build_engine(tensor_parallel, pipeline_parallel)
    codec = HFCodec(AutoTokenizer.from_pretrained(data_file("tiny/model")), frozenset({END}))
    rollouts = [roll_out(codec, list(turns)) for turns in SCRIPTS]
    places = [(r, t) for r, rollout in enumerate(rollouts) for t in range(len(rollout.response_ids))]
    retrieved = [(r, t) for r, t in places if not rollouts[r].response_mask[t]]
    expected = hf_log_probs(rollouts)
    noise = torch.Generator().manual_seed(1)
    values = {
        "advantages": [torch.full_like(row, (-1.0) ** r) for r, row in enumerate(expected)],
        # Inside the clip range, so that every token has a gradient.
        "old_log_probs": [row + 0.02 * torch.randn(row.shape, generator=noise) for row in expected],
        "ref_log_prob": [row + 0.2 * torch.randn(row.shape, generator=noise) for row in expected],
    }
    results: dict[str, Any] = {"masks": [rollout.response_mask for rollout in rollouts]}
    found = log_probs(engine, rollouts)
    if found is not None:
        results["log_prob_error"] = float((torch.cat(found) - torch.cat(expected)).abs().mean())

    before = gradients(engine, batch(rollouts, values))
    results["norm"] = float(sum(g.square().sum() for g in before))
    results["repeatable"] = same(before, gradients(engine, batch(rollouts, values)))
    results["same_under_retrieved"] = {
        f"{field} {by}": same(before, gradients(engine, batch(rollouts, shifted(values, field, retrieved, by))))
        for field in FIELDS
        for by in (3.0, -40.0)
    }
    # Row 0: its first token, the last one before the passage, the first one after it, the end token.
    mask = rollouts[0].response_mask
    chosen = [0, mask.index(0) - 1, len(mask) - mask[::-1].index(0), len(mask) - 1]
    results["same_under_policy"] = {
        f"{field} {t}": same(before, gradients(engine, batch(rollouts, shifted(values, field, [(0, t)], 0.1))))
        for field in FIELDS
        for t in chosen
    }
    unmasked = gradients(engine, batch(rollouts, values, masked=False))
    tampered = gradients(engine, batch(rollouts, shifted(values, "advantages", retrieved, 3.0), masked=False))
    results["same_without_mask"] = same(unmasked, tampered)

    exported = {name: tensor.clone() for name, tensor in engine.get_per_tensor_param()[0]}
    with engine.train_mode():
        trained = engine.train_batch(batch(rollouts, values), loss_function())
    if engine.is_mp_src_rank_with_outputs():
        results["grad_norm"] = float(trained["metrics"]["grad_norm"])
    after = {name: tensor.clone() for name, tensor in engine.get_per_tensor_param()[0]}
    results["shapes"] = {name: list(tensor.shape) for name, tensor in exported.items()}
    results["updated"] = sorted(name for name in after if not torch.equal(after[name], exported[name]))
    engine.save_checkpoint(str(output.parent / "global_step_1" / "actor"))
    if rank == 0:
        save_file({name: tensor.contiguous() for name, tensor in after.items()}, output.parent / "after.safetensors")
    output.write_text(json.dumps(results))
    torch.distributed.barrier()


if __name__ == "__main__":
    *numbers, path = sys.argv[1:]
    main(*map(int, numbers), Path(path))  # type: ignore[arg-type]
