"""Means and intervals of an evaluation, against values worked out by hand."""

from __future__ import annotations

import json
import random

import pytest

from research_plugin.evaluation.aggregate import aggregate
from research_plugin.records import RolloutRecord


def record(number: int, pred: str = "", gold: str = "red fox", **values: dict[str, float]) -> RolloutRecord:
    return RolloutRecord(question="q", golden_answers=[gold], segments=[], id=str(number), pred=pred, **values)


def test_means_of_three_answers() -> None:
    rows = [
        record(1, "the red fox", scores={"score": 1.0, "num_searches": 2.0}, metrics={"seconds": 3.0}),
        record(2, "a red dog", scores={"score": 0.1, "num_searches": 0.0}, metrics={"seconds": 1.0}),
        record(3, "one quick red fox", scores={"score": 0.1, "num_searches": 1.0}),
    ]
    metrics = aggregate(rows)["metrics"]
    means = {name: value["mean"] for name, value in metrics.items()}
    assert means == pytest.approx(
        {
            "em": 1 / 3,
            "cem": 2 / 3,
            "f1": (1 + 1 / 2 + 2 / 3) / 3,
            "precision": (1 + 1 / 2 + 1 / 2) / 3,
            "recall": (1 + 1 / 2 + 1) / 3,
            "num_searches": 1.0,
            "seconds": 2.0,
        }
    )
    assert metrics["seconds"]["n"] == 2 and metrics["em"]["n"] == 3


def test_recorded_scores_win_over_a_comparison_of_the_shortened_answer() -> None:
    assert aggregate([record(1, "cut", scores={"em": 1.0})])["metrics"]["em"]["mean"] == 1.0


def test_judge_leaves_unread_and_missing_verdicts_out_of_the_mean() -> None:
    verdicts = {"0": True, "1": False, "2": True, "3": None, "99": True}
    summary = aggregate([record(number) for number in range(6)], verdicts)
    assert summary["metrics"]["judge"]["mean"] == pytest.approx(2 / 3)
    assert summary["metrics"]["judge"]["n"] == 3
    assert (summary["judge_unparsed"], summary["judge_missing"]) == (1, 2)


def test_interval_is_the_one_of_the_normal_approximation_and_repeats() -> None:
    draw = random.Random(1)
    rows = [record(number, scores={"em": float(draw.random() < 0.3)}) for number in range(2000)]
    first, again = aggregate(rows, seed=5), aggregate(rows, seed=5)
    assert first == again != aggregate(rows, seed=6)
    em = first["metrics"]["em"]
    half = 1.96 * (em["mean"] * (1 - em["mean"]) / 2000) ** 0.5
    assert em["low"] == pytest.approx(em["mean"] - half, abs=0.15 * half)
    assert em["high"] == pytest.approx(em["mean"] + half, abs=0.15 * half)


def test_few_verdicts_and_no_records_give_a_summary_without_warnings() -> None:
    rare = aggregate([record(number) for number in range(50)], {"0": True})
    assert rare["metrics"]["judge"] == {"mean": 1.0, "low": 1.0, "high": 1.0, "n": 1}
    assert aggregate([]) == {"questions": 0, "metrics": {}}
    json.dumps(rare, allow_nan=False)
