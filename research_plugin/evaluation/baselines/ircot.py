"""IRCoT (arXiv 2212.10509): a chain of thought whose every sentence is the next query.

The prompt is a text to complete, with a worked example: asked in a chat, models answer at once. Passages are collected
over the rounds and stand before the question, the best one last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from research_plugin.document import Document
from research_plugin.evaluation.method import Attempt, World
from research_plugin.evaluation.prompts import fill

__all__ = ["Passages", "first_sentence", "ircot"]

_ROUNDS = 5
_MARK = "So the answer is:"
# A full stop after an initial, as in "J. R. R. Tolkien", ends no sentence.
_SENTENCE_END = re.compile(r"(?<!\b[A-Z])[.!?](?=\s)")


async def ircot(question: str, world: World) -> Attempt:
    """Think a sentence, search for it, go on; without an answer after the last round the whole chain is the answer."""
    passages, thoughts = Passages(), [question]
    for _ in range(world.settings.rounds or _ROUNDS):
        passages.add(await world.search(thoughts[-1]))
        prompt = fill("ircot", passages=passages.text(), question=question)
        reply = await world.complete(" ".join([prompt, *thoughts[1:]]), stop=["\n"])
        thoughts.append(first_sentence(reply.text))
        if _MARK in thoughts[-1]:
            return world.attempt(thoughts[-1].partition(_MARK)[2].strip().removesuffix("."))
        if not thoughts[-1]:
            break
    return world.attempt(" ".join(thoughts[1:]).strip(), "max_searches")


class Passages:
    """Documents of several searches, each once with the best score it had; a server without scores counts by rank."""

    def __init__(self) -> None:
        self._best: dict[str, tuple[float, Document]] = {}

    def add(self, documents: Sequence[Document]) -> None:
        """Take in what one search brought, best first."""
        for rank, document in enumerate(documents):
            score = float(-rank) if document.score is None else document.score
            key = document.id or document.contents
            if key not in self._best or score > self._best[key][0]:
                self._best[key] = (score, document)

    def text(self) -> str:
        """Return the passages by rising score."""
        ranked: Iterable[tuple[float, Document]] = sorted(self._best.values(), key=lambda found: found[0])
        return "\n\n".join(f"Title: {document.contents}" for _, document in ranked)


def first_sentence(text: str) -> str:
    """Return the first sentence of the first line, or the whole line where that sentence gives the answer."""
    line = text.strip().partition("\n")[0]
    end = _SENTENCE_END.search(line)
    sentence = line[: end.end()] if end else line
    return line if _MARK in sentence else sentence
