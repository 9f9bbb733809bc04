"""The run card: what ran, what it cost and what came out, as ``run_card.md`` and ``run_card.json`` in the run's folder.

Made from ``run.json``, which the preflight writes, and the lines of veRL's ``file`` logger, so that a run that was
killed has one, too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research_plugin.errors import DataError
from research_plugin.health import find_alarms
from research_plugin.reports.summary import METRICS, read_metrics, validation_metrics
from research_plugin.resumable import write_json

__all__ = ["RUN_FILE", "build_card", "card_markdown", "write_card"]

RUN_FILE = "run.json"
_TOTALS = {
    "generated_tokens": "rollout/generated_tokens/total",
    "retrieved_tokens": "rollout/retrieved_tokens/total",
    "searches": "rollout/num_searches/total",
}
_CACHE_HITS = "rollout/cache_hits/share"

Rows = Sequence[tuple[int, Mapping[str, float]]]


def build_card(run_dir: Path) -> dict[str, Any]:
    """Return the card as plain values.

    Raises:
        DataError: the folder holds no ``run.json``, or one that cannot be read.
    """
    try:
        run = json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8"))
        attempts = run["attempts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{run_dir} holds no readable {RUN_FILE}, which a training with one of our recipes writes at its start; "
            f"give the folder that trainer.default_local_dir named ({error!r})"
        ) from error
    metrics = run_dir / "metrics.jsonl"
    rows = read_metrics(metrics) if metrics.is_file() else []
    steps = [(step, data) for step, data in rows if "training/global_step" in data]
    last_line = metrics.stat().st_mtime if rows else attempts[-1]["started"]
    hours = sum(max(attempt.get("ended") or last_line, attempt["started"]) - attempt["started"] for attempt in attempts)
    hours /= 3600
    return {
        **run,
        "steps": max((step for step, _ in steps), default=0),
        "hours": round(hours, 3),
        "gpu_hours": round(hours * run["gpus"], 2),
        "training": _totals(steps, ""),
        "validations": _totals(rows, "val-aux/"),
        "validation": _validations(rows),
        "alarms": [f"step {alarm.step}: {alarm}" for alarm in find_alarms(steps)],
    }


def _totals(rows: Rows, prefix: str) -> dict[str, int]:
    totals = {
        name: round(sum(data.get(f"{prefix}{metric}", 0.0) for _, data in rows)) for name, metric in _TOTALS.items()
    }
    cached = sum(
        data.get(f"{prefix}{_CACHE_HITS}", 0.0) * data.get(f"{prefix}{_TOTALS['searches']}", 0.0) for _, data in rows
    )
    return {**totals, "retrieval_calls": totals["searches"] - round(cached)}


def _validations(rows: Rows) -> dict[str, dict[str, float]]:
    """Return the first, the best (by reward) and the last validation, each with its step."""
    found = [{"step": step, **values} for step, data in rows if (values := validation_metrics(data))]
    if not found:
        return {}
    best = max(found, key=lambda values: values.get("reward", float("-inf")))
    return {"first": found[0], "best": best, "last": found[-1]}


def card_markdown(card: Mapping[str, Any]) -> str:
    """Return the card as a page."""
    facts = [
        ("recipe", card["recipe"]),
        ("state", card["state"]),
        ("overrides", "<br>".join(f"`{override}`" for override in card["overrides"]) or "none"),
        ("model", card["model"]),
        ("data", "<br>".join(f"{path}: {values}" for path, values in card["data"].items())),
        ("prompt, protocol", f"{card['prompt']}, {card['protocol']}"),
        ("reward", card["reward"]),
        ("retriever", "<br>".join(_retriever(url, values) for url, values in card["retriever"].items())),
        ("versions", ", ".join(f"{name} {version}" for name, version in card["versions"].items())),
        ("steps", f"{card['steps']} ({len(card['attempts'])} start{'s'[: len(card['attempts']) > 1]})"),
        ("time", f"{card['hours']:.2f} h on {card['gpus']} GPUs = {card['gpu_hours']:.1f} GPU hours"),
        *((f"in {name}", _costs(card[name])) for name in ("training", "validations")),
    ]
    lines = ["# Run card", "", "| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in facts)]
    if card["validation"]:
        lines += ["", f"| validation | step | {' | '.join(METRICS)} |", "|---" * (len(METRICS) + 2) + "|"]
        for name, values in card["validation"].items():
            cells = (f"{values[metric]:.3f}" if metric in values else "" for metric in METRICS)
            lines.append(f"| {name} | {values['step']} | {' | '.join(cells)} |")
    alarms = [f"- {alarm}" for alarm in card["alarms"]] or ["No alarm (docs/metrics.md lists them)."]
    return "\n".join([*lines, "", *alarms, ""])


def _costs(totals: Mapping[str, int]) -> str:
    return (
        f"{totals['generated_tokens']:,} tokens generated, {totals['retrieved_tokens']:,} retrieved, "
        f"{totals['searches']:,} searches, {totals['retrieval_calls']:,} of them not from the cache"
    )


def _retriever(url: str, described: Mapping[str, Any]) -> str:
    return f"{url} {', '.join(f'{key} {value}' for key, value in described.items() if value is not None)}".strip()


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def write_card(run_dir: Path) -> Path:
    """Write both files; return the Markdown one.

    Raises:
        DataError: as `build_card`.
    """
    try:
        card = build_card(run_dir)
        text = card_markdown(card)
    except (LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{run_dir / RUN_FILE} is not what this version writes ({error!r}); make the card with the version that "
            "trained"
        ) from error
    write_json(run_dir / "run_card.json", card)
    page = run_dir / "run_card.md"
    page.write_text(text, encoding="utf-8")
    return page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``report card``."""
    parser.add_argument("run", type=Path, nargs="+", help="folder of a run (trainer.default_local_dir)")


def run(args: argparse.Namespace) -> int:
    """Write each run's card and print it."""
    for folder in args.run:
        page = write_card(folder)
        print(f"{page.read_text(encoding='utf-8')}\n{page}")
    return 0
