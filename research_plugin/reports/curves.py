"""``research-plugin report curves``: how runs went, against their steps, as PNG, SVG and one interactive HTML file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from research_plugin.errors import ConfigError
from research_plugin.reports.curve_points import PANELS, RunCurves, read_curves, sorted_points
from research_plugin.reports.html_page import html_page

COLOURS = ("#2f6fb7", "#c8590f", "#2e8b57", "#8e4bb0", "#a67c00", "#c2416b", "#3f8696", "#6b6b6b")
_TRAIN: dict[str, Any] = {"linewidth": 1.4, "markersize": 3.5}
_VAL: dict[str, Any] = {"linewidth": 1.1, "linestyle": "--", "marker": "o", "markersize": 3.5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="a run's folder, or NAME=FOLDER to choose its name in the legend")
    add("--out", type=Path, metavar="DIR", help="where to write curves.png, .svg and .html (default: the first RUN)")


def run(args: argparse.Namespace) -> int:
    """Read the runs and write the three files."""
    # A folder's name may be no valid Unicode, which neither page nor picture can show.
    named = [(name.encode("utf-8", "replace").decode(), path) for name, path in map(_split_name, args.runs)]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        raise ConfigError(f"two runs are called the same: {', '.join(names)}; write NAME=FOLDER to tell them apart")
    if len(named) > len(COLOURS):
        raise ConfigError(f"{len(named)} runs in one diagram; at most {len(COLOURS)} can be told apart")
    runs = [read_curves(path, name) for name, path in named]
    first = named[0][1]
    folder = args.out or (first if first.is_dir() else first.parent)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "curves.html").write_text(curves_html(runs), encoding="utf-8")
    draw(runs, [folder / "curves.png", folder / "curves.svg"])
    for ending in ("html", "png", "svg"):
        print(folder / f"curves.{ending}")
    return 0


def _split_name(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if equals and not Path(text).exists():
        return name, Path(path)
    return Path(text).resolve().name, Path(text)


def curves_html(runs: Sequence[RunCurves]) -> str:
    """Return the interactive page, which needs no network."""
    panels = [panel for panel in PANELS if any(_has(run, panel.key) for run in runs)]
    data = {
        "panels": [{"key": panel.key, "title": panel.title} for panel in panels],
        "runs": [
            {
                "name": run.name,
                "train": {panel.key: sorted_points(run.train.get(panel.key, {})) for panel in panels},
                "val": {panel.key: sorted_points(run.val.get(panel.key, {})) for panel in panels},
            }
            for run in runs
        ],
    }
    title = "Training curves: " + ", ".join(run.name for run in runs)
    return html_page("research_plugin.reports", "curves", ("curves.js",), title, data)


def draw(runs: Sequence[RunCurves], paths: Sequence[Path]) -> None:
    """Draw all panels into one figure and save it under each path; the ending chooses the format."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    panels = [panel for panel in PANELS if any(_has(run, panel.key) for run in runs)]
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.6 * rows + 0.5), layout="constrained")
    for at, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, at + 1)
        for run, colour in zip(runs, COLOURS, strict=False):
            for points, style in ((run.train, _TRAIN), (run.val, _VAL)):
                if line := sorted_points(points.get(panel.key, {})):
                    steps, values = zip(*line, strict=True)
                    marked = _VAL["marker"] if len(line) == 1 else style.get("marker")  # no line goes through one point
                    axes.plot(steps, values, color=colour, **style | {"marker": marked})
        axes.set_title(panel.title, fontsize=10, loc="left")
        low, high = min(0.0, axes.get_ylim()[0]), axes.get_ylim()[1]
        axes.set_ylim(low, high + 0.04 * (high - low))  # a share of 1 must not lie on the frame
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        if at // columns == rows - 1:
            axes.set_xlabel("step", fontsize=9)
    handles = [Line2D([], [], color=colour, label=run.name) for run, colour in zip(runs, COLOURS, strict=False)]
    handles.append(Line2D([], [], color="#444", label="training", **_TRAIN))
    handles.append(Line2D([], [], color="#444", label="validation", **_VAL))
    places: dict[str, Any] = {"loc": "outside lower center", "ncols": min(6, len(handles))}
    for text in figure.legend(handles=handles, fontsize=9, frameon=False, **places).get_texts():
        text.set_parse_math(False)  # "$" in a run's name is a character
    for path in paths:
        figure.savefig(path, dpi=150, bbox_inches="tight")  # long names make the legend wider than the figure


def _has(run: RunCurves, key: str) -> bool:
    return bool(run.train.get(key) or run.val.get(key))
