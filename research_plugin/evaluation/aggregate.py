"""What a finished evaluation comes to: the mean of every number of its records, with bootstrap intervals.

Pure: records and verdicts in, a summary that JSON can hold out. It reads no file and asks no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from research_plugin.records import RolloutRecord
from research_plugin.rewards.text_metrics import compare

__all__ = ["aggregate"]

_NOT_NUMBERS_OF_THE_ANSWER = ("score", "search_cost", "repeat_penalty")


def aggregate(
    records: Iterable[RolloutRecord],
    verdicts: Mapping[str, bool | None] | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Return ``{"questions": int, "metrics": {name: {"mean", "low", "high", "n"}}, ...}``.

    A record's numbers are its scores and its metrics; precision and recall are worked out here, as are f1, em and cem
    where the scores lack them. ``low`` and ``high`` are the 95 % percentile interval over resampled questions, and
    ``n`` the questions that have the number at all.

    Args:
        records: One a question.
        verdicts: The judge's, by the record's id: right, wrong, or None for a reply that could not be read. A record
            without one, and one with None, is left out of the mean ``judge``; ``"judge_unparsed"`` and
            ``"judge_missing"`` count them.
        resamples: Number of bootstrap samples.
        seed: Of the bootstrap; the same records in the same order give the same interval.
    """
    rows = list(records)
    numbers = [_numbers(record) for record in rows]
    summary: dict[str, Any] = {"questions": len(rows)}
    if verdicts is not None:
        for record, row in zip(rows, numbers, strict=True):
            verdict = verdicts.get(record.id)
            row.update({} if verdict is None else {"judge": float(verdict)})
        summary["judge_unparsed"] = sum(record.id in verdicts and verdicts[record.id] is None for record in rows)
        summary["judge_missing"] = sum(record.id not in verdicts for record in rows)
    return {**summary, "metrics": _means(numbers, resamples, seed)}


def _numbers(record: RolloutRecord) -> dict[str, float]:
    """Return the numbers of one record by name."""
    compared = asdict(compare(record.pred, record.golden_answers))
    scores = {name: value for name, value in record.scores.items() if name not in _NOT_NUMBERS_OF_THE_ANSWER}
    return {**compared, **record.metrics, **scores}


def _means(numbers: list[dict[str, float]], resamples: int, seed: int) -> dict[str, dict[str, float]]:
    """Return mean, interval and count of every name; all names share the resampled questions."""
    import numpy as np

    names = list(dict.fromkeys(name for row in numbers for name in row))
    present = np.array([[name in row for name in names] for row in numbers], dtype=float)
    values = np.array([[row.get(name, 0.0) for name in names] for row in numbers], dtype=float)
    if not names:
        return {}
    random = np.random.default_rng(seed)
    drawn = np.full((resamples, len(names)), np.nan)
    for row in drawn:
        times = np.bincount(random.integers(len(numbers), size=len(numbers)), minlength=len(numbers))
        count = times @ present
        np.divide(times @ values, count, out=row, where=count > 0)
    means = values.sum(axis=0) / present.sum(axis=0)
    return {
        name: {
            "mean": float(means[column]),
            "low": float(np.nanquantile(drawn[:, column], 0.025)),
            "high": float(np.nanquantile(drawn[:, column], 0.975)),
            "n": int(present[:, column].sum()),
        }
        for column, name in enumerate(names)
    }
