"""How a rollout looks while it happens: thoughts, queries, titles of what came back, answer. Writes to a stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TextIO

from research_plugin.document import Document
from research_plugin.protocol import Dialect
from research_plugin.rewards.answer import ANSWER_CLOSE, ANSWER_OPEN

_DIM, _BOLD, _BLUE, _PLAIN = "\033[2m", "\033[1m", "\033[34m", "\033[0m"
_LONGEST_TITLE = 60
# Neither a model nor a passage may send its own commands to the terminal.
_CONTROLS = dict.fromkeys((set(range(0x20)) | set(range(0x7F, 0xA0))) - set(map(ord, "\n\t")))


class Display:
    """Takes the pieces of a turn as they come; tags become labels and, on a terminal, colours.

    A piece may end within a tag: what could become one is held back until it is clear.
    """

    def __init__(self, out: TextIO, dialect: Dialect) -> None:
        self._out = out
        self._coloured = out.isatty()
        self._marks = {
            "<think>": ("", _DIM),
            "</think>": ("", _PLAIN),
            dialect.search_open: ("search: ", _BLUE),
            dialect.search_close: ("", _PLAIN),
            ANSWER_OPEN: ("answer: ", _BOLD),
            ANSWER_CLOSE: ("", _PLAIN),
        }
        tags = "|".join(map(re.escape, self._marks))
        self._tags = re.compile(f"({tags})")
        self._held = ""
        self._blank = True  # nothing stands in this line yet, or a label alone

    def text(self, piece: str) -> None:
        """Show a piece of what the model writes; "" begins a turn."""
        if not piece:
            self._end_turn()
        *shown, self._held = self._tags.split(self._held + piece)
        for part in shown:
            if part in self._marks:
                self._new_line()
                self._write(*self._marks[part])
                self._blank = True
            else:
                self._write_on(part)
        certain = len(self._held) - self._possible_tag(self._held)
        self._write_on(self._held[:certain])
        self._held = self._held[certain:]
        self._out.flush()

    def results(self, documents: Sequence[Document]) -> None:
        """Show what a search brought, folded to titles."""
        self._end_turn()
        titles = " | ".join(_title(document) for document in documents)
        self._write(f"  {len(documents)} passages: {titles}\n" if documents else "  nothing found\n", _DIM)
        self._write("", _PLAIN)
        self._out.flush()

    def answer(self, answer: str | None, fault: str, documents: Sequence[Document]) -> None:
        """Show the final answer and the passages it can be read in; all passages where it stands in none."""
        self._end_turn()
        unique = list({document.id or document.contents: document for document in documents}.values())
        holding = [found for found in unique if answer and answer.lower() in found.contents.lower()]
        self._write(f"= {answer or f'no answer ({fault})'}\n", _BOLD)
        self._write("", _PLAIN)
        label = "  source: " if holding else "  read: "
        for document in holding or unique:
            self._write(f"{label}{_title(document)} [{document.id}]\n")
        self._out.flush()

    def error(self, message: str) -> None:
        """Show why there is no answer."""
        self._end_turn()
        self._write(f"! {message}\n")
        self._out.flush()

    def _end_turn(self) -> None:
        self._write_on(self._held)
        self._held = ""
        self._new_line()
        self._write("", _PLAIN)

    def _new_line(self) -> None:
        if not self._blank:
            self._write("\n")

    def _write_on(self, text: str) -> None:
        """Write what the model wrote, without blank lines and blanks at the beginning of a line."""
        for line in text.splitlines(keepends=True):
            self._write(line.lstrip() if self._blank else line)

    def _write(self, text: str, style: str = "") -> None:
        if style and self._coloured:
            self._out.write(style)
        if text := text.translate(_CONTROLS):
            self._out.write(text)
            self._blank = text.endswith("\n")

    def _possible_tag(self, text: str) -> int:
        """Return how many characters at the end of ``text`` may be the beginning of a tag."""
        longest = max(map(len, self._marks)) - 1
        ends = (size for size in range(min(longest, len(text)), 0, -1))
        return next((size for size in ends if any(tag.startswith(text[-size:]) for tag in self._marks)), 0)


def _title(document: Document) -> str:
    title = document.contents.partition("\n")[0].strip().strip('"')
    return title if len(title) <= _LONGEST_TITLE else f"{title[:_LONGEST_TITLE]}..."
