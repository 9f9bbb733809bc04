"""The fixed set of numbers that describe one rollout, and those of a step's rollouts together. Pure: floats out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from research_plugin.rewards.text_metrics import normalise
from research_plugin.search_loop import Episode

LEFT_OUT = ("search_failed", "aborted", "no_room")
"""Why a rollout is kept out of training; "no_room": its prompt is too long or leaves no room for one token."""
MEANS = ("generated_tokens", "retrieved_tokens")
"""The numbers of `rollout_metrics` that are averaged over a step."""


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


def step_metrics(
    rollouts: Sequence[tuple[str, float | None, Mapping[str, float]]], left_out: Sequence[str] = ()
) -> dict[str, float]:
    """Return the numbers of one training step, named so that veRL's aggregator adds up totals and averages the rest.

    Args:
        rollouts: (group, reward, `rollout_metrics` among other fields) of each rollout in the batch; the reward is None
            where it is not known yet, and a rollout of another agent loop may lack our numbers.
        left_out: for each rollout that was kept out of training since the last step, why: one of `LEFT_OUT`.

    Returns:
        Means of the policy's tokens and of retrieved tokens; the share of groups of two or more rollouts whose rewards
        are all equal (GRPO learns nothing from those); number and share of rollouts left out, by reason.
    """
    metrics: dict[str, float] = {}
    for name in MEANS:
        values = [fields[name] for _, _, fields in rollouts if name in fields]
        if values:
            metrics[f"rollout/{name}/mean"] = sum(values) / len(values)
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for group, reward, _ in rollouts:
        if reward is not None:
            groups[group].append(reward)
    comparable = [rewards for rewards in groups.values() if len(rewards) > 1]
    if comparable:
        flat = sum(min(rewards) == max(rewards) for rewards in comparable)
        metrics["rollout/groups_without_spread/share"] = flat / len(comparable)
    reasons, ended = Counter(left_out), len(rollouts) + len(left_out)
    for reason in LEFT_OUT:
        metrics[f"rollout/{reason}/total"] = float(reasons[reason])
        metrics[f"rollout/{reason}/share"] = reasons[reason] / max(ended, 1)
    return metrics
