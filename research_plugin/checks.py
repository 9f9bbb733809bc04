"""What can be known about a composed config before any process starts, as plain-language problems.

Reads a nested mapping (OmegaConf's or a dict); imports neither veRL nor torch. The preflight of every recipe runs all
of them and the retriever probe.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from research_plugin.config import CUSTOM_KEY, AgentConfig, build_config
from research_plugin.errors import ConfigError
from research_plugin.prompts import load_prompt
from research_plugin.search.settings import SearchConfig, is_loopback


def check_config(config: Mapping[str, Any], *, visible_gpus: int | None = None) -> tuple[AgentConfig | None, list[str]]:
    """Return the plugin's settings, None if something is wrong with them, and every problem of the config.

    Each problem names the key that sets it; an empty list means none.

    Args:
        config: The composed training config, interpolations resolved.
        visible_gpus: GPUs of this machine when the run would start its own Ray on it; None skips that check (the run
            joins a cluster whose head node may have none).
    """
    agent, agent_problems = _agent_settings(config)
    return agent, [
        *_data_problems(config),
        *_model_problems(config),
        *_lora_problems(config),
        *_size_problems(config),
        *_separate_async_problems(config),
        *_gpu_problems(config, visible_gpus),
        *agent_problems,
    ]


def _data_problems(config: Mapping[str, Any]) -> Iterator[str]:
    files = {key: _as_list(config["data"][key]) for key in ("train_files", "val_files")}
    for key, paths in files.items():
        if not paths:
            yield f"data.{key} is not set; give a parquet file (docs/data.md says what a row holds)"
        for path in paths:
            if "://" not in path and not Path(path).expanduser().is_file():
                yield f"data.{key}={path} does not exist; set data.{key} to your parquet file"
    same = set(files["train_files"]) & set(files["val_files"])
    if same:
        shared = ", ".join(sorted(same))
        yield f"data.train_files and data.val_files both hold {shared}: validation would measure memory"


def _model_problems(config: Mapping[str, Any]) -> Iterator[str]:
    path = str(config["actor_rollout_ref"]["model"]["path"])
    looks_local = path.startswith(("/", "./", "../", "~")) or path.count("/") > 1
    if looks_local and "://" not in path and not Path(path).expanduser().is_dir():
        yield f"actor_rollout_ref.model.path={path} is no folder; give a Hugging Face model folder or a hub name"


def _lora_problems(config: Mapping[str, Any]) -> Iterator[str]:
    """Find base weights that veRL would send to vLLM's CPU build under LoRA's names, which its reload does not know."""
    model, rollout = config["actor_rollout_ref"]["model"], config["actor_rollout_ref"]["rollout"]
    adapters = (model.get("lora_rank") or 0) > 0 and not (model.get("lora") or {}).get("merge")
    sent = "dummy" in (rollout.get("load_format") or "")  # veRL 0.9.1, workers/engine_workers.py, init_model
    if config["trainer"]["device"] == "cpu" and adapters and sent:
        yield (
            "on a CPU vLLM has to read a LoRA model's base weights itself: set "
            "actor_rollout_ref.rollout.load_format=safetensors, or actor_rollout_ref.model.lora.merge=true"
        )


def _size_problems(config: Mapping[str, Any]) -> Iterator[str]:
    data, trainer = config["data"], config["trainer"]
    actor, rollout = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["rollout"]
    length = data["max_prompt_length"] + data["max_response_length"]
    limit = rollout.get("max_model_len")
    if limit is not None and length > limit:
        yield (
            f"data.max_prompt_length + data.max_response_length = {length} exceeds "
            f"actor_rollout_ref.rollout.max_model_len={limit}"
        )
    if actor.get("use_dynamic_bsz"):
        for key, value in (
            ("actor.ppo_max_token_len_per_gpu", actor.get("ppo_max_token_len_per_gpu")),
            ("rollout.log_prob_max_token_len_per_gpu", rollout.get("log_prob_max_token_len_per_gpu")),
        ):
            if value is not None and value < length:
                yield f"actor_rollout_ref.{key}={value} is below one full sequence of {length} tokens"
    counts = {
        "actor_rollout_ref.actor.ppo_mini_batch_size": actor["ppo_mini_batch_size"],
        "actor_rollout_ref.rollout.tensor_model_parallel_size": rollout["tensor_model_parallel_size"],
        "trainer.nnodes": trainer["nnodes"],
        "trainer.n_gpus_per_node": trainer["n_gpus_per_node"],
    }
    too_small = [key for key, value in counts.items() if value < 1]
    yield from (f"{key}={counts[key]}; it must be 1 or more (on a CPU, too)" for key in too_small)
    if too_small:
        return  # what follows divides by them
    batch, mini, n = data["train_batch_size"], actor["ppo_mini_batch_size"], rollout["n"]
    if batch % mini:
        yield f"data.train_batch_size={batch} is no multiple of actor_rollout_ref.actor.ppo_mini_batch_size={mini}"
    gpus = trainer["nnodes"] * trainer["n_gpus_per_node"]
    split, keys = _model_split(actor)
    if gpus % split:
        yield f"{keys} = {split} does not divide {gpus} GPUs (trainer.nnodes x trainer.n_gpus_per_node)"
    elif (mini * n) % (gpus // split):
        shared = f", {split} to a copy of the model ({keys})" if split > 1 else ""
        yield (
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini} x actor_rollout_ref.rollout.n={n} = {mini * n} "
            f"rollouts do not divide over {gpus} GPUs (trainer.nnodes x trainer.n_gpus_per_node){shared}"
        )
    tensor_parallel = rollout["tensor_model_parallel_size"]
    if gpus % tensor_parallel:
        yield f"actor_rollout_ref.rollout.tensor_model_parallel_size={tensor_parallel} does not divide {gpus} GPUs"


def _model_split(actor: Mapping[str, Any]) -> tuple[int, str]:
    """Return over how many GPUs the trainer spreads one rollout, and the keys that say so."""
    if actor.get("strategy") != "megatron":
        return actor.get(
            "ulysses_sequence_parallel_size"
        ) or 1, "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    megatron = actor.get("megatron", {})
    sizes = [megatron.get(name) or 1 for name in names]
    return math.prod(sizes), f"actor_rollout_ref.actor.megatron.{' x '.join(names)}"


def _separate_async_problems(config: Mapping[str, Any]) -> Iterator[str]:
    """Name what veRL 0.9.1 asserts once Ray runs (trainer/ppo/v1/trainer_separate_async.py)."""
    v1 = config["trainer"].get("v1", {})
    if v1.get("trainer_mode") != "separate_async":
        return
    mode, rollout = "trainer.v1.trainer_mode=separate_async", config["actor_rollout_ref"]["rollout"]
    if not rollout.get("nnodes"):
        yield (
            f"{mode} samples on GPUs of its own, but actor_rollout_ref.rollout.nnodes=0; set it and "
            "actor_rollout_ref.rollout.n_gpus_per_node"
        )
    if rollout["checkpoint_engine"]["backend"] == "naive":
        yield (
            f"{mode} sends weights to other GPUs, but actor_rollout_ref.rollout.checkpoint_engine.backend=naive stays "
            "inside one process; take nccl, nixl or mooncake (none runs on a CPU: there, colocate_async)"
        )
    batch, mini = config["data"]["train_batch_size"], config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
    steps = v1["separate_async"]["parameter_sync_step"]
    if batch != steps * mini:
        yield (
            f"{mode} needs data.train_batch_size={batch} to be trainer.v1.separate_async.parameter_sync_step={steps} x "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini} = {steps * mini}"
        )


def _gpu_problems(config: Mapping[str, Any], visible_gpus: int | None) -> Iterator[str]:
    trainer = config["trainer"]
    if visible_gpus is None or trainer["device"] == "cpu":
        return
    needed = trainer["n_gpus_per_node"]
    if visible_gpus < needed:
        yield (
            f"this machine has {visible_gpus} GPUs, trainer.n_gpus_per_node={needed} asks for more; lower it, or start "
            "from a Ray cluster (set RAY_ADDRESS or ray_kwargs.ray_init.address). To try everything on a CPU: "
            "+recipe=research_tiny"
        )


def _agent_settings(config: Mapping[str, Any]) -> tuple[AgentConfig | None, list[str]]:
    try:
        settings = build_config(AgentConfig, config["actor_rollout_ref"]["rollout"].get("custom"))
        load_prompt(settings.protocol, settings.prompt.style, settings.prompt.file)
    except ConfigError as error:
        text = str(error)
        # SearchConfig names its keys from "search." on: it does not know where a recipe keeps it.
        if not text.startswith(CUSTOM_KEY):
            text = f"{CUSTOM_KEY}{'.' if text.startswith('search.') else ': '}{text}"
        return None, [text]
    problems = list(_search_problems(settings.search, config["trainer"]["nnodes"]))
    if settings.max_searches_schedule and not config["trainer"].get("use_v1", True):
        problems.append(
            f"{CUSTOM_KEY}.max_searches_schedule needs trainer.use_v1=true: only that trainer says the step"
        )
    return (None if problems else settings), problems


def _search_problems(search: SearchConfig, nodes: int) -> Iterator[str]:
    if nodes > 1:
        for url in search.endpoints:
            if is_loopback(url):
                yield (
                    f"{CUSTOM_KEY}.search.url={url} is this machine only, but trainer.nnodes={nodes}: workers on other "
                    "nodes cannot reach it; give the host's address"
                )
    token = search.token_env
    if token and not os.environ.get(token):
        yield f"{CUSTOM_KEY}.search.token_env={token}, but that environment variable is not set"


def _as_list(value: Any) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(item) for item in value]
