"""Test-time scaling: several attempts at a question, of which a vote or the model itself chooses one."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from research_plugin.evaluation.method import Attempt, Method, World
from research_plugin.evaluation.prompts import fill
from research_plugin.prompts import chat_messages
from research_plugin.rewards.text_metrics import normalise

__all__ = ["SELECT", "best_of", "majority"]


def best_of(method: Method, number: int, select: str) -> Method:
    """Return the method that makes ``number`` attempts with ``method`` and returns the one that `SELECT` chooses.

    Its tokens, calls and searches are those of all attempts and of the choice together.
    """

    async def method_of_attempts(question: str, world: World) -> Attempt:
        attempts = await asyncio.gather(*(method(question, world.again(index)) for index in range(number)))
        preds = [attempt.pred or "" for attempt in attempts]
        chosen = attempts[await SELECT[select](question, preds, world)]
        spent = [*attempts, world.attempt(None)]
        read = [attempt.retrieved_tokens for attempt in spent if attempt.retrieved_tokens is not None]
        return dataclasses.replace(
            chosen,
            queries=[query for attempt in spent for query in attempt.queries],
            documents=[documents for attempt in spent for documents in attempt.documents],
            prompt_tokens=sum(attempt.prompt_tokens for attempt in spent),
            generated_tokens=sum(attempt.generated_tokens for attempt in spent),
            retrieved_tokens=sum(read) if read else None,
            model_calls=sum(attempt.model_calls for attempt in spent),
        )

    return method_of_attempts


def majority(preds: Sequence[str]) -> int:
    """Return the index of the answer most often given, normalised; of several, the one given first.

    No answer is no vote.
    """
    votes = Counter(filter(None, map(normalise, preds)))
    if not votes:
        return 0
    return [normalise(pred) for pred in preds].index(votes.most_common(1)[0][0])


async def _vote(question: str, preds: Sequence[str], world: World) -> int:
    return majority(preds)


async def _ask(question: str, preds: Sequence[str], world: World) -> int:
    """Let the model choose between the different answers; what it does not choose clearly is voted on."""
    different: dict[str, str] = {}
    for pred in preds:
        different.setdefault(normalise(pred), pred)
    answers = [pred for key, pred in different.items() if key]
    if len(answers) < 2:
        return majority(preds)
    listed = "\n".join(f"{number}. {answer}" for number, answer in enumerate(answers, start=1))
    text = fill("choose", question=question, answers=listed)
    reply = await world.chat(chat_messages("", text), temperature=0.0)
    number = re.search(r"(\d+)\W*$", reply.text)
    if number is None or not 1 <= int(number[1]) <= len(answers):
        return majority(preds)
    return list(preds).index(answers[int(number[1]) - 1])


SELECT: dict[str, Callable[[str, Sequence[str], World], Awaitable[int]]] = {"majority": _vote, "judge": _ask}
"""How one of several answers is chosen: (question, answers, world) -> its index."""
