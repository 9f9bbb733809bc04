"""Folders that ``research-plugin eval`` wrote, as rows of results; runs that differ only by their seed are averaged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from research_plugin.data.published_sets import PUBLISHED_SETS, count_problem
from research_plugin.errors import DataError
from research_plugin.reports.results import Cell, Key, Row

OWN = "own runs"
_NAMES = ("method", "model", "prompt")
_TOKENS = ("prompt_tokens", "generated_tokens", "retrieved_tokens")
_NO_SHARES = ("num_searches", "num_repeated_queries", *_TOKENS, "model_calls", "seconds")
_OF_ONE_RUN = ("seed", "dataset", "dataset_sha256", "questions", "about")


@dataclass(frozen=True, slots=True)
class _Run:
    folder: Path
    facts: Mapping[str, Any]
    summary: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, str]:
        """What runs of one row have in common, as text."""
        return {
            key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            for key, value in self.facts.items()
            if key not in _OF_ONE_RUN
        }


def read_runs(folders: Sequence[Path]) -> tuple[list[Row], list[str]]:
    """Return the rows of these runs, and notes on what their numbers leave out.

    Rows with the same method, model and prompt say in which other settings they differ. What is no evaluation, such as
    a training among ``runs/*``, is left out with a note.

    Raises:
        DataError: there is no such folder, its evaluation is not finished, or two runs are the same one.
    """
    given = list(dict.fromkeys(folder.resolve() for folder in folders))
    runs = [run for folder in given if (run := _read(folder))]
    others = [folder.name for folder in given if folder not in {run.folder for run in runs}]
    grouped: dict[str, list[_Run]] = {}
    for run in runs:
        grouped.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    rows = [_row(found) for found in grouped.values()]
    settings = [found[0].settings for found in grouped.values()]
    named = [
        replace(row, method=row.method + _difference(own, settings)) for row, own in zip(rows, settings, strict=True)
    ]
    notes = [f"{run.folder.name}: {doubt}" for run in runs for doubt in _doubts(run)]
    return named, [*notes, *(f"{name}: no evaluation, left out" for name in others)]


def _read(folder: Path) -> _Run | None:
    if folder.exists() and not (folder / "run.json").is_file():
        return None
    facts = _load(folder / "run.json")
    if "dataset" not in facts:
        return None
    summary = _load(folder / "summary.json")
    missing = [*({*_NAMES, "seed"} - facts.keys()), *({"metrics", "questions"} - summary.keys())]
    if missing:
        raise DataError(
            f"{folder}: run.json and summary.json lack {', '.join(sorted(missing))}; run the evaluation again with "
            "this version"
        )
    return _Run(folder, facts, summary)


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}): the folder of a finished evaluation is needed; the command that began "
            "one goes on with it"
        ) from error


def _row(runs: Sequence[_Run]) -> Row:
    cells: dict[Key, list[Cell]] = {}
    seen: dict[tuple[str, int], Path] = {}
    for run in runs:
        dataset, seed = str(run.facts["dataset"]), run.facts["seed"]
        if other := seen.get((dataset, seed)):
            raise DataError(f"{run.folder} and {other} are the same evaluation with the same seed; name one")
        seen[dataset, seed] = run.folder
        for metric, value in run.summary["metrics"].items():
            if value["mean"] is None or not isfinite(value["mean"]):
                continue
            scale = 1 if metric in _NO_SHARES else 100
            numbers = (scale * value[name] for name in ("mean", "low", "high"))
            cells.setdefault((dataset, metric), []).append(Cell(*numbers))
    method, model, prompt = (" ".join(str(runs[0].facts[name]).split()) for name in _NAMES)
    return Row(method, model, prompt, OWN, OWN, {key: _average(found) for key, found in cells.items()})


def _average(cells: Sequence[Cell]) -> Cell:
    if len(cells) == 1:
        return cells[0]
    values = [cell.value for cell in cells]
    return Cell(mean(values), spread=stdev(values), runs=len(values))


def _difference(own: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> str:
    """Return the settings that tell a row from those with the same names, as " (topk=3)"; "" if it has none."""
    same = [other for other in others if all(other.get(name) == own.get(name) for name in _NAMES)]
    keys = [key for key in own if any(other.get(key) != own[key] for other in same)]
    return f" ({', '.join(f'{key}={own[key]:.60}' for key in keys)})" if keys else ""


def _doubts(run: _Run) -> Iterator[str]:
    """Say what the numbers of a run leave out."""
    dataset, questions = str(run.facts["dataset"]), run.summary["questions"]
    if dataset in PUBLISHED_SETS:
        problem = count_problem(dataset, PUBLISHED_SETS[dataset].splits[-1], questions)
        yield from (problem,) if problem else ()
    counts = {
        "failed": "questions failed",
        "judge_unparsed": "verdicts are unreadable",
        "judge_missing": "are not judged",
    }
    for name, what in counts.items():
        if count := run.summary.get(name):
            yield f"{count:,} of {questions:,} {what}, and are left out"
