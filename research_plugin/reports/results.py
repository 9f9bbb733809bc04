"""Results of methods on data sets, shares in percent, and how rows compare. Pure but for the published table.

A row's cells are keyed by (data set, metric); a cell that is not there was not measured.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

BASELINES = ("direct", "rag", "iter_retgen", "ircot", "search_o1")
"""Methods without training; every other one is compared with them."""

PUBLISHED_SIZES = ("7b", "32b")

Key = tuple[str, str]
"""(data set, metric)"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One number, a share in percent.

    Attributes:
        low: Lower end of the 95 % interval over questions; None for several runs, and where nobody published it.
        spread: Standard deviation over runs with different seeds; None for one run.
    """

    value: float
    low: float | None = None
    high: float | None = None
    spread: float | None = None
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """What one method, prompt and model reached; ``source`` says who measured it, ``group`` what is compared."""

    method: str
    model: str
    prompt: str
    source: str
    group: str
    cells: Mapping[Key, Cell] = field(default_factory=dict)

    @property
    def is_baseline(self) -> bool:
        """Whether others are compared with it; "rag x4 majority" is, too."""
        return self.method.partition(" ")[0] in BASELINES


def published_rows(size: str) -> list[Row]:
    """Return Table 2 of ReSearch (arXiv 2503.19470) for one model size; its baselines ran on the Instruct model."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["size"] == size]
    rows = []
    for line in lines:
        cells = {_key(name): Cell(float(text)) for name, text in line.items() if "_" in name}
        prompt = "" if line["method"] != "research" else "instruct" if line["model"].endswith("Instruct") else "base"
        rows.append(Row(line["method"], line["model"], prompt, "paper", f"paper {size}", cells))
    return rows


def _key(column: str) -> Key:
    dataset, _, metric = column.rpartition("_")
    return dataset, metric


def gains(row: Row, baselines: Sequence[Row]) -> dict[Key, float]:
    """Return by how many points ``row`` is above the best of ``baselines``, for each cell that both have."""
    best = {
        key: max(known) for key in row.cells if (known := [b.cells[key].value for b in baselines if key in b.cells])
    }
    return {key: row.cells[key].value - value for key, value in best.items()}


def average(values: Mapping[Key, float], metric: str) -> float | None:
    """Return the mean of a metric over data sets; None without any."""
    found = [value for (_, name), value in values.items() if name == metric]
    return mean(found) if found else None
