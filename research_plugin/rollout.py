"""Token bookkeeping of one rollout: ids, response_mask and log-probs that always have equal length.

Pure: takes ids and numbers, does no I/O and knows no tokenizer. Ids the engine sampled are appended as they are and
never re-encoded; whatever the environment inserts is appended with mask 0. This is the only place where the mask is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from research_plugin.protocol import Segment


class StopReason(str, Enum):
    """Why a rollout ended."""

    ANSWERED = "answered"
    """The policy ended its turn with an end token."""
    MAX_LENGTH = "max_length"
    """No room was left for another token, in the response or in the model's context."""
    MAX_SEARCHES = "max_searches"
    """The policy searched once more than it may, and the setting says to stop there."""
    SEARCH_FAILED = "search_failed"
    """A query got no answer from the retriever: an infrastructure fault, kept out of training."""
    ABORTED = "aborted"
    """The engine gave the request up (weight update, shutdown): kept out of training."""

    @property
    def is_fault(self) -> bool:
        """True when the rollout says nothing about the policy, so that it must be neither scored nor trained on."""
        return self in (StopReason.SEARCH_FAILED, StopReason.ABORTED)


@dataclass(slots=True)
class Rollout:
    """One growing rollout.

    Attributes:
        prompt_ids: Prompt tokens, length P.
        response_length: Most response tokens, own and inserted together (veRL's ``rollout.response_length``).
        max_model_len: Most tokens of prompt and response together, or None for no such limit.
        response_ids: Response tokens, length R <= response_length.
        response_mask: Length R; 1 where the policy wrote the token, 0 on observations and nowhere else.
        log_probs: Length R; the engine's log-probability of each sampled token (natural log), 0.0 on observations.
        segments: The response as text, in order, with who wrote each piece.
        stop_reason: Why it ended; None while it runs.
    """

    prompt_ids: list[int]
    response_length: int
    max_model_len: int | None = None
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    stop_reason: StopReason | None = None
    has_log_probs: bool = True
    """False once the engine returned a turn without log-probabilities; `log_probs` then means nothing."""

    @property
    def context_ids(self) -> list[int]:
        """Prompt and response so far: what the next turn continues. Each turn's value is a prefix of the next one's."""
        return self.prompt_ids + self.response_ids

    @property
    def remaining(self) -> int:
        """How many more tokens may be appended; never negative."""
        room = self.response_length - len(self.response_ids)
        if self.max_model_len is not None:
            room = min(room, self.max_model_len - len(self.prompt_ids) - len(self.response_ids))
        return max(0, room)

    @property
    def generated_tokens(self) -> int:
        """Tokens the policy wrote: the sum of the mask."""
        return sum(self.response_mask)

    @property
    def retrieved_tokens(self) -> int:
        """Tokens the environment inserted."""
        return len(self.response_mask) - sum(self.response_mask)

    def add_policy(self, ids: Sequence[int], log_probs: Sequence[float] | None, text: str) -> None:
        """Append a turn the policy sampled; anything past `remaining` is cut from ids, mask and log-probs alike.

        Args:
            ids: Sampled tokens, length T.
            log_probs: Length T, or None when the engine returned none.
            text: The turn as text, for parsing and records only.

        Raises:
            ValueError: ids and log_probs differ in length.
        """
        if log_probs is not None and len(log_probs) != len(ids):
            raise ValueError(f"the engine returned {len(ids)} tokens but {len(log_probs)} log-probabilities")
        kept = list(ids[: self.remaining])
        self.response_ids += kept
        self.response_mask += [1] * len(kept)
        # A turn without tokens has no log-probabilities to miss.
        self.has_log_probs = self.has_log_probs and (log_probs is not None or not kept)
        self.log_probs += [0.0] * len(kept) if log_probs is None else list(log_probs[: len(kept)])
        self.segments.append(Segment(text, by_policy=True))

    def add_observation(self, ids: Sequence[int], text: str) -> bool:
        """Append tokens the environment inserts, whole or not at all.

        Returns:
            False, with nothing appended, when no token of the policy would fit after it: nobody would ever read it.
        """
        if len(ids) >= self.remaining:
            return False
        self.response_ids += ids
        self.response_mask += [0] * len(ids)
        self.log_probs += [0.0] * len(ids)
        self.segments.append(Segment(text, by_policy=False))
        return True


def cut_at_end(ids: Sequence[int], end_ids: Collection[int]) -> int:
    """Return the length of ``ids`` up to and including the first end token, or all of it when there is none."""
    for index, token in enumerate(ids):
        if token in end_ids:
            return index + 1
    return len(ids)


def cut_at_stop(ids: Sequence[int], stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> int:
    """Return the length of the shortest prefix of ``ids`` whose text holds a stop string, or ``len(ids)``.

    Engines stop on the token that completes the string, so this is nearly always ``len(ids)``; speculative decoding can
    return tokens past it. The last token kept may carry characters after the string ("</search>\\n"): tokens are
    never split.
    """

    def holds(length: int) -> bool:
        text = decode(ids[:length])
        return any(string in text for string in stop)

    if len(ids) < 2 or not holds(len(ids) - 1):
        return len(ids)
    low, high = 1, len(ids) - 1  # the prefix of length `high` holds a stop string
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
