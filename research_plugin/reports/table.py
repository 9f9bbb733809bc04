"""``research-plugin report table``: evaluations beside Table 2 of ReSearch, and what they gain over the baselines."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from research_plugin.errors import ConfigError
from research_plugin.reports.eval_runs import read_runs
from research_plugin.reports.results import PUBLISHED_SIZES, published_rows
from research_plugin.reports.table_text import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("runs", nargs="*", type=Path, metavar="RUN", help="folders that research-plugin eval wrote")
    add("--out", type=Path, metavar="DIR", help="write table.md, table.csv and table.tex (default: Markdown, printed)")
    add(
        "--published",
        choices=(*PUBLISHED_SIZES, "all", "none"),
        default="all",
        help="rows of the paper that stand beside them (default: %(default)s)",
    )
    add(
        "--metric",
        action="append",
        metavar="NAME",
        help="em, judge, f1, or any other of a summary.json; may be repeated (default: em and judge)",
    )


def run(args: argparse.Namespace) -> int:
    """Read, compare and write."""
    sizes = {"all": PUBLISHED_SIZES, "none": ()}.get(args.published, (args.published,))
    own, notes = read_runs(args.runs)
    rows = [row for size in sizes for row in published_rows(size)] + own
    if not rows:
        raise ConfigError("no table without a row: name the folder of an evaluation, or leave out --published none")
    known = {metric for row in rows for _, metric in row.cells}
    if unknown := set(args.metric or ()) - known:
        raise ConfigError(f"--metric {', '.join(sorted(unknown))}: no row has it; known: {', '.join(sorted(known))}")
    texts = {ending: write(rows, args.metric or ["em", "judge"], notes) for ending, write in FORMATS.items()}
    if args.out is None:
        print(texts["md"], end="")
        return 0
    _write(args.out, texts)
    return 0


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for ending, text in texts.items():
        path = folder / f"table.{ending}"
        path.write_text(text, encoding="utf-8")
        print(path)
