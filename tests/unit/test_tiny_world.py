"""The made-up world: seeded, closed halves, questions whose chains lead to their answers."""

from __future__ import annotations

import itertools

import pytest

from research_plugin.data.tiny_words import NAME_HEADS, NAME_TAILS
from research_plugin.data.tiny_world import (
    HELD_OUT,
    RELATIONS,
    TRAIN,
    Entity,
    Fact,
    Question,
    ask,
    chains,
    make_world,
    sample_questions,
)
from research_plugin.document import Document

WORLD = make_world(0)
# random.Random draws the same on every supported Python; a change here breaks the shipped model's val.parquet.
PINNED = [
    "The company Dalvak has its headquarters in the city Temkin.",
    "The person Galbov has the city Lorpov as birthplace.",
]


def _fact(subject: Entity, relation: str, obj: Entity) -> Fact:
    found = next(r for r in RELATIONS if r.name == relation)
    return Fact(subject, found, obj, Document("0", found.sentence.format(s=subject.name, o=obj.name)))


def _three_hops() -> Question:
    film, person = Entity("Balvak", "film", TRAIN), Entity("Belven", "person", TRAIN)
    city, river = Entity("Borvik", "city", TRAIN), Entity("Dalvos", "river", TRAIN)
    return ask([_fact(film, "director", person), _fact(person, "birthplace", city), _fact(city, "river", river)])


def _names(questions: list[Question]) -> set[str]:
    return {e.name for q in questions for fact in q.facts for e in (fact.subject, fact.object)}


def test_make_world_same_seed_is_equal_and_other_seed_differs() -> None:
    assert make_world(0) == WORLD
    assert make_world(1) != WORLD


def test_make_world_first_passages_are_pinned() -> None:
    assert [doc.contents for doc in WORLD.corpus[:2]] == PINNED


def test_make_world_sizes_and_ids() -> None:
    assert len(WORLD.entities) == 750
    assert len(WORLD.corpus) == 1570
    assert [doc.id for doc in WORLD.corpus] == [str(row) for row in range(1570)]


def test_make_world_names_are_unique_two_part_words() -> None:
    names = [entity.name for entity in WORLD.entities]
    assert len(set(names)) == 750
    assert all(name[:3] in NAME_HEADS and name[3:] in NAME_TAILS for name in names)


def test_make_world_halves_share_no_fact() -> None:
    assert all(fact.subject.split == fact.object.split for fact in WORLD.facts)


def test_make_world_each_relation_has_one_object() -> None:
    assert len({(fact.subject, fact.relation.name) for fact in WORLD.facts}) == 1570


def test_passages_put_a_kind_before_every_name() -> None:
    for fact in WORLD.facts:
        assert f"{fact.subject.kind} {fact.subject.name}" in fact.passage.contents
        assert f"{fact.object.kind} {fact.object.name}" in fact.passage.contents
        assert fact.passage.contents.count("\n") == 0


def test_relations_name_no_spouse() -> None:
    assert "spouse" not in {relation.name for relation in RELATIONS}


def test_ask_three_hops_reads_backwards_from_the_answer() -> None:
    question = _three_hops()
    assert question.text == "What is the river of the birthplace of the director of the film Balvak?"
    assert question.golden_answers == ["Dalvos"]
    assert question.oracle_queries == ["director of Balvak", "birthplace of Belven", "river of Borvik"]


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("split", [TRAIN, HELD_OUT])
def test_chains_are_linked_and_visit_nothing_twice(split: str, hops: int) -> None:
    found = list(chains(WORLD, split, hops))
    assert found
    for chain in found:
        assert len(chain) == hops
        assert all(left.object == right.subject for left, right in itertools.pairwise(chain))
        visited = [chain[0].subject, *(fact.object for fact in chain)]
        assert len(set(visited)) == hops + 1
        assert {entity.split for entity in visited} == {split}


@pytest.mark.parametrize("hops", [0, 4])
def test_chains_refuses_other_lengths(hops: int) -> None:
    with pytest.raises(ValueError, match=f"hops={hops}"):
        list(chains(WORLD, TRAIN, hops))


def test_questions_train_and_held_out_share_no_entity_anywhere_in_their_chains() -> None:
    train = sample_questions(WORLD, TRAIN, {1: 500, 2: 1000, 3: 1000})
    held_out = sample_questions(WORLD, HELD_OUT, {1: 100, 2: 300, 3: 300})
    assert not _names(train) & _names(held_out)


def test_sample_questions_is_seeded_and_distinct() -> None:
    first = sample_questions(WORLD, HELD_OUT, {2: 64, 3: 64}, seed=3)
    assert first == sample_questions(WORLD, HELD_OUT, {2: 64, 3: 64}, seed=3)
    assert first != sample_questions(WORLD, HELD_OUT, {2: 64, 3: 64}, seed=4)
    assert len({question.text for question in first}) == 128
    assert sorted(len(question.facts) for question in first) == [2] * 64 + [3] * 64


def test_sample_questions_more_than_there_are_says_how_many() -> None:
    with pytest.raises(ValueError, match="val has 314"):
        sample_questions(WORLD, HELD_OUT, {1: 315})
