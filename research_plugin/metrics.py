"""The fixed set of numbers that describe one rollout, and those of a step's rollouts together. Pure: floats out.

docs/metrics.md lists them all with what each means.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from research_plugin.document import Document
from research_plugin.health import copied, repetition
from research_plugin.rewards.text_metrics import normalise
from research_plugin.search_loop import Episode

LEFT_OUT = ("search_failed", "aborted", "no_room")
"""Why a rollout is kept out of training; "no_room": its prompt is too long or leaves no room for one token."""

# name in `rollout_metrics` or, after "reward_extra_info.", in `compute_score`'s result -> metric of a step
MEANS = {
    "num_searches": "rollout/num_searches/mean",
    "generated_tokens": "rollout/generated_tokens/mean",
    "retrieved_tokens": "rollout/retrieved_tokens/mean",
    "golden_in_results": "rollout/golden_in_results/share",
    "reward_extra_info.em": "rollout/em/mean",
    "reward_extra_info.f1": "rollout/f1/mean",
    "reward_extra_info.format_ok": "rollout/format_ok/share",
    "reward_extra_info.answered": "rollout/answered/share",
    "reward_extra_info.truncated": "rollout/truncated/share",
    "copied_text": "health/copied_text/share",
    "own_results": "health/own_results/share",
    "repetition": "health/repetition/share",
}
TOTALS = ("num_searches", "generated_tokens", "retrieved_tokens")

Fields = Mapping[str, Any]
"""What veRL keeps of a rollout as its extra_fields: `rollout_metrics`, and ``reward_extra_info`` once it is scored."""


def rollout_metrics(episode: Episode, golden_answers: Sequence[str] = (), result_open: str = "") -> dict[str, float]:
    """Return the per-rollout numbers, always the same keys.

    ``golden_in_results`` is 1.0 when a gold answer stands, ignoring case, in a passage that came back (retrieval
    recall). ``search_seconds`` is the sum over the rollout's searches; token counts are after truncation.
    ``own_results`` is 1.0 when the policy wrote ``result_open``, the environment's tag, itself.
    """
    rollout, searches = episode.rollout, episode.searches
    own = [segment.text for segment in rollout.segments if segment.by_policy]
    results = [segment.text for segment in rollout.segments if not segment.by_policy]
    return {
        **search_metrics([search.query for search in searches], [s.documents for s in searches], golden_answers),
        "num_refused_searches": float(episode.refused),
        "generated_tokens": float(rollout.generated_tokens),
        "retrieved_tokens": float(rollout.retrieved_tokens),
        "search_seconds": sum((search.seconds for search in searches), 0.0),
        "copied_text": copied(own, results),
        "own_results": float(bool(result_open) and any(result_open in text for text in own)),
        "repetition": repetition("\n".join(own)),
    }


def search_metrics(
    queries: Sequence[str], documents: Sequence[Sequence[Document]], golden_answers: Sequence[str]
) -> dict[str, float]:
    """Return the numbers of `rollout_metrics` that come from ``queries`` and from what each of them brought."""
    passages = [document.contents.lower() for found in documents for document in found]
    found = any(gold.lower() in passage for gold in golden_answers if gold for passage in passages)
    different = {normalise(query) for query in queries}
    return {
        "num_searches": float(len(queries)),
        "num_repeated_queries": float(len(queries) - len(different)),
        "golden_in_results": float(found),
    }


def step_metrics(
    rollouts: Sequence[tuple[str, float | None, Fields]], left_out: Sequence[str] = (), prefix: str = ""
) -> dict[str, float]:
    """Return the numbers of one training step, named so that veRL's aggregator adds up totals and averages the rest.

    Args:
        rollouts: (group, reward, fields) of each rollout in the batch; the reward is None where it is not known yet,
            and a rollout of another agent loop may lack our numbers. What no rollout has is left out.
        left_out: for each rollout that was kept out of training since the last step, why: one of `LEFT_OUT`.
        prefix: before every name, such as ``val-aux/``.
    """
    fields = [each for _, _, each in rollouts]
    metrics = {
        **_means_and_totals(fields),
        **_search_metrics(fields),
        **_groups_without_spread(rollouts),
    }
    reasons, ended = Counter(left_out), len(rollouts) + len(left_out)
    for reason in LEFT_OUT:
        metrics[f"rollout/{reason}/total"] = float(reasons[reason])
        metrics[f"rollout/{reason}/share"] = reasons[reason] / max(ended, 1)
    return {f"{prefix}{name}": value for name, value in metrics.items()}


def _means_and_totals(fields: Sequence[Fields]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, metric in MEANS.items():
        if values := _values(fields, name):
            metrics[metric] = sum(values) / len(values)
    for name in TOTALS:
        if values := _values(fields, name):
            metrics[f"rollout/{name}/total"] = sum(values)
    if searches := _values(fields, "num_searches"):
        metrics["rollout/num_searches/max"] = max(searches)
    if tokens := metrics.get("rollout/generated_tokens/total", 0.0) + metrics.get(
        "rollout/retrieved_tokens/total", 0.0
    ):
        metrics["health/retrieved_tokens/share"] = metrics["rollout/retrieved_tokens/total"] / tokens
    answered = [
        float(each["num_searches"] == 0)
        for each in fields
        if "num_searches" in each and each.get("reward_extra_info", {}).get("answered")
    ]
    if answered:
        metrics["health/answers_without_search/share"] = sum(answered) / len(answered)
    return metrics


def _search_metrics(fields: Sequence[Fields]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    if searches := sum(_values(fields, "num_searches")):
        metrics["health/repeated_queries/share"] = sum(_values(fields, "num_repeated_queries")) / searches
        metrics["rollout/cache_hits/share"] = sum(_values(fields, "num_cached_searches")) / searches
    if latencies := sorted(seconds for each in fields for seconds in each.get("search_latencies", ())):
        for percent in (50, 95):
            metrics[f"rollout/search_seconds/p{percent}"] = latencies[(len(latencies) - 1) * percent // 100]
    return metrics


def _groups_without_spread(rollouts: Sequence[tuple[str, float | None, Fields]]) -> dict[str, float]:
    """Return the share of groups of two or more rollouts whose rewards are equal: GRPO learns nothing from those."""
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for group, reward, _ in rollouts:
        if reward is not None:
            groups[group].append(reward)
    comparable = [rewards for rewards in groups.values() if len(rewards) > 1]
    if not comparable:
        return {}
    flat = sum(min(rewards) == max(rewards) for rewards in comparable)
    return {"rollout/groups_without_spread/share": flat / len(comparable)}


def _values(fields: Sequence[Fields], name: str) -> list[float]:
    """Return the number from every rollout that has it."""
    parent, _, key = name.rpartition(".")
    holders = [each.get(parent) or {} for each in fields] if parent else fields
    return [float(each[key]) for each in holders if isinstance(each.get(key), int | float)]
