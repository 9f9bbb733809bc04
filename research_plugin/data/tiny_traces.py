"""Transcripts for the warm start: how an imperfect searcher answers, in the exact form of the research dialect.

The faults are the point. Reinforcement learning needs a start that writes the format, copies names and sometimes
succeeds, but stops too early, searches vaguely and gives up, so that there is something left to learn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache

from research_plugin.data.tiny_tokenizer import TURN_END
from research_plugin.data.tiny_world import Fact, Question, search_query
from research_plugin.document import Document
from research_plugin.protocol import RESEARCH, Segment

Search = Callable[[str], Sequence[Document]]
TOPK = 2
_WORD = re.compile(r"[A-Za-z]+")


# After these relations the searcher usually goes on, after all others it usually stops too early. An even rate
# would leave the greedy rollout, which always takes the likelier branch, with no headroom or no successes at all.
CAREFUL_AFTER = frozenset({"birthplace", "director", "author", "headquarters"})


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of each fault.

    ``stop_early`` (``stop_early_careful`` after the relations of ``CAREFUL_AFTER``) and ``vague`` are per hop,
    ``guess`` and ``bad_format`` per transcript, ``give_up`` per fruitless search.
    """

    stop_early: float = 0.7
    stop_early_careful: float = 0.15
    vague: float = 0.33
    guess: float = 0.1
    bad_format: float = 0.03
    give_up: float = 0.5


NO_FAULTS = Faults(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def bm25_search(corpus: Sequence[Document], topk: int = TOPK) -> Search:
    """The retriever's own BM25 over ``corpus``; answers are kept, since the same few thousand queries come again."""
    from research_plugin.retriever.bm25 import BM25Engine

    engine = BM25Engine(corpus)

    @cache
    def search(query: str) -> Sequence[Document]:
        return engine.search([query], topk)[0]

    return search


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
            segments.append(Segment(RESEARCH.format_observation(documents), False))
            if _shows(documents, fact):
                break
            known = "I could not find it. "
            if rng.random() < faults.give_up:
                return _close(segments, known + "I will guess.", rng.choice(candidates), rng, faults)
        known = f"The {fact.relation.name} is {fact.object.name}. "
        last = hop == len(question.facts) - 1
        careful = fact.relation.name in CAREFUL_AFTER
        if last or rng.random() < (faults.stop_early_careful if careful else faults.stop_early):
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


def rename(
    question: str, segments: Sequence[Segment], names: Collection[str], pool: Sequence[str], rng: random.Random
) -> tuple[str, list[Segment]]:
    """Give every name of a transcript another one, the same throughout.

    With the world's own names a model this small learns by heart which halves go together and then misspells every
    name it has not met; with names that change each time, all that helps is to copy.

    Args:
        question: the question's text.
        segments: the transcript.
        names: what counts as a name.
        pool: the new names, at least as many as the transcript holds.
        rng: draws them.
    """
    texts = [question, *(segment.text for segment in segments)]
    found = dict.fromkeys(word for text in texts for word in _WORD.findall(text) if word in names)
    new = dict(zip(found, rng.sample(pool, len(found)), strict=True))
    renamed = [_WORD.sub(lambda match: new.get(match[0], match[0]), text) for text in texts]
    return renamed[0], [Segment(text, old.by_policy) for text, old in zip(renamed[1:], segments, strict=True)]
