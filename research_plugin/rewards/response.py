"""What a reward judges: a response split by author, how its rollout ended, and the searches in it.

`read_response` is the only place that reads ``extra_info``. It knows no method's tags but through a `Dialect`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from research_plugin.errors import DataError
from research_plugin.protocol import RESEARCH, Dialect, Segment, parse_query, parse_response

__all__ = ["END_TOKENS", "STOP_REASONS", "Response", "read_response"]

END_TOKENS = ("<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>", "<|end_of_text|>")
"""Texts of end tokens, for responses that were decoded with their special tokens."""

STOP_REASONS = ("answered", "max_length", "max_searches", "search_failed", "aborted")


@dataclass(frozen=True, slots=True)
class Response:
    """A response, up to its first end token where it is text alone. Neighbouring segments have different authors."""

    segments: tuple[Segment, ...]
    stop_reason: str | None = None
    """One of `STOP_REASONS`, or None when nobody said: the response then counts as finished."""
    num_searches: int = 0
    has_tail: bool = False
    """Whether anything but end tokens followed the first end token."""

    @property
    def text(self) -> str:
        """Everything, observations included."""
        return "".join(segment.text for segment in self.segments)

    @property
    def turns(self) -> list[str]:
        """What the policy wrote, one text for each stretch between observations."""
        return [segment.text for segment in self.segments if segment.by_policy]

    @property
    def policy_text(self) -> str:
        """All turns; a newline stands for an observation, so that no tag forms across one."""
        return "\n".join(self.turns)

    @property
    def finished(self) -> bool:
        """Whether the policy ended the response itself."""
        return self.stop_reason in (None, "answered")

    def searched_turns(self) -> list[str]:
        """Return the policy's turns that an observation followed."""
        turns = zip(self.segments, self.segments[1:], strict=False)
        return [turn.text for turn, following in turns if turn.by_policy and not following.by_policy]

    def queries(self, dialect: Dialect = RESEARCH) -> list[str]:
        """Return the queries an observation answered, without empty ones."""
        return [query for turn in self.searched_turns() if (query := parse_query(turn, dialect))]


def read_response(
    text: str, extra_info: Mapping[str, Any] | None = None, dialect: Dialect = RESEARCH, row: str = "row"
) -> Response:
    """Return the response to judge.

    Args:
        text: The response alone, without the prompt; special tokens may be in it or not.
        extra_info: May hold ``segments``, pairs of (text, whether the policy wrote it) that are then judged instead of
            ``text``; ``stop_reason``; ``num_searches``. Anything else in it is ignored.
        dialect: Splits ``text`` when there are no segments.
        row: What to call the row in an error.

    Raises:
        DataError: one of these three has a value that no rollout gives.
    """
    info = extra_info or {}
    given = info.get("segments")
    if given is None:
        kept, tail = _cut_at_end_token(_join_neighbours(parse_response(text, dialect)))
    else:
        # Our own rollout took its end token off by id; "</s>" left in the text is something the policy wrote about.
        kept, tail = _join_neighbours(_read_segments(given, row)), ""
    observations = sum(not segment.by_policy for segment in kept)
    return Response(
        segments=tuple(kept),
        stop_reason=_read_stop_reason(info.get("stop_reason"), row),
        num_searches=_read_count(info.get("num_searches"), observations, row),
        has_tail=bool(tail),
    )


def _read_segments(given: Iterable[Any], row: str) -> list[Segment]:
    segments = []
    try:
        for item in given:
            text, by_policy = (item.text, item.by_policy) if isinstance(item, Segment) else item
            if not isinstance(text, str) or isinstance(by_policy, str):
                raise TypeError
            segments.append(Segment(text, bool(by_policy)))
    except (TypeError, ValueError):
        raise DataError(
            f"{row}: extra_info['segments'] is {given!r:.200}; allowed: a sequence of (text, by_policy) pairs"
        ) from None
    return segments


def _read_stop_reason(given: Any, row: str) -> str | None:
    value = getattr(given, "value", given)  # an enum member counts as its value
    if value is None or value == "":
        return None
    if value in STOP_REASONS:
        return str(value)
    raise DataError(
        f"{row}: extra_info['stop_reason'] is {given!r:.200}; allowed: {', '.join(STOP_REASONS)}, or nothing"
    )


def _read_count(given: Any, default: int, row: str) -> int:
    if given is None:
        return default
    try:
        count = int(given)
    except (TypeError, ValueError, OverflowError):
        count = -1
    if count < 0:
        raise DataError(f"{row}: extra_info['num_searches'] is {given!r:.200}; allowed: an integer from 0")
    return count


def _join_neighbours(segments: Iterable[Segment]) -> list[Segment]:
    runs: list[tuple[bool, list[str]]] = []
    for segment in segments:
        if runs and runs[-1][0] == segment.by_policy:
            runs[-1][1].append(segment.text)
        elif segment.text:
            runs.append((segment.by_policy, [segment.text]))
    return [Segment("".join(texts), by_policy) for by_policy, texts in runs]


def _cut_at_end_token(segments: list[Segment]) -> tuple[list[Segment], str]:
    """Return the segments up to the first end token the policy wrote, and what follows it, other end tokens aside."""
    for index, segment in enumerate(segments):
        if not segment.by_policy:
            continue
        found = [at for token in END_TOKENS if (at := segment.text.find(token)) >= 0]
        if found:
            tail = "".join([segment.text[min(found) :], *(later.text for later in segments[index + 1 :])])
            for token in END_TOKENS:
                tail = tail.replace(token, "")
            return [*segments[:index], Segment(segment.text[: min(found)], True)], tail
    return segments, ""
