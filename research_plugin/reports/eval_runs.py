"""Folders that ``research-plugin eval`` wrote, as rows of results; runs that differ only by their seed are averaged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from research_plugin.data.published_sets import PUBLISHED_SETS, count_problem
from research_plugin.errors import DataError
from research_plugin.reports.results import Cell, Key, Row

OWN = "own runs"


def read_runs(folders: Sequence[Path]) -> tuple[list[Row], list[str]]:
    """Return the rows of these runs, and a note for every run whose number says less than it seems to.

    Raises:
        DataError: a folder holds no finished evaluation, or two runs are the same one.
    """
    cells: dict[tuple[str, str, str], dict[Key, list[Cell]]] = {}
    seen: dict[tuple[Any, ...], Path] = {}
    notes: list[str] = []
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        facts, summary = (_load(folder / name) for name in ("run.json", "summary.json"))
        row = (str(facts["method"]), str(facts["model"]), str(facts.get("prompt") or ""))
        identity = (*row, facts["dataset"], facts.get("seed"))
        if identity in seen:
            raise DataError(f"{folder} and {seen[identity]} are the same evaluation with the same seed; name one")
        seen[identity] = folder
        notes += (f"{folder.name}: {text}" for text in _doubts(str(facts["dataset"]), summary))
        for metric, value in summary["metrics"].items():
            cell = Cell(*(100 * value[name] for name in ("mean", "low", "high")))
            cells.setdefault(row, {}).setdefault((str(facts["dataset"]), metric), []).append(cell)
    return [Row(*row, OWN, OWN, _merge(found)) for row, found in cells.items()], notes


def _doubts(dataset: str, summary: Mapping[str, Any]) -> Iterator[str]:
    questions = summary["questions"]
    if problem := count_problem(dataset, _split_of(dataset), questions):
        yield problem
    for name, what in (("judge_unparsed", "had no readable verdict"), ("judge_missing", "were never judged")):
        if summary.get(name):
            yield f"{summary[name]:,} of {questions:,} answers {what}; they are left out of judge"


def _split_of(dataset: str) -> str:
    return PUBLISHED_SETS[dataset].splits[-1] if dataset in PUBLISHED_SETS else ""


def _merge(cells: Mapping[Key, Sequence[Cell]]) -> dict[Key, Cell]:
    return {key: found[0] if len(found) == 1 else _average(found) for key, found in cells.items()}


def _average(cells: Iterable[Cell]) -> Cell:
    values = [cell.value for cell in cells]
    return Cell(mean(values), spread=stdev(values), runs=len(values))


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}): the folder of a finished evaluation is needed; the command that began "
            "one goes on with it"
        ) from error
