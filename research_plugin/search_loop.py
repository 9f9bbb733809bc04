"""The turn loop: generate, search, insert, until the rollout ends.

Three callables stand for the world (an engine, a retriever, a tokenizer), so that the loop runs against a scripted
generator as well as under veRL. It owns no rule: the protocol parses, `Rollout` keeps the tokens, this file awaits.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from research_plugin.document import Document
from research_plugin.errors import SearchError
from research_plugin.protocol import Dialect, parse_query
from research_plugin.rollout import Rollout, StopReason, cut_at_end, cut_at_stop


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine returned for one turn.

    Raises:
        ValueError: token_ids and log_probs differ in length.
    """

    token_ids: Sequence[int]
    log_probs: Sequence[float] | None = None
    aborted: bool = False

    def __post_init__(self) -> None:
        """Compare the lengths here: once the turn is cut they can agree by accident."""
        if self.log_probs is not None and len(self.log_probs) != len(self.token_ids):
            raise ValueError(
                f"the engine returned {len(self.token_ids)} tokens but {len(self.log_probs)} log-probabilities"
            )


class Codec(Protocol):
    """The two directions of a tokenizer that the loop needs."""

    @property
    def end_ids(self) -> Collection[int]:
        """Every token that ends the policy's turn (tokenizer eos and the model's generation_config list)."""

    @property
    def longest_token(self) -> int:
        """Most characters of a text that one token can stand for."""

    def encode(self, text: str) -> list[int]:
        """Encode text on its own, adding no token and reading special-token strings as plain text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids, special tokens kept, white space untouched."""


Generate = Callable[[list[int], int], Awaitable[Generation]]
"""(context ids, max_tokens >= 1) -> Generation. Must stop on the dialect's stop strings and on the end tokens."""

Search = Callable[[str], Awaitable[Sequence[Document]]]
"""query -> documents, best first. Raises SearchError when no retriever answers."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one rollout, in tokens and searches.

    ``max_searches`` None is no limit; a search with an empty query and a turn that draws the dialect's invalid notice
    count too. ``notice_when_spent`` chooses what happens after the last one: an observation that says so, or the end of
    the rollout. ``max_observation_tokens`` bounds one observation, tags included, and ``max_turn_tokens`` one turn of
    the policy; None leaves only the response budget.
    """

    response_length: int
    max_model_len: int | None = None
    max_searches: int | None = None
    notice_when_spent: bool = False
    max_observation_tokens: int | None = None
    max_turn_tokens: int | None = None


