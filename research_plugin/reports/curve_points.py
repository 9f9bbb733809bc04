"""The numbers of a run against its steps, training and validation, from its metrics file and its rollout records.

What veRL's ``file`` logger wrote comes first: it covers every rollout. What is not in there is averaged over the
records, which may be a sample.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from research_plugin.errors import DataError
from research_plugin.metrics import MEANS
from research_plugin.records import RolloutRecord
from research_plugin.reports.read_records import RunRecords
from research_plugin.reports.summary import read_metrics, validation_metrics

__all__ = ["PANELS", "Panel", "RunCurves", "read_curves", "sorted_points"]

Points = dict[int, float]
"""step -> value"""


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram.

    Attributes:
        key: The number's name in `validation_metrics` and in records (`scores` or `metrics`).
        title: What stands above it.
        metric: Its name in the training's metrics; validation may have it with ``val-aux/`` before it.
    """

    key: str
    title: str
    metric: str


PANELS = (
    Panel("reward", "Reward", "critic/score/mean"),
    Panel("f1", "F1", MEANS["reward_extra_info.f1"]),
    Panel("em", "Exact match", MEANS["reward_extra_info.em"]),
    Panel("format_ok", "Share in the right format", MEANS["reward_extra_info.format_ok"]),
    Panel("num_searches", "Searches per rollout", MEANS["num_searches"]),
    Panel("generated_tokens", "Own tokens per rollout", MEANS["generated_tokens"]),
    Panel("retrieved_tokens", "Retrieved tokens per rollout", MEANS["retrieved_tokens"]),
    Panel("golden_in_results", "Golden answer in the results", MEANS["golden_in_results"]),
)


@dataclass(slots=True)
class RunCurves:
    """One run's points: panel key -> points, apart for training and validation."""

    name: str
    train: dict[str, Points] = field(default_factory=lambda: defaultdict(dict))
    val: dict[str, Points] = field(default_factory=lambda: defaultdict(dict))


def read_curves(run: Path, name: str) -> RunCurves:
    """Read one run: its folder, or a metrics file alone.

    Raises:
        DataError: it holds neither metrics nor rollouts, or no step of them.
    """
    records = RunRecords(run)
    curves = RunCurves(name)
    metrics = run if run.is_file() else run / "metrics.jsonl"
    if metrics.is_file():
        for step, data in read_metrics(metrics):
            _add_metrics(curves, step, data)
    if run.is_dir() and any(panel.key not in curves.train or panel.key not in curves.val for panel in PANELS):
        _add_records(curves, (record for _, record in records.new_with_progress()))
    if not any(curves.train.values()) and not any(curves.val.values()):
        raise DataError(
            f"{run} holds no steps: neither metrics.jsonl (trainer.logger must contain 'file') nor rollouts of a "
            "training; give the folder of a run"
        )
    return curves


def _add_metrics(curves: RunCurves, step: int, data: Mapping[str, float]) -> None:
    validation = validation_metrics(data)
    for panel in PANELS:
        # Later lines win: after a resume the same steps are written once more.
        if (value := data.get(panel.metric)) is not None:
            curves.train[panel.key][step] = value
        if (value := validation.get(panel.key, data.get(f"val-aux/{panel.metric}"))) is not None:
            curves.val[panel.key][step] = value


def _add_records(curves: RunCurves, records: Iterable[RolloutRecord]) -> None:
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for panel in PANELS:
            if (value := _number(record, panel.key)) is not None and math.isfinite(value):
                found[record.split, panel.key][record.step].append(value)
    for split, points in (("train", curves.train), ("val", curves.val)):
        for panel in PANELS:
            if panel.key not in points and (steps := found.get((split, panel.key))):
                points[panel.key] = {step: fmean(values) for step, values in steps.items()}


def _number(record: RolloutRecord, key: str) -> float | None:
    if key == "reward":
        return record.scores.get("reward", record.scores.get("score"))
    return record.scores.get(key, record.metrics.get(key))


def sorted_points(points: Points) -> list[list[float]]:
    """Return [step, value] in order of the steps."""
    return [[step, value] for step, value in sorted(points.items())]
