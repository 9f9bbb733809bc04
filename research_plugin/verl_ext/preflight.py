"""The Hydra callback of every recipe: checks a run in seconds before Ray starts, and prepares what a recipe embeds.

Runs inside ``python -m verl.trainer.main_ppo +recipe=...`` on the composed config. Hydra turns ordinary exceptions of a
callback into warnings, so a problem ends the run with SystemExit and one message.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from research_plugin.checks import check_config
from research_plugin.config import CUSTOM_KEY
from research_plugin.errors import ResearchPluginError
from research_plugin.reports.run_card import RUN_FILE, write_card
from research_plugin.reports.summary import format_table, keep_metrics, summarize
from research_plugin.search.settings import EMBEDDED, SearchConfig
from research_plugin.verl_ext.run_file import end_run_file, start_run_file
from research_plugin.versions import check_verl

logger = logging.getLogger(__name__)


class Preflight(Callback):
    """Checks, prepares, and at the end summarises and cleans up."""

    def __init__(self) -> None:
        """Start the clock."""
        self.started = time.monotonic()
        self.run_dir: Path | None = None

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Stop with every problem named, or leave the run ready to start."""
        try:
            problems = self.prepare(config)
        except ResearchPluginError as error:
            problems = [str(error)]
        except Exception as error:
            logger.exception("the preflight itself failed")
            problems = [f"the preflight itself failed: {error!r}"]
        if problems:
            raise SystemExit(_message(problems))

    def prepare(self, config: DictConfig) -> list[str]:
        """Check ``config`` and change it in place where the recipe embeds something; return the problems."""
        if warning := check_verl():
            print(f"WARNING: {warning}", flush=True)
        _set_run_dir(config)
        _make_absolute(config)
        self.run_dir = Path(config.trainer.default_local_dir)
        if config.trainer.device == "cpu":
            _choose_cpu()
        # hydra's own node has values that are filled in later; resolving it here would fail.
        plain = OmegaConf.to_container(OmegaConf.masked_copy(config, [k for k in config if k != "hydra"]), resolve=True)
        agent, problems = check_config(plain, visible_gpus=visible_gpus(config))  # type: ignore[arg-type]
        if agent is not None and EMBEDDED not in agent.search.endpoints:
            problems += _retriever_problems(agent.search)
        elif agent is not None and not problems:
            url = _start_retriever(str(agent.search.corpus), self.run_dir)
            config.actor_rollout_ref.rollout.custom.search.url = agent.search.url = url
        if agent is not None and not problems:
            start_run_file(config, agent, self.run_dir)
            atexit.register(_write_card, self.run_dir)
            _set_metrics_file(config)
            _set_trainer(config)
            if not config.actor_rollout_ref.rollout.custom.get("mask_observations", True):
                print(f"WARNING: {CUSTOM_KEY}.mask_observations=false: this run trains on retrieved text", flush=True)
        return problems

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print before and after, and write them to ``summary.json`` in the run's folder."""
        job = kwargs.get("job_return")
        failed = job is not None and getattr(job.status, "name", "") == "FAILED"
        metrics = os.environ.get("VERL_FILE_LOGGER_PATH")
        if self.run_dir is not None and (self.run_dir / RUN_FILE).is_file():
            end_run_file(self.run_dir, "failed" if failed else "finished")
        if failed or self.run_dir is None or not metrics:
            return
        try:
            summary = summarize(Path(metrics), (time.monotonic() - self.started) / 60)
        except ResearchPluginError as error:
            print(f"no summary: {error}")
            return
        (self.run_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        print(f"\n{format_table(summary)}\nlogs, rollouts and summary.json: {self.run_dir}", flush=True)


def _set_run_dir(config: DictConfig) -> None:
    """Make the run's folder absolute, once: workers have another working directory and no ``${now:}`` resolver."""
    path = Path(config.trainer.default_local_dir).expanduser().absolute()
    config.trainer.default_local_dir = str(path)


def _make_absolute(config: DictConfig) -> None:
    """Resolve a user's own files against this folder; a worker may run in another one."""
    custom = config.actor_rollout_ref.rollout.custom
    reward = config.reward.custom_reward_function
    for node, key in ((custom.get("prompt"), "file"), (custom.get("search"), "corpus"), (reward, "path")):
        if node is not None and node.get(key) and "://" not in node[key]:
            node[key] = str(Path(node[key]).expanduser().absolute())
    model = config.actor_rollout_ref.model
    if model.path and Path(model.path).expanduser().is_dir():
        model.path = os.path.abspath(Path(model.path).expanduser())
    for key in ("train_files", "val_files"):
        files = config.data[key]
        if isinstance(files, str):
            config.data[key] = _absolute(files)
        elif files is not None:
            config.data[key] = [_absolute(file) for file in files]


def _absolute(file: str) -> str:
    path = Path(file).expanduser()
    return os.path.abspath(path) if path.is_file() else file


def _set_metrics_file(config: DictConfig) -> None:
    """Have veRL's ``file`` logger write into the run's folder (utils/tracking.py reads the variable)."""
    if "file" in (config.trainer.logger or []):
        path = Path(config.trainer.default_local_dir)
        path.mkdir(parents=True, exist_ok=True)
        keep_metrics(path / "metrics.jsonl")
        os.environ.setdefault("VERL_FILE_LOGGER_PATH", str(path / "metrics.jsonl"))


def _write_card(run_dir: Path) -> None:
    """Write the run card however the run ends, short of a kill."""
    try:
        write_card(run_dir)
    except (ResearchPluginError, OSError) as error:
        print(f"no run card: {error}", flush=True)


def _set_trainer(config: DictConfig) -> None:
    """Have veRL take our form of its trainer (verl_ext/trainers.py says how it is found)."""
    v1 = config.trainer.v1
    if v1.trainer_mode in ("sync", "colocate_async", "separate_async"):
        v1.trainer_mode = f"${{research_plugin_trainer:{v1.trainer_mode}}}"


def _choose_cpu() -> None:
    """Choose veRL's CPU platform in this process and, through the environment, in every Ray worker."""
    os.environ["VERL_PLATFORM"] = "cpu"
    # One thread a process, and none that spins while it waits: with two in each of several processes on two cores the
    # trainer's forward and backward took 1.2 to 2.4 times as long.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Ray lowers its workers' priority by 15; everything that computes here is a Ray worker.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray would start a Python process per logical CPU in advance, and there are more of those than real ones.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    os.environ.setdefault("RAY_enable_worker_prestart", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from verl.plugin.platform import platform_manager

    from research_plugin.verl_ext.cpu.platform import ROLLOUT_ENV, PlatformCPU

    for name, value in ROLLOUT_ENV.items():
        os.environ.setdefault(name, value)
    # main_ppo asks for a platform while it is imported (trainer/constants_ppo.py), before this callback can run.
    platform_manager.set_platform(PlatformCPU())


def visible_gpus(config: DictConfig) -> int | None:
    """Count this machine's GPUs, or return None when the run joins a Ray cluster instead of starting one."""
    address = config.ray_kwargs.get("ray_init", {}).get("address") or os.environ.get("RAY_ADDRESS")
    if address not in (None, "", "local"):
        return None
    import torch

    return torch.cuda.device_count()


def _start_retriever(corpus: str, run_dir: Path) -> str:
    from research_plugin.retriever.process import RetrieverProcess

    run_dir.mkdir(parents=True, exist_ok=True)
    print(f"starting a retriever over {corpus} ...", flush=True)
    server = RetrieverProcess(corpus, log=run_dir / "retriever.log")
    atexit.register(server.close)
    print(f"retriever ready at {server.url}", flush=True)
    return server.url


def _retriever_problems(search: SearchConfig) -> list[str]:
    from research_plugin.search.check import check_retriever_blocking

    try:
        for report in check_retriever_blocking(search).values():
            if report["note"]:
                print(f"WARNING: {report['note']}", flush=True)
    except ResearchPluginError as error:
        return [f"{CUSTOM_KEY}.{error}"]
    return []


def _message(problems: list[str]) -> str:
    version = importlib.metadata.version("verl")
    lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, start=1))
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return f"\nThis run was stopped before it started (veRL {version}): {count}.\n{lines}\n"