@dataclass(slots=True)
class Searched:
    """One search of a rollout: the query, what came back (empty for a notice) and how long it took in seconds."""

    query: str
    documents: tuple[Document, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class Episode:
    """A finished rollout with the searches it made (`searches`) and the turns that drew a notice (`refused`)."""

    rollout: Rollout
    searches: list[Searched] = field(default_factory=list)
    refused: int = 0
    turns: int = 0
    error: SearchError | None = None


def fit_observation(
    documents: Sequence[Document], dialect: Dialect, codec: Codec, limit: int | None, room: int
) -> tuple[str, list[int]] | None:
    """Format ``documents`` within ``limit`` tokens: drop documents from the end first, then cut inside the first.

    The cost is that of ``limit`` (or ``room``) tokens, not that of the documents.

    Returns:
        The observation's text and its tokens, closing tag included. Only the tags themselves can exceed ``limit``.
        None when there is no limit and the whole takes more than ``room`` tokens.
    """
    kept = list(documents)
    text = dialect.format_observation(kept)
    ids = _encode_within(text, room if limit is None else limit, codec)
    if limit is None:
        return None if ids is None else (text, ids)
    while ids is None and len(kept) > 1:
        kept.pop()
        text = dialect.format_observation(kept)
        ids = _encode_within(text, limit, codec)
    if ids is not None:
        return text, ids
    body = text[len(dialect.result_prefix) : -len(dialect.result_suffix)]
    low, high = 0, min(len(body), limit * codec.longest_token)  # `low` characters fit (or nothing does)
    while low < high:
        middle = (low + high + 1) // 2
        if _encode_within(dialect.wrap(body[:middle].rstrip()), limit, codec) is None:
            high = middle - 1
        else:
            low = middle
    text = dialect.wrap(body[:low].rstrip())
    return text, codec.encode(text)


def _encode_within(text: str, most: int, codec: Codec) -> list[int] | None:
    """Return the tokens of ``text``, or None when there are more than ``most``; one too long for that is not read."""
    if len(text) > most * codec.longest_token:
        return None
    ids = codec.encode(text)
    return ids if len(ids) <= most else None


async def run_search_loop(
    prompt_ids: Sequence[int], *, generate: Generate, search: Search, codec: Codec, dialect: Dialect, limits: Limits
) -> Episode:
    """Run one rollout to its end.

    Every way it can end is a `StopReason`; a `SearchError` is recorded on the episode, not raised. Other exceptions of
    the callables pass through.
    """
    rollout = Rollout(list(prompt_ids), limits.response_length, limits.max_model_len)
    episode = Episode(rollout)
    while rollout.stop_reason is None:
        if rollout.remaining < 1:
            rollout.stop_reason = StopReason.MAX_LENGTH
            break
        query = await _policy_turn(episode, generate, codec, dialect, limits)
        if rollout.stop_reason is None:
            await _environment_turn(episode, query, search, codec, dialect, limits)
    return episode


async def _policy_turn(
    episode: Episode, generate: Generate, codec: Codec, dialect: Dialect, limits: Limits
) -> str | None:
    """Let the policy write one turn; return its query, or None when there is none (mostly with the stop reason set)."""
    rollout = episode.rollout
    most = rollout.remaining if limits.max_turn_tokens is None else min(rollout.remaining, limits.max_turn_tokens)
    generation = await generate(rollout.context_ids, most)
    episode.turns += 1
    ids = list(generation.token_ids[:most])
    ids = ids[: cut_at_end(ids, codec.end_ids)]
    ids = ids[: cut_at_stop(ids, dialect.stop, codec.decode)]
    log_probs = None if generation.log_probs is None else generation.log_probs[: len(ids)]
    ended = bool(ids) and ids[-1] in codec.end_ids
    text = codec.decode(ids[:-1] if ended else ids)
    rollout.add_policy(ids, log_probs, text)
    query = None if ended else parse_query(text, dialect)
    if generation.aborted:
        rollout.stop_reason = StopReason.ABORTED
    elif query is None:
        rollout.stop_reason = _end_of_turn(text, ended, bool(rollout.remaining and ids), dialect)
    return query


def _end_of_turn(text: str, ended: bool, has_room: bool, dialect: Dialect) -> StopReason | None:
    """Why a turn without a search ends the rollout; None: it does not, a notice follows."""
    if dialect.answer_close and dialect.answer_close in text:
        return StopReason.ANSWERED
    if dialect.invalid_notice and has_room:
        return None
    # Neither an end token nor a stop string: the engine ran out of tokens (or had no room for even one).
    return StopReason.ANSWERED if ended else StopReason.MAX_LENGTH


async def _environment_turn(
    episode: Episode, query: str | None, search: Search, codec: Codec, dialect: Dialect, limits: Limits
) -> None:
    """Answer one query (None: a turn without a search) with an observation, or end the rollout."""
    rollout = episode.rollout
    if rollout.remaining < 2:  # no observation and no token after it would fit: do not search for nothing
        rollout.stop_reason = StopReason.MAX_LENGTH
        return
    spent = limits.max_searches is not None and len(episode.searches) + episode.refused >= limits.max_searches
    if spent and not limits.notice_when_spent:
        rollout.stop_reason = StopReason.MAX_SEARCHES
        return
    if spent or not query:
        episode.refused += 1
        text = _notice(query, spent, dialect)
        ids = codec.encode(text)
    else:
        started = time.monotonic()
        try:
            documents = tuple(await search(query))
        except SearchError as error:
            episode.error = error
            rollout.stop_reason = StopReason.SEARCH_FAILED
            return
        episode.searches.append(Searched(query, documents, time.monotonic() - started))
        # One token of the policy has to fit after it.
        fitted = fit_observation(documents, dialect, codec, limits.max_observation_tokens, rollout.remaining - 1)
        if fitted is None:
            rollout.stop_reason = StopReason.MAX_LENGTH
            return
        text, ids = fitted
    if not rollout.add_observation(ids, text):
        rollout.stop_reason = StopReason.MAX_LENGTH


def _notice(query: str | None, spent: bool, dialect: Dialect) -> str:
    if query is None:
        return dialect.invalid_notice
    return dialect.wrap(dialect.budget_notice if spent else dialect.empty_query_notice)
