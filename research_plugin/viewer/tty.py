"""The viewer for a terminal: a list, a rollout's page and its loss mask, in the colours of the HTML viewer.

It reads one command a line, so that it works over any connection; without a terminal it prints the list and ends.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from research_plugin.errors import DataError
from research_plugin.records import RolloutRecord
from research_plugin.reports.read_records import RunRecords
from research_plugin.viewer.pages import COLUMNS, blocks_of, row_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["browse", "mask_text", "page_text"]

COLOURS = {"think": "blue", "search": "yellow", "result": "bright_black", "answer": "magenta", "text": "white"}
_PAGE_ROWS = 20
HELP = "NUMBER open, n next, p previous, f next failed, m loss mask, l list, + more of the list, /TEXT search, q quit"


class _Rollouts:
    """The list, newest step first: each row's values by name, and where its record stands."""

    def __init__(self, records: RunRecords) -> None:
        self._records = records
        rows = [
            (place, dict(zip(COLUMNS, row_of(record), strict=True))) for place, record in records.new_with_progress()
        ]
        self._all = sorted(rows, key=lambda row: -row[1]["step"])
        self.shown = self._all

    def read(self, at: int) -> RolloutRecord:
        return self._records.read(self.shown[at][0])

    def search(self, text: str) -> None:
        keys = ("question", "pred", "golds", "queries")
        self.shown = [row for row in self._all if any(text.lower() in str(row[1][key]).lower() for key in keys)]

    def next_failed(self, at: int) -> int:
        return next((n for n in range(at + 1, len(self.shown)) if self.shown[n][1]["failed"]), len(self.shown))


def browse(records: RunRecords) -> int:
    """Show the list, then do what the lines typed say."""
    from rich.console import Console

    console = Console(highlight=False)
    rollouts = _Rollouts(records)
    at, mask, top = -1, False, 0
    _print_list(console, rollouts, top)
    for line in _lines(console):
        if line == "q":
            break
        if line.startswith("/"):
            rollouts.search(line[1:])
            line, at, top = "l", -1, 0
        if line in ("l", "+"):
            top = 0 if line == "l" else top + _PAGE_ROWS
            _print_list(console, rollouts, top)
            continue
        moves = {"n": at + 1, "p": max(at - 1, 0), "f": rollouts.next_failed(at), "m": at}
        wanted = moves.get(line, int(line) - 1 if line.isdecimal() else -1)
        mask = mask != (line == "m")
        if not 0 <= wanted < len(rollouts.shown):
            console.print(f"no such rollout or command; {HELP}", style="bright_black")
            continue
        at = wanted
        _print_page(console, rollouts, at, mask)
    return 0


def _lines(console: Console) -> Iterator[str]:
    while sys.stdin.isatty():
        try:
            yield console.input(f"[bright_black]{HELP} > [/]").strip()
        except (EOFError, KeyboardInterrupt):
            return


def _print_list(console: Console, rollouts: _Rollouts, top: int) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bright_black", expand=True, padding=(0, 1, 0, 0))
    for name, width in {"": 6, "step": 5, "split": 5, "score": 5, "searches": 8}.items():
        table.add_column(name, justify="left" if name == "split" else "right", min_width=width, no_wrap=True)
    table.add_column("question", ratio=3, no_wrap=True)
    table.add_column("prediction", ratio=1, no_wrap=True)
    for at, (_, row) in enumerate(rollouts.shown[top : top + _PAGE_ROWS], start=top + 1):
        score = "-" if row["score"] is None else f"{row['score']:.3g}"
        shown = Text(score, style="red" if row["failed"] else "green")
        # Text, not markup: "[red]" in a question is what somebody wrote.
        others = (str(at), *(_printable(str(row[key])) for key in ("step", "split", "searches", "question", "pred")))
        number, step, split, searches, question, pred = (Text(cell) for cell in others)
        table.add_row(number, step, split, shown, searches, question, pred)
    console.print(table)
    console.print(f"{len(rollouts.shown)} rollouts", style="bright_black")


def _print_page(console: Console, rollouts: _Rollouts, at: int, mask: bool) -> None:
    from rich.rule import Rule
    from rich.text import Text

    try:
        record = rollouts.read(at)
    except DataError as error:
        console.print(Text(str(error), style="red"))
        return
    place = f"{at + 1} of {len(rollouts.shown)} · step {record.step} · {_printable(record.split)}"
    console.print(Rule(Text(place), style="bright_black"))
    console.print(Text(_printable(record.question), style="bold"))
    console.print(Text(_facts(record)))
    console.print(mask_text(record) if mask else page_text(record))


def _facts(record: RolloutRecord) -> str:
    advantage = "" if record.advantage is None else f", advantage {record.advantage:+.3f}"
    score = record.scores.get("score")
    lines = [
        f"score {'-' if score is None else f'{score:.3g}'}{advantage}  {record.reason}",
        f"prediction: {record.pred or '-'}   golden answers: {' | '.join(record.golden_answers)}",
    ]
    return _printable("\n".join(lines)) + "\n"


def page_text(record: RolloutRecord) -> Text:
    """Return the response, each block in its colour, the golden answers in results and answers marked."""
    from rich.text import Text

    page = Text()
    for block in blocks_of(record):
        part = Text(_printable(block.text).strip(), style=COLOURS[block.kind])
        if block.kind in ("result", "answer"):
            part.highlight_words(
                [answer for answer in record.golden_answers if answer], "bold green", case_sensitive=False
            )
        page.append(f"{block.kind}\n", style=f"bold {COLOURS[block.kind]}").append_text(part).append("\n\n")
    return page


def mask_text(record: RolloutRecord) -> Text:
    """Return the response token by token: trained ones underlined and the redder the less likely, others dim."""
    from rich.text import Text

    if record.tokens is None:
        pieces: Sequence[tuple[str, bool, float]] = [(text, own, 0.0) for text, own in record.segments]
    else:
        logs = record.tokens.log_probs or [0.0] * len(record.tokens.mask)
        pieces = [
            (text, bool(own), log) for text, own, log in zip(record.tokens.texts, record.tokens.mask, logs, strict=True)
        ]
    page = Text()
    for text, own, log in pieces:
        page.append(_printable(text), style=_shade(log) if own else "dim")
    return page


def _shade(log_prob: float) -> str:
    doubt = 0.0 if math.isnan(log_prob) else 1 - math.exp(min(log_prob, 0.0))
    return f"underline rgb({int(90 + 165 * doubt)},{int(170 - 90 * doubt)},{int(255 - 175 * doubt)})"


def _printable(text: str) -> str:
    """Return ``text`` without control characters: a document must not steer the terminal."""
    return "".join(char if char in "\n\t" or char.isprintable() else "\ufffd" for char in text)
