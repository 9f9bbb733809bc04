"""The trained methods as evaluation methods: rollouts of training's own turn loop, read by the reward's own rules."""

from __future__ import annotations

from typing import Any

from research_plugin.evaluation.method import Attempt, Method, World
from research_plugin.rewards import METHODS
from research_plugin.rollout import Rollout
from research_plugin.served.rollouts import ServedRollouts

# Method -> the reward that judges it; every other key of `rewards.METHODS` is a method, too.
_REWARDS = {"r1_searcher": "r1_searcher_stage2"}


def reward_of(method: str) -> str | None:
    """Return the reward that reads the rollouts of ``method``, None for a method that is not agentic."""
    reward = _REWARDS.get(method, method)
    return reward if reward in METHODS else None


def agentic(reward: str, roll: ServedRollouts) -> Method:
    """Return the method that makes rollouts with ``roll``, whose answers the rules of ``reward`` find."""
    known = METHODS[reward]

    async def attempt(question: str, world: World) -> Attempt:
        settings = world.settings
        sampling: dict[str, Any] = {"temperature": settings.temperature, "top_p": settings.top_p}
        if settings.seed is not None:
            sampling["seed"] = settings.seed
        episode = await roll(question, **sampling)
        rollout = episode.rollout
        assert rollout.stop_reason is not None
        turns = [segment.text for segment in rollout.segments if segment.by_policy]
        return Attempt(
            pred=known.extract(turns, known.dialect)[0],
            segments=[(segment.text, segment.by_policy) for segment in rollout.segments],
            queries=[search.query for search in episode.searches],
            documents=[search.documents for search in episode.searches],
            stop_reason=rollout.stop_reason.value,
            prompt_tokens=_read_tokens(rollout),
            generated_tokens=rollout.generated_tokens,
            retrieved_tokens=rollout.retrieved_tokens,
            model_calls=episode.turns,
        )

    return attempt


def _read_tokens(rollout: Rollout) -> int:
    """Return how many tokens stood before the policy when it began each of its turns, summed up."""
    mask = rollout.response_mask
    begins = [at for at, own in enumerate(mask) if own and (at == 0 or not mask[at - 1])]
    return sum(len(rollout.prompt_ids) + at for at in begins)
