"""Stage 1's reward in the tiny model's dialect: 0.5 for at least one search and 0.5 for the format; no answer counts.

R1-Searcher's own (``method: r1_searcher_stage1``) reads R1-Searcher's tags, which the tiny model was never shown.
"""

from __future__ import annotations

from typing import Any

from research_plugin.rewards import compute_score as research_score


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **rest: Any) -> Any:
    """Return the plugin's metrics with stage 1's score."""
    result = research_score(data_source, solution_str, ground_truth, extra_info, **rest)
    result["score"] = 0.5 * bool(result["num_searches"]) + 0.5 * float(result["format_ok"])
    return result
