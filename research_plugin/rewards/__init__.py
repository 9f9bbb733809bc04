"""Rewards: how a response is read, how its answer is compared and what it scores.

Pure text and standard library. Recipes point veRL's ``reward.custom_reward_function`` at `compute_score` here.
"""

from __future__ import annotations

from research_plugin.rewards.answer import extract_answer
from research_plugin.rewards.golden import golden_answers
from research_plugin.rewards.response import Response, read_response
from research_plugin.rewards.score import METHODS, Method, compute_score
from research_plugin.rewards.text_metrics import compare, cover_match, exact_match, f1_score, normalise

__all__ = [
    "METHODS",
    "Method",
    "Response",
    "compare",
    "compute_score",
    "cover_match",
    "exact_match",
    "extract_answer",
    "f1_score",
    "golden_answers",
    "normalise",
    "read_response",
]
