"""Runs ``research_plugin.verl_ext.dry_run`` in a child process: only there may veRL be imported."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from research_plugin.finding import FAIL, OK, WARNING, Finding

_SECONDS = 300  # importing veRL takes 10; a cold network disk makes that minutes


@dataclass
class DryRun:
    """What stock veRL makes of a command line."""

    plugin_loaded: bool = False
    """``import verl`` brought the plugin in by itself."""
    error: str = ""
    """Why it does not compose; empty if it does."""
    config: dict[str, Any] | None = None
    """The composed config, interpolations resolved."""
    rejected: list[str] = field(default_factory=list)
    """What veRL's own validation and dataclasses refuse."""
    agent_loop: str = ""
    """The class of the default agent loop; empty if none of a file of its own is set."""
    reward: str = ""
    """What the reward function gave for a row; empty if the recipe sets none."""
    faults: list[str] = field(default_factory=list)
    """Why agent loop or reward do not load or run."""
    visible_gpus: int | None = None
    """GPUs of this machine; None when the run joins a Ray cluster."""


def dry_run(arguments: Sequence[str]) -> DryRun:
    """Compose ``arguments`` as ``python -m verl.trainer.main_ppo`` does, and convert the result as veRL will.

    Args:
        arguments: Overrides and Hydra's own options, such as ``--config-dir``.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "research_plugin.verl_ext.dry_run", str(answer), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return DryRun(error=f"veRL did not compose the config within {_SECONDS} s")
        if not answer.is_file():
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            return DryRun(error=f"veRL does not start: {last[0]}")
        return DryRun(**json.loads(answer.read_text(encoding="utf-8")))


def judge_dry_run(run: DryRun, arguments: Sequence[str]) -> list[Finding]:
    """Return what a dry run of ``arguments`` says about wiring, composition and veRL's own checks."""
    findings = [_wiring(run), *_shadowed(arguments)]
    if run.error:
        return [*findings, Finding("compose", FAIL, run.error)]
    if any(finding.status == FAIL for finding in findings):
        return findings
    findings.append(Finding("compose", OK, " ".join(arguments) or "veRL's own defaults"))
    if not arguments:
        return findings
    findings += [Finding("veRL", FAIL, text) for text in run.rejected]
    if not run.rejected:
        findings.append(Finding("veRL", OK, "its validation and its dataclasses accept the config"))
    findings += [Finding("code", FAIL, text) for text in run.faults]
    if "research_plugin." in run.agent_loop:
        findings.append(Finding("agent loop", OK, run.agent_loop))
    elif not any("agent loop" in fault for fault in run.faults):
        text = f"{run.agent_loop or 'one of veRL'}, not research_plugin's: custom.* settings have no effect"
        findings.append(Finding("agent loop", WARNING, text))
    if run.reward:
        findings.append(Finding("reward", OK, run.reward))
    return findings


def _wiring(run: DryRun) -> Finding:
    if not run.plugin_loaded:
        text = "`import verl` does not load research_plugin: +recipe=... would be ignored without a word"
        return Finding("wiring", FAIL, text)
    stray = (run.config or {}).get("recipe")
    if stray is not None:
        # Hydra reads the directive from the top of the file only.
        text = (
            "the recipe's values landed under the key recipe: its first line must be `# @package _global_`"
            if isinstance(stray, dict)
            else f"Hydra took recipe={stray} for a plain value and composed veRL's own defaults"
        )
        return Finding("wiring", FAIL, text)
    return Finding("wiring", OK, "`import verl` loads research_plugin by itself")


def _shadowed(arguments: Sequence[str]) -> list[Finding]:
    """Find a recipe of the user's that has the name of one of ours: Hydra takes ours, without a word."""
    folders = [after for word, after in itertools.pairwise(arguments) if word == "--config-dir"]
    names = [word.partition("=")[2] for word in arguments if word.startswith("+recipe=")]
    ours = Path(__file__).resolve().parents[1] / "recipes"
    findings = []
    for folder, name in itertools.product(folders, names):
        file = Path(folder) / "recipe" / f"{name}.yaml"
        if file.is_file() and (ours / "recipe" / f"{name}.yaml").is_file():
            text = f"{file} is not used: research_plugin's recipe of that name wins; give yours another name"
            findings.append(Finding("wiring", FAIL, text))
    return findings
