"""What a rule set is given and what it returns; every method's rules share these two values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from research_plugin.rewards.response import Response

__all__ = ["Reading", "Verdict", "unfinished"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The extracted answer and how it compares with the golden answers, whatever the rules make of it."""

    answer: str | None
    fault: str
    """Why there is no answer; "" when there is one."""
    golden_answers: Sequence[str]
    f1: float
    """Against the best of them."""
    em: float = 0.0
    """1.0 when it equals one of them."""
    per_character: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A score before costs, whether the format was right, and why."""

    score: float
    format_ok: bool
    reason: str


def unfinished(response: Response) -> str:
    """Say how a rollout ended that the policy did not end itself; "" for one that it did."""
    return "" if response.finished else f"the rollout did not finish ({response.stop_reason})"
