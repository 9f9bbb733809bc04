"""One process of a sharded FSDP2 engine on the CPU that saves a checkpoint of the tiny model.

    python fsdp_worker.py RANK WORLD PORT FOLDER

`test_checkpoint_export.py` starts them.
"""

from __future__ import annotations

import os
import sys

os.environ["VERL_PLATFORM"] = "cpu"  # read while veRL is imported

import torch
import verl  # noqa: F401  (loads the plugin, which registers the CPU platform)

from research_plugin.plugin import data_file


def main(rank: int, world: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.base import EngineRegistry

    import research_plugin.verl_ext.cpu.engine  # noqa: F401  (registers the engine)

    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    model = HFModelConfig(
        path=data_file("tiny/model"), use_remove_padding=False, override_config={"attn_implementation": "sdpa"}
    )
    engine = EngineRegistry.new(
        "language_model",
        "fsdp2",
        model_config=model,
        engine_config=FSDPEngineConfig(strategy="fsdp2", model_dtype="fp32", dtype="float32", mixed_precision=fp32),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=4),
        checkpoint_config=CheckpointConfig(save_contents=["model", "extra"]),
    )
    engine.initialize()
    engine.save_checkpoint(folder)
    torch.distributed.barrier()


if __name__ == "__main__":
    *numbers, folder = sys.argv[1:]
    main(*map(int, numbers), folder)  # type: ignore[arg-type]
