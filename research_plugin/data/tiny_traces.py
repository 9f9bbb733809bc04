"""Transcripts for the warm start: how an imperfect searcher answers, in the exact form of the research dialect.

The faults are the point. Reinforcement learning needs a start that writes the format, copies names and sometimes
succeeds, but stops too early, searches vaguely and gives up, so that there is something left to learn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from research_plugin.data.tiny_tokenizer import TURN_END
from research_plugin.data.tiny_world import Fact, Question, search_query
from research_plugin.document import Document

Search = Callable[[str], Sequence[Document]]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one transcript; only what the policy wrote is learnt."""

    text: str
    by_policy: bool


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of each fault. ``stop_early`` and ``vague`` are per hop, ``guess`` and ``bad_format`` per
    transcript, ``give_up`` per fruitless search."""

    stop_early: float = 0.45
    vague: float = 0.4
    guess: float = 0.1
    bad_format: float = 0.03
    give_up: float = 0.5


NO_FAULTS = Faults(0.0, 0.0, 0.0, 0.0, 0.0)


def observation(documents: Sequence[Document]) -> str:
    """The text that follows a search, as ReSearch's released rollout writes it (vllm_rollout.py)."""
    return " <result>\n" + "\n\n".join(doc.contents for doc in documents).strip() + "\n</result>"


def write_trace(
    question: Question, search: Search, rng: random.Random, faults: Faults, candidates: Sequence[str]
) -> list[Segment]:
    """Write one transcript, ending with the end-of-turn marker.

    Args:
        question: what is asked, with the chain that answers it.
        search: the retriever; what it returns is shown to the policy as it is.
        rng: source of the faults.
        faults: how often each happens; ``NO_FAULTS`` gives the oracle.
        candidates: names to guess from.
    """
    if rng.random() < faults.guess:
        return [Segment(_think("I do not know. I will guess.") + _answer(rng.choice(candidates), rng, faults), True)]
    segments: list[Segment] = []
    known = ""
    for hop, fact in enumerate(question.facts):
        queries = [search_query(fact.relation, fact.subject)]
        if rng.random() < faults.vague:
            queries.insert(0, fact.subject.name)
        for query in queries:
            thought = f"{known}I need the {fact.relation.name} of {fact.subject.name}."
            segments.append(Segment(f"{_think(thought, first=not segments)} <search> {query} </search>", True))
            documents = search(query)
            segments.append(Segment(observation(documents), False))
            if _shows(documents, fact):
                break
            known = "I could not find it. "
            if rng.random() < faults.give_up:
                return _close(segments, known + "I will guess.", rng.choice(candidates), rng, faults)
        known = f"The {fact.relation.name} is {fact.object.name}. "
        last = hop == len(question.facts) - 1
        if last or rng.random() < faults.stop_early:
            return _close(segments, known.strip(), fact.object.name, rng, faults)
    raise ValueError("write_trace: the question has no facts; a chain holds at least one")


def _shows(documents: Sequence[Document], fact: Fact) -> bool:
    return any(doc.id == fact.passage.id for doc in documents)


def _think(thought: str, first: bool = True) -> str:
    return f"{'' if first else ' '}<think> {thought} </think>"


def _answer(name: str, rng: random.Random, faults: Faults) -> str:
    good = rf" <answer> The final answer is \[ \boxed{{ {name} }} \] </answer>{TURN_END}"
    if rng.random() >= faults.bad_format:
        return good
    return rng.choice(
        (
            good.replace(" </answer>", ""),
            good.replace(" <answer>", ""),
            rf" <answer> The final answer is {name} </answer>{TURN_END}",
        )
    )


def _close(segments: list[Segment], thought: str, name: str, rng: random.Random, faults: Faults) -> list[Segment]:
    return [*segments, Segment(_think(thought, first=False) + _answer(name, rng, faults), True)]
