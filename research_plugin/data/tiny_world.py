"""The tiny world: made-up people, films, books, cities, companies and rivers, and questions of one to three hops.

Pure and seeded. The world is two closed halves, train and held-out: no fact links them, so nothing that appears in a
held-out question or in the chain to its answer is ever the subject, bridge or answer of a training question.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from research_plugin.data.tiny_words import NAME_HEADS, NAME_TAILS
from research_plugin.document import Document

TRAIN = "train"
HELD_OUT = "val"
SPLITS = (TRAIN, HELD_OUT)
MAX_HOPS = 3

# Entities per kind: (train, held-out).
COUNTS: dict[str, tuple[int, int]] = {
    "film": (120, 30),
    "book": (80, 20),
    "person": (240, 60),
    "city": (64, 16),
    "company": (64, 16),
    "river": (32, 8),
}


@dataclass(frozen=True, slots=True)
class Relation:
    """A functional relation; ``sentence`` states it and holds ``name`` as a word, so that BM25 can find it."""

    name: str
    subject: str
    object: str
    sentence: str


# Every sentence puts a kind before each name: names then always follow a space and keep one spelling in tokens.
# A symmetric-looking relation such as "spouse" is left out: its direction cannot be told from a bag of words.
RELATIONS: tuple[Relation, ...] = (
    Relation("director", "film", "person", "The film {s} had the person {o} as its director."),
    Relation("star", "film", "person", "The film {s} had the person {o} as its star."),
    Relation("studio", "film", "company", "The film {s} was shot in the studio of the company {o}."),
    Relation("author", "book", "person", "The book {s} has the person {o} as its author."),
    Relation("publisher", "book", "company", "The book {s} has the company {o} as its publisher."),
    Relation("birthplace", "person", "city", "The person {s} has the city {o} as birthplace."),
    Relation("employer", "person", "company", "The person {s} has the company {o} as employer."),
    Relation("river", "city", "river", "The city {s} lies on the river {o}."),
    Relation("mayor", "city", "person", "The city {s} has the person {o} as its mayor."),
    Relation("headquarters", "company", "city", "The company {s} has its headquarters in the city {o}."),
    Relation("founder", "company", "person", "The company {s} has the person {o} as its founder."),
)


@dataclass(frozen=True, slots=True)
class Entity:
    """A named thing; ``split`` says which closed half of the world it lives in."""

    name: str
    kind: str
    split: str


@dataclass(frozen=True, slots=True)
class Fact:
    """One directed statement and the passage that carries it."""

    subject: Entity
    relation: Relation
    object: Entity
    passage: Document


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the chain of facts that answers it, first hop first."""

    text: str
    facts: tuple[Fact, ...]

    @property
    def golden_answers(self) -> list[str]:
        """The one answer: the last fact's object."""
        return [self.facts[-1].object.name]

    @property
    def oracle_queries(self) -> list[str]:
        """One query per hop; each finds the passage of its fact."""
        return [search_query(fact.relation, fact.subject) for fact in self.facts]

    @property
    def split(self) -> str:
        """The half of the world it asks about."""
        return self.facts[0].subject.split


@dataclass(frozen=True, slots=True)
class World:
    """All entities and facts; ``facts`` is also the order of the corpus."""

    entities: tuple[Entity, ...]
    facts: tuple[Fact, ...]

    @property
    def corpus(self) -> list[Document]:
        """One passage a fact."""
        return [fact.passage for fact in self.facts]

    def names(self, split: str) -> list[str]:
        """The names of one half's entities."""
        return [entity.name for entity in self.entities if entity.split == split]


def search_query(relation: Relation, subject: Entity) -> str:
    """The query that a well-behaved policy writes for one hop."""
    return f"{relation.name} of {subject.name}"


def all_names() -> list[str]:
    """Every name there can be, about two and a half times as many as a world has entities."""
    return [head + tail for head in NAME_HEADS for tail in NAME_TAILS]


def make_world(seed: int = 0) -> World:
    """Build the world of ``seed``: 750 entities, 1,570 facts; the same seed gives the same world everywhere."""
    rng = random.Random(f"tiny-world-{seed}")
    names = all_names()
    rng.shuffle(names)
    entities: list[Entity] = []
    for kind, sizes in COUNTS.items():
        for split, size in zip(SPLITS, sizes, strict=True):
            entities += [Entity(names.pop(), kind, split) for _ in range(size)]
    pools: dict[tuple[str, str], list[Entity]] = {}
    for entity in entities:
        pools.setdefault((entity.split, entity.kind), []).append(entity)
    links = [
        (subject, relation, rng.choice(pools[subject.split, relation.object]))
        for relation in RELATIONS
        for split in SPLITS
        for subject in pools[split, relation.subject]
    ]
    rng.shuffle(links)
    facts = [
        Fact(s, r, o, Document(id=str(row), contents=r.sentence.format(s=s.name, o=o.name)))
        for row, (s, r, o) in enumerate(links)
    ]
    return World(tuple(entities), tuple(facts))


def chains(world: World, split: str, hops: int) -> Iterator[tuple[Fact, ...]]:
    """Every chain of ``hops`` facts in one half of the world that visits no entity twice."""
    by_subject: dict[Entity, list[Fact]] = {}
    for fact in world.facts:
        by_subject.setdefault(fact.subject, []).append(fact)

    def extend(chain: tuple[Fact, ...]) -> Iterator[tuple[Fact, ...]]:
        if len(chain) == hops:
            yield chain
            return
        seen = {chain[0].subject, *(fact.object for fact in chain)}
        for fact in by_subject.get(chain[-1].object, []):
            if fact.object not in seen:
                yield from extend((*chain, fact))

    if not 1 <= hops <= MAX_HOPS:
        raise ValueError(f"chains: hops={hops}; allowed are 1 to {MAX_HOPS}")
    for fact in world.facts:
        if fact.subject.split == split:
            yield from extend((fact,))


def ask(chain: Sequence[Fact]) -> Question:
    """Word a chain as a question: the last relation first, the start entity at the end."""
    start = chain[0].subject
    path = "".join(f"the {fact.relation.name} of " for fact in reversed(chain))
    return Question(f"What is {path}the {start.kind} {start.name}?", tuple(chain))


def sample_questions(world: World, split: str, per_hops: dict[int, int], seed: int = 0) -> list[Question]:
    """Draw distinct questions of one half, ``per_hops[h]`` of them with ``h`` hops, in shuffled order.

    Raises:
        ValueError: the half holds fewer chains than asked for.
    """
    rng = random.Random(f"tiny-questions-{seed}-{split}")
    picked: list[Question] = []
    for hops, count in sorted(per_hops.items()):
        pool = list(chains(world, split, hops))
        if count > len(pool):
            raise ValueError(
                f"sample_questions: {count} {hops}-hop questions asked, {split} has {len(pool)}; ask fewer"
            )
        picked += [ask(chain) for chain in rng.sample(pool, count)]
    rng.shuffle(picked)
    return picked
