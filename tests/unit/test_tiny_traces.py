"""Transcripts of the warm start: exact text, each fault, the oracle under BM25."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from research_plugin.data.tiny_traces import NO_FAULTS, Faults, bm25_search, rename, write_trace
from research_plugin.data.tiny_world import (
    HELD_OUT,
    RELATIONS,
    TRAIN,
    Entity,
    Fact,
    Question,
    ask,
    make_world,
    sample_questions,
    search_query,
)
from research_plugin.document import Document
from research_plugin.protocol import Segment
from research_plugin.rewards import compute_score

FILM, PERSON, CITY = Entity("Balvak", "film", TRAIN), Entity("Belven", "person", TRAIN), Entity("Borvik", "city", TRAIN)
DIRECTED = Document("0", "The film Balvak had the person Belven as its director.")
BORN = Document("1", "The person Belven has the city Borvik as birthplace.")
OTHER = Document("2", "The film Balvak had the person Dalvos as its star.")


def _question() -> Question:
    by_name = {relation.name: relation for relation in RELATIONS}
    return ask([Fact(FILM, by_name["director"], PERSON, DIRECTED), Fact(PERSON, by_name["birthplace"], CITY, BORN)])


def _search(query: str) -> list[Document]:
    return {"director of Balvak": [DIRECTED, OTHER], "birthplace of Belven": [BORN], "Balvak": [OTHER]}.get(query, [])


def _score(segments: list[Segment], golden: list[str]) -> dict[str, float | int | str]:
    return compute_score("tiny_world", "", golden, {"segments": segments, "stop_reason": "answered"})


def _trace(faults: Faults) -> list[tuple[str, bool]]:
    segments = write_trace(_question(), _search, random.Random(0), faults, ["Zorzof"])
    return [(segment.text, segment.by_policy) for segment in segments]


FIRST = "<think> I need the director of Balvak. </think> <search> director of Balvak </search>"
FOUND = f" <result>\n{DIRECTED.contents}\n\n{OTHER.contents}\n</result>"


def test_write_trace_without_faults_is_the_oracle() -> None:
    assert _trace(NO_FAULTS) == [
        (FIRST, True),
        (FOUND, False),
        (
            " <think> The director is Belven. I need the birthplace of Belven. </think>"
            " <search> birthplace of Belven </search>",
            True,
        ),
        (f" <result>\n{BORN.contents}\n</result>", False),
        (
            " <think> The birthplace is Borvik. </think>"
            r" <answer> The final answer is \[ \boxed{ Borvik } \] </answer><|im_end|>",
            True,
        ),
    ]


def test_write_trace_stop_early_answers_with_the_bridge() -> None:
    assert _trace(replace(NO_FAULTS, stop_early_careful=1.0)) == [
        (FIRST, True),
        (FOUND, False),
        (
            " <think> The director is Belven. </think>"
            r" <answer> The final answer is \[ \boxed{ Belven } \] </answer><|im_end|>",
            True,
        ),
    ]


def test_write_trace_stop_early_spares_the_careful_relations() -> None:
    assert _trace(replace(NO_FAULTS, stop_early=1.0)) == _trace(NO_FAULTS)


def test_write_trace_guess_never_searches() -> None:
    assert _trace(replace(NO_FAULTS, guess=1.0)) == [
        (
            "<think> I do not know. I will guess. </think>"
            r" <answer> The final answer is \[ \boxed{ Zorzof } \] </answer><|im_end|>",
            True,
        )
    ]


def test_write_trace_vague_query_that_finds_nothing_gives_up() -> None:
    trace = _trace(replace(NO_FAULTS, vague=1.0, give_up=1.0))
    assert trace == [
        ("<think> I need the director of Balvak. </think> <search> Balvak </search>", True),
        (f" <result>\n{OTHER.contents}\n</result>", False),
        (
            " <think> I could not find it. I will guess. </think>"
            r" <answer> The final answer is \[ \boxed{ Zorzof } \] </answer><|im_end|>",
            True,
        ),
    ]


def test_write_trace_vague_query_is_followed_by_the_exact_one() -> None:
    trace = _trace(replace(NO_FAULTS, vague=1.0))
    assert trace[2][0] == (
        " <think> I could not find it. I need the director of Balvak. </think> <search> director of Balvak </search>"
    )


@pytest.mark.parametrize("seed", range(6))
def test_write_trace_bad_format_breaks_the_format(seed: int) -> None:
    faults = replace(NO_FAULTS, bad_format=1.0)
    segments = write_trace(_question(), _search, random.Random(seed), faults, ["Zorzof"])
    assert _score(segments, ["Borvik"])["format_ok"] == 0.0


def test_oracle_query_of_every_fact_finds_its_passage() -> None:
    pytest.importorskip("bm25s")
    world = make_world(0)
    search = bm25_search(world.corpus)
    lost = [f for f in world.facts if f.passage.id not in {d.id for d in search(search_query(f.relation, f.subject))}]
    assert lost == []


@pytest.mark.parametrize("split", [TRAIN, HELD_OUT])
def test_oracle_trace_under_bm25_scores_one(split: str) -> None:
    pytest.importorskip("bm25s")
    world = make_world(0)
    search = bm25_search(world.corpus)
    for question in sample_questions(world, split, {1: 10, 2: 30, 3: 30}):
        segments = write_trace(question, search, random.Random(0), NO_FAULTS, ["x"])
        scores = _score(segments, question.golden_answers)
        assert (scores["score"], scores["format_ok"]) == (1.0, 1.0)
        assert scores["num_searches"] == len(question.facts)


def test_rename_changes_every_name_alike_and_nothing_else() -> None:
    segments = [Segment("star of Balvak. Balvakian", True), Segment("The Belven of Balvak.", False)]
    text, renamed = rename("Who is Balvak?", segments, {"Balvak"}, ["Zorzof"], random.Random(0))
    assert text == "Who is Zorzof?"
    assert renamed == [Segment("star of Zorzof. Balvakian", True), Segment("The Belven of Zorzof.", False)]


def test_rename_keeps_names_apart() -> None:
    segments = [Segment("Balvak Belven Balvak", True)]
    _, renamed = rename("", segments, {"Balvak", "Belven"}, ["Zorzof", "Zemkin"], random.Random(0))
    first, second, third = renamed[0].text.split()
    assert first == third != second
    assert {first, second} == {"Zorzof", "Zemkin"}


def test_bm25_unknown_words_find_nothing() -> None:
    pytest.importorskip("bm25s")
    search = bm25_search([DIRECTED, BORN, OTHER])
    assert search("qqq !!") == []
    assert [doc.id for doc in search("BIRTHPLACE, qqq Belven?")] == ["1", "0"]
