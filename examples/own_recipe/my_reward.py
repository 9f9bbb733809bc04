"""A reward of one's own: exact match instead of F1, and a little for having looked something up."""

from __future__ import annotations

from typing import Any

from research_plugin.rewards import compute_score as research_score


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    search_bonus: float = 0.0,
    **options: Any,
) -> dict[str, Any]:
    """Return the plugin's metrics with another score; veRL wants the same keys for every row.

    ``options`` are the reward_kwargs that this recipe inherits: method, rules.
    """
    result = research_score(data_source, solution_str, ground_truth, extra_info, **options)
    result["score"] = result["em"] + (search_bonus if result["num_searches"] else 0.0)
    return result
