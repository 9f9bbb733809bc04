"""Small real stand-ins for the world of a rollout: a tokenizer, an engine and a retriever that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from research_plugin.document import Document
from research_plugin.errors import SearchError
from research_plugin.protocol import Dialect
from research_plugin.search_loop import Generation

SHORT = Dialect(
    name="short",
    search_open="[",
    search_close="]",
    result_prefix="(",
    result_suffix=")",
    document="{contents};",
    no_documents="none",
    empty_query_notice="empty",
    budget_notice="spent",
)
"""One character a tag, so that a mask can be written under its text."""


END_TEXTS = {1: "$", 2: "&"}


class CharTokenizer:
    """A `Codec` whose ids are code points, "$" and "&" (as ids 1 and 2) end a turn.

    ``pieces`` are longer tokens with ids from 2,000,000 on. `encode` takes them wherever they match, `decode` knows
    them, and a script may sample the same text in single characters: then encode(decode(ids)) != ids.
    """

    END, OTHER_END = 1, 2

    def __init__(self, pieces: Sequence[str] = ()) -> None:
        self.end_ids = frozenset(END_TEXTS)
        self.pieces = {2_000_000 + index: piece for index, piece in enumerate(pieces)}
        self.longest_token = max(map(len, pieces), default=1)

    def encode(self, text: str) -> list[int]:
        """Longest piece first; end tokens never come out of text."""
        ids: list[int] = []
        while text:
            matches = [(len(piece), number) for number, piece in self.pieces.items() if text.startswith(piece)]
            length, token = max(matches, default=(1, ord(text[0])))
            ids.append(token)
            text = text[length:]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Join the tokens' texts."""
        return "".join(END_TEXTS.get(token) or self.pieces.get(token) or chr(token) for token in ids)

    def sample(self, text: str) -> list[int]:
        """The ids an engine samples for ``text``: one a character, and "$" and "&" are the end tokens."""
        ends = {text: token for token, text in END_TEXTS.items()}
        return [ends.get(char, ord(char)) for char in text]


class ScriptedGenerator:
    """A `Generate` that returns one scripted turn a call: text, ids, or a whole `Generation`.

    Like an engine it stops at ``max_tokens``. Turn k's log-probabilities are all -k. ``calls`` keeps the context and
    max_tokens of every call. After the last turn it returns nothing.
    """

    def __init__(self, codec: CharTokenizer, turns: Sequence[str | list[int] | Generation]) -> None:
        self.codec, self.turns = codec, list(turns)
        self.calls: list[tuple[list[int], int]] = []

    async def __call__(self, context_ids: list[int], max_tokens: int) -> Generation:
        """Return the next turn."""
        assert max_tokens >= 1
        self.calls.append((context_ids, max_tokens))
        await asyncio.sleep(0)
        turn = self.turns[len(self.calls) - 1] if len(self.calls) <= len(self.turns) else []
        if isinstance(turn, Generation):
            return turn
        ids = (self.codec.sample(turn) if isinstance(turn, str) else turn)[:max_tokens]
        return Generation(ids, [-float(len(self.calls))] * len(ids))


class StubRetriever:
    """A `Search` over a dict of passages; a query it does not know has no documents, "down" raises `SearchError`."""

    def __init__(self, passages: Mapping[str, Sequence[str]] | None = None, seconds: float = 0.0) -> None:
        self.passages, self.seconds = passages or {}, seconds
        self.queries: list[str] = []
        self.in_flight = self.most_in_flight = 0

    async def __call__(self, query: str) -> list[Document]:
        """Answer after ``seconds``."""
        self.queries.append(query)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(self.seconds)
        self.in_flight -= 1
        if query == "down":
            raise SearchError("no retriever answers")
        return [Document(str(index), text) for index, text in enumerate(self.passages.get(query, ()))]
