"""What an evaluation was asked for, checked before anything is sent, and what a run is known by."""

from __future__ import annotations

import argparse
import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research_plugin import rewards
from research_plugin.config import AgentConfig, PromptConfig, build_config
from research_plugin.data.questions import read_rows
from research_plugin.data.rows import Row, file_sha256, read_parquet
from research_plugin.errors import ConfigError, DataError
from research_plugin.evaluation.agentic import reward_of
from research_plugin.evaluation.method import METHODS, Settings, get_method
from research_plugin.protocol import get_dialect
from research_plugin.search.settings import SearchConfig
from research_plugin.served.options import agent_settings, prompt_identity, read_settings

_SPLITS = ("train", "dev", "test", "val")


@dataclass(frozen=True, slots=True)
class Plan:
    """A method and how it asks.

    Attributes:
        reward: Whose rules judge the rollouts of an agentic method; None for any other.
        agent: The rollout's settings of an agentic method.
        search: None: there is no retriever, and none is needed.
    """

    method: str
    reward: str | None
    agent: AgentConfig | None
    prompt: PromptConfig
    search: SearchConfig | None
    settings: Settings


def make_plan(args: argparse.Namespace) -> Plan:
    """Read the options.

    Raises:
        ConfigError: the method is unknown, or a setting is wrong or not one of the method's.
    """
    values = read_settings(args)
    if "protocol" in values:
        get_dialect(values["protocol"])  # a module of one's own may bring its reward along
    reward = reward_of(args.method)
    agent = None if reward is None else _agent(args.method, reward, values)
    prompt, config = (agent.prompt, agent.search) if agent else _prompted(args.method, values)
    if args.best_of > 1 and args.temperature <= 0:
        raise ConfigError("--best-of makes equal attempts at --temperature 0; set one above 0, such as 0.7")
    settings = Settings(
        temperature=args.temperature,
        top_p=args.top_p,
        max_tokens=args.max_tokens,
        seed=args.seed if args.temperature > 0 else None,
        rounds=args.rounds,
        base=prompt.style == "base",
    )
    return Plan(args.method, reward, agent, prompt, config, settings)


def _agent(method: str, reward: str, values: dict[str, Any]) -> AgentConfig:
    dialect = rewards.METHODS[reward].dialect
    agent = agent_settings({"protocol": dialect.name, **values})
    if get_dialect(agent.protocol) != dialect:
        raise ConfigError(
            f"--method {method} with protocol={agent.protocol}: it speaks {dialect.name}, and a model evaluated with "
            "the tags of another method scores near zero; leave protocol out"
        )
    return agent


def _prompted(method: str, values: dict[str, Any]) -> tuple[PromptConfig, SearchConfig | None]:
    get_method(method)
    prompt = build_config(PromptConfig, values.pop("prompt", None), "prompt")
    if prompt.file or prompt.style not in ("instruct", "base"):
        raise ConfigError(
            f"--method {method} has prompts of its own; allowed: prompt.style=instruct (chat) or prompt.style=base"
        )
    search = values.pop("search", None)
    if values:
        raise ConfigError(f"--method {method} has no {', '.join(values)}; allowed: prompt.style and search.*")
    if not search and method in METHODS and method != "direct":
        raise ConfigError(f"--method {method} searches: give --retriever URL")
    return prompt, build_config(SearchConfig, search, "search") if search else None


def read_dataset(path: Path, name: str | None, limit: int | None, seed: int) -> list[Row]:
    """Read questions, ``limit`` of them drawn with ``seed``.

    Args:
        path: Parquet with veRL's columns, or JSONL.
        name: The dataset's name in reports; None: what its rows say, or for JSONL the file's or its folder's name.

    Raises:
        DataError: the file cannot be read or is empty, or a row has no golden answer.
    """
    if path.suffix == ".parquet":
        rows = list(read_parquet([path]).values())
    else:
        rows = read_rows(path, path.resolve().parent.name if path.stem in _SPLITS else path.stem, "eval")
    if not rows:
        raise DataError(f"{path} holds no question")
    if name:
        rows = [{**row, "data_source": name} for row in rows]
    return random.Random(seed).sample(rows, limit) if limit is not None and limit < len(rows) else rows


def identity(
    args: argparse.Namespace, plan: Plan, rows: Sequence[Row], model: str, health: Sequence[Any]
) -> dict[str, Any]:
    """Return what a run is known by: a resumed one must have all of it in common with what it goes on with.

    Args:
        health: What the retrievers say about themselves.
    """
    prompt = plan.prompt.style + (f":{plan.prompt.file}" if plan.prompt.file else "")
    facts: dict[str, Any] = {
        "method": plan.method if args.best_of == 1 else f"{plan.method} x{args.best_of} {args.select}",
        "model": model,
        "prompt": prompt,
        "dataset": "+".join(sorted({row["data_source"] for row in rows})),
        "dataset_sha256": file_sha256(args.dataset),
        "questions": len(rows),
        "seed": args.seed,
        "temperature": args.temperature,
        "top_p": args.top_p,
    }
    if plan.search is not None:
        facts |= {"topk": plan.search.topk, "retriever": list(health)}
    if plan.agent is None:
        return {**facts, "max_tokens": args.max_tokens, "rounds": args.rounds}
    rollout = {key: value for key, value in dataclasses.asdict(plan.agent).items() if key not in ("search", "prompt")}
    text = prompt_identity(plan.agent.protocol, plan.prompt)[1]
    return {**facts, "reward": plan.reward, "response_length": args.response_length, "prompt_sha256": text, **rollout}
