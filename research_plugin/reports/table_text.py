"""Rows of results as text: Markdown and LaTeX for reading, CSV with one line per number. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from research_plugin.reports.results import Cell, Key, Row, average, gains

_ORDER = ("hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
_ITER_RETGEN, _BEST = "iter_retgen", "best of each column"
_WORDS = 4  # columns before the numbers


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    header: list[str]
    body: list[list[str]]


def as_markdown(rows: Sequence[Row], metrics: Sequence[str], notes: Sequence[str]) -> str:
    """Return both tables, the notes after them."""
    parts = []
    for table in _tables(rows, metrics):
        lines = [table.header, ["---"] * len(table.header), *table.body]
        text = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        parts.append(f"## {table.title}\n\n{text}\n")
    return "\n".join([*parts, *(f"- {note}\n" for note in notes)])


def as_latex(rows: Sequence[Row], metrics: Sequence[str], notes: Sequence[str]) -> str:
    """Return both tables as ``tabular`` with booktabs' rules, notes as comments."""
    parts = ["% \\usepackage{booktabs}"]
    for table in _tables(rows, metrics):
        head, *lines = [" & ".join(map(escape_latex, line)) + r" \\" for line in (table.header, *table.body)]
        parts += [
            f"% {table.title}",
            rf"\begin{{tabular}}{{{'l' * _WORDS}{'r' * (len(table.header) - _WORDS)}}}",
            *(r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"),
        ]
    return "\n".join([*parts, *(f"% {' '.join(note.split())}" for note in notes)]) + "\n"


def escape_latex(text: str) -> str:
    """Return ``text`` so that LaTeX prints it as it is."""
    named = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    return re.sub(r"[\\~^±&%$#_{}]", lambda found: named.get(found[0], "\\" + found[0]), text)


def as_csv(rows: Sequence[Row], metrics: Sequence[str], notes: Sequence[str]) -> str:
    """Return one line per number: results, and gains over baselines; notes are left out."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ("value", "low", "high", "spread", "runs")
    writer.writerow(["source", "method", "prompt", "model", "over", "dataset", "metric", *names])
    lines = [(row, "", row.cells) for row in rows]
    lines += [(row, over, {key: Cell(value) for key, value in found.items()}) for row, over, found in _gains(rows)]
    for row, over, cells in lines:
        for dataset, metric in _columns(rows, metrics):
            if cell := cells.get((dataset, metric)):
                who = [row.source, row.method, row.prompt, row.model, over, dataset, metric]
                writer.writerow([*who, *(_plain(getattr(cell, name)) for name in names)])
    return out.getvalue()


FORMATS: dict[str, Callable[[Sequence[Row], Sequence[str], Sequence[str]], str]] = {
    "md": as_markdown,
    "csv": as_csv,
    "tex": as_latex,
}
"""File ending -> writer."""


def _tables(rows: Sequence[Row], metrics: Sequence[str]) -> list[_Table]:
    columns = _columns(rows, metrics)
    numbers = [*(f"{dataset} {metric}" for dataset, metric in columns), *(f"average {metric}" for metric in metrics)]
    results, compared = [], []
    for row in rows:
        values = {key: cell.value for key, cell in row.cells.items()}
        averages = _averages(values, row.group, rows, metrics)
        cells = [*(_cell(row.cells.get(key)) for key in columns), *(_number(value) for value in averages)]
        results.append([row.method, row.prompt, row.model, row.source, *cells])
    for row, over, values in _gains(rows):
        found = [*(values.get(key) for key in columns), *_averages(values, row.group, rows, metrics)]
        compared.append([row.method, row.prompt, row.model, over, *(_number(value, "+") for value in found)])
    tables = [
        _Table("Results, shares in %", ["method", "prompt", "model", "source", *numbers], results),
        _Table("Gains over baselines, points", ["method", "prompt", "model", "over", *numbers], compared),
    ]
    return [table for table in tables if table.body]


def _gains(rows: Sequence[Row]) -> list[tuple[Row, str, dict[Key, float]]]:
    """Return every trained row's gains, over Iter-RetGen and over each column's best baseline of its group."""
    found = []
    for row in rows:
        baselines = [other for other in rows if other.is_baseline and other.group == row.group]
        iterated = [other for other in baselines if other.method.partition(" ")[0] == _ITER_RETGEN]
        for over, others in ((_ITER_RETGEN, iterated), (_BEST, baselines)):
            if others and not row.is_baseline:
                found.append((row, over, gains(row, others)))
    return found


def _columns(rows: Sequence[Row], metrics: Sequence[str]) -> list[Key]:
    present = {dataset for row in rows for dataset, metric in row.cells if metric in metrics}
    datasets = [name for name in _ORDER if name in present] + sorted(present.difference(_ORDER))
    return [(dataset, metric) for dataset in datasets for metric in metrics]


def _averages(
    values: Mapping[Key, float], group: str, rows: Sequence[Row], metrics: Sequence[str]
) -> list[float | None]:
    """Return the mean of each metric over all data sets that the group has; None where one is missing."""
    wanted = {key for row in rows if row.group == group for key in row.cells}
    return [
        average(values, metric) if all(key in values for key in wanted if key[1] == metric) else None
        for metric in metrics
    ]


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return _number(cell.value) + ("" if cell.spread is None else f" ± {_number(cell.spread)} ({cell.runs})")


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.2f}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
