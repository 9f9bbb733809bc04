"""``research-plugin doctor [+recipe=NAME overrides ...]``: every check, one line each, and an exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from research_plugin.checks import check_config
from research_plugin.config import AgentConfig
from research_plugin.doctor.dry_run import dry_run, judge_dry_run
from research_plugin.doctor.installation import check_entry_point, check_versions
from research_plugin.doctor.model import check_model
from research_plugin.doctor.retriever import check_search
from research_plugin.doctor.rows import check_rows
from research_plugin.finding import FAIL, OK, WARNING, Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "overrides", nargs="*", help="the training's own: +recipe=NAME key=value ...; none: install only"
    )
    parser.add_argument("--config-dir", help="as for veRL's command: the folder that holds your recipe/")
    parser.add_argument(
        "--slow-search", type=float, default=1.0, metavar="S", help="warn from S seconds on (default: 1)"
    )


def run(args: argparse.Namespace) -> int:
    """Print each finding as it comes; return 1 if one of them is a FAIL."""
    counts = {OK: 0, WARNING: 0, FAIL: 0}
    options = ["--config-dir", args.config_dir] if args.config_dir else []
    for finding in diagnose([*options, *args.overrides], args.slow_search):
        print(finding.line(), flush=True)
        counts[finding.status] += 1
    print(f"\n{counts[FAIL]} failed, {counts[WARNING]} warnings, {counts[OK]} ok")
    return 1 if counts[FAIL] else 0


def diagnose(arguments: list[str], slow_search: float = 1.0) -> Iterator[Finding]:
    """Yield the findings about this installation and, if ``arguments`` are given, about the run they describe."""
    yield from _guarded("plugin", check_entry_point)
    yield from _guarded("versions", check_versions)
    result = dry_run(arguments)
    yield from judge_dry_run(result, arguments)
    if arguments and result.config is not None and "recipe" not in result.config:
        yield from check_run(result.config, result.visible_gpus, slow_search)


def check_run(config: Mapping[str, Any], visible_gpus: int | None, slow_search: float) -> Iterator[Finding]:
    """Yield the findings about a composed config: what the preflight checks, and what takes longer than it may."""
    try:
        agent, problems = check_config(config, visible_gpus=visible_gpus)
    except (TypeError, AttributeError) as error:  # a size that is text, a node that is null
        agent, problems = None, [f"a value has the wrong type: {error}"]
    yield from (Finding("settings", FAIL, problem) for problem in problems)
    if not problems:
        yield Finding("settings", OK, "files exist, batches divide, lengths fit")
    questions: list[str] = []

    def rows() -> list[Finding]:
        findings, first = check_rows(config)
        questions.extend(first)
        return findings

    yield from _guarded("rows", rows)
    if not any("actor_rollout_ref.model.path" in problem for problem in problems):
        yield from _guarded("model", check_model, config, agent, questions)
    if agent is not None:
        yield from _guarded("method", check_method, config, agent)
        yield from _guarded("retriever", check_search, agent.search, slow_search)


def check_method(config: Mapping[str, Any], agent: AgentConfig) -> list[Finding]:
    """Check that prompt, tags and reward are one method's: another method's prompt makes a trained model look bad."""
    from research_plugin.rewards import METHODS

    findings = []
    if (config.get("custom_reward_function") or {}).get("path"):
        # veRL 0.9.1 moves the old keys to the new ones in fully_async_main only.
        text = "custom_reward_function.path is an old key that is ignored; set reward.custom_reward_function.path"
        findings.append(Finding("method", FAIL, text))
    reward = config["reward"]["custom_reward_function"]
    options = reward.get("reward_kwargs") or {}
    text = f"protocol {agent.protocol}, prompt {agent.prompt.file or agent.prompt.style}"
    if reward.get("path") != "pkg://research_plugin.rewards":
        return [*findings, Finding("method", OK, f"{text}, a reward of your own")]
    method = options.get("method", "research")
    text += f", reward {method} ({options.get('rules', 'paper')})"
    if method in METHODS and METHODS[method].dialect.name != agent.protocol:
        text += f": that reward reads the tags of protocol {METHODS[method].dialect.name}"
        return [*findings, Finding("method", WARNING, text)]
    return [*findings, Finding("method", OK, text)]


def _guarded(check: str, function: Callable[..., list[Finding]], *args: Any) -> list[Finding]:
    """Run a check; one that breaks is a finding itself, so that the others still run."""
    try:
        return function(*args)
    except Exception as error:
        return [Finding(check, FAIL, f"this check itself failed: {error!r}")]
