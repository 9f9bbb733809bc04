"""Iter-RetGen (arXiv 2305.15294): each round searches for the question together with the answer of the round before."""

from __future__ import annotations

from research_plugin.evaluation.method import Attempt, World
from research_plugin.evaluation.prompted import ended, read

_ROUNDS = 3


async def iter_retgen(question: str, world: World) -> Attempt:
    """Answer from fresh passages in every round; the last round's answer counts, whatever stands in it."""
    query = question
    for _ in range(world.settings.rounds or _ROUNDS):
        reply = await read(question, await world.search(query), world)
        query = f"{question} {reply.text}"
    return ended(world, reply)
