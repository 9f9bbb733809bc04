"""The fixed set of numbers that describe one rollout. Pure: an `Episode` and gold answers in, floats out."""

from __future__ import annotations

from collections.abc import Sequence

from research_plugin.rewards.text_metrics import normalise
from research_plugin.search_loop import Episode


def rollout_metrics(episode: Episode, golden_answers: Sequence[str] = ()) -> dict[str, float]:
    """Return the per-rollout numbers, always the same keys.

    ``golden_in_results`` is 1.0 when a gold answer stands, ignoring case, in a passage that came back (retrieval
    recall). ``search_seconds`` is the sum over the rollout's searches; token counts are after truncation.
    """
    rollout = episode.rollout
    passages = [document.contents.lower() for search in episode.searches for document in search.documents]
    found = any(gold.lower() in passage for gold in golden_answers if gold for passage in passages)
    queries = [normalise(search.query) for search in episode.searches]
    return {
        "num_searches": float(len(queries)),
        "num_refused_searches": float(episode.refused),
        "num_repeated_queries": float(len(queries) - len(set(queries))),
        "generated_tokens": float(rollout.generated_tokens),
        "retrieved_tokens": float(rollout.retrieved_tokens),
        "golden_in_results": float(found),
        "search_seconds": sum((search.seconds for search in episode.searches), 0.0),
    }
