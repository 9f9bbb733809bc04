"""Before and after: the first and the last validation of a run, as a table and as ``summary.json``.

Reads the JSONL that veRL's ``file`` logger writes: one ``{"step": int, "data": {metric: value}}`` a line.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research_plugin.errors import DataError

METRICS = ("reward", "f1", "em", "format_ok", "num_searches")
_KEY = re.compile(r"^val-(?:core|aux)/(?P<source>.+)/(?P<name>[^/]+)/mean@\d+$")


def keep_metrics(path: Path) -> None:
    """Move the file out of the way of a run that resumes: veRL's logger starts it anew. `read_metrics` reads both."""
    if path.is_file() and path.stat().st_size:
        path.rename(path.with_name(f"{path.stem}.{len(_earlier_parts(path)) + 1}{path.suffix}"))


def _earlier_parts(path: Path) -> list[Path]:
    parts = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
    return list(itertools.takewhile(Path.is_file, parts))


def read_metrics(path: Path) -> list[tuple[int, dict[str, float]]]:
    """Return (step, metrics) in order; a last line that was cut by a kill is left out, and so is what is no number.

    Of a run that was resumed: every step once, as it was logged last.

    Raises:
        DataError: no such file, or a broken line that is not the last.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist: the run logged nothing there (trainer.logger must contain 'file')")
    rows: list[tuple[int, dict[str, float]]] = []
    for part in [*_earlier_parts(path), path]:
        newer = _read_part(part)
        rows = [row for row in rows if not newer or row[0] < newer[0][0]] + newer
    return rows


def _read_part(path: Path) -> list[tuple[int, dict[str, float]]]:
    rows: list[tuple[int, dict[str, float]]] = []
    # Bytes: a kill can cut the last line inside a character.
    lines = path.read_bytes().rstrip().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows.append((int(row["step"]), _numbers(row["data"])))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number < len(lines):
                raise DataError(f"{path}:{number} is not a line of veRL's file logger: {error}") from error
    return rows


def _numbers(data: dict[str, Any]) -> dict[str, float]:
    # orjson, which veRL's logger uses, writes nan as null.
    return {key: value for key, value in data.items() if isinstance(value, int | float) and math.isfinite(value)}


def validation_metrics(data: Mapping[str, float]) -> dict[str, float]:
    """Return the `METRICS` of one validation, averaged over data sources; empty when the step had none."""
    values: dict[str, list[float]] = {}
    for key, value in data.items():
        match = _KEY.match(key)
        if match and match["name"] in METRICS:
            values.setdefault(match["name"], []).append(value)
    return {name: sum(values[name]) / len(values[name]) for name in METRICS if name in values}


def summarize(metrics_file: Path, minutes: float) -> dict[str, Any]:
    """Return ``{"before": {...}, "after": {...}, "minutes": float, "steps": int}``.

    ``before`` and ``after`` are the first and the last validation; they are the same one when there was only one.

    Raises:
        DataError: the run logged no validation.
    """
    rows = read_metrics(metrics_file)
    validations = [found for _, data in rows if (found := validation_metrics(data))]
    if not validations:
        raise DataError(f"{metrics_file} holds no validation (trainer.val_before_train and trainer.test_freq set them)")
    return {
        "before": validations[0],
        "after": validations[-1],
        "minutes": round(minutes, 2),
        "steps": max(step for step, _ in rows),
    }


def format_table(summary: dict[str, Any]) -> str:
    """Return the summary as a table for a terminal."""
    names = {
        "reward": "validation reward",
        "f1": "F1",
        "em": "exact match",
        "format_ok": "format share",
        "num_searches": "searches per rollout",
    }
    lines = [f"{'greedy, held-out questions':<28}{'before':>8}{'after':>8}"]
    for name in METRICS:
        before, after = summary["before"].get(name), summary["after"].get(name)
        if before is not None and after is not None:
            lines.append(f"{names[name]:<28}{before:>8.3f}{after:>8.3f}")
    lines.append(f"{summary['steps']} steps, {summary['minutes']:.1f} minutes")
    return "\n".join(lines)
