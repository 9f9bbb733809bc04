"""Transcripts of the warm start: exact text, each fault, the oracle under BM25, the scores of the evaluation."""

from __future__ import annotations

import random

import pytest

from research_plugin.data.tiny_eval import score
from research_plugin.data.tiny_traces import NO_FAULTS, Faults, observation, write_trace
from research_plugin.data.tiny_world import HELD_OUT, RELATIONS, TRAIN, Entity, Fact, Question, ask, make_world
from research_plugin.data.tiny_world import sample_questions as sample
from research_plugin.document import Document

FILM, PERSON, CITY = Entity("Balvak", "film", TRAIN), Entity("Belven", "person", TRAIN), Entity("Borvik", "city", TRAIN)
DIRECTED = Document("0", "The film Balvak had the person Belven as its director.")
BORN = Document("1", "The person Belven has the city Borvik as birthplace.")
OTHER = Document("2", "The film Balvak had the person Dalvos as its star.")


def _question() -> Question:
    by_name = {relation.name: relation for relation in RELATIONS}
    return ask([Fact(FILM, by_name["director"], PERSON, DIRECTED), Fact(PERSON, by_name["birthplace"], CITY, BORN)])


def _search(query: str) -> list[Document]:
    return {"director of Balvak": [DIRECTED, OTHER], "birthplace of Belven": [BORN], "Balvak": [OTHER]}.get(query, [])


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
    assert _trace(Faults(stop_early=1.0, vague=0.0, guess=0.0, bad_format=0.0, give_up=0.0)) == [
        (FIRST, True),
        (FOUND, False),
        (
            " <think> The director is Belven. </think>"
            r" <answer> The final answer is \[ \boxed{ Belven } \] </answer><|im_end|>",
            True,
        ),
    ]


def test_write_trace_guess_never_searches() -> None:
    assert _trace(Faults(stop_early=0.0, vague=0.0, guess=1.0, bad_format=0.0, give_up=0.0)) == [
        (
            "<think> I do not know. I will guess. </think>"
            r" <answer> The final answer is \[ \boxed{ Zorzof } \] </answer><|im_end|>",
            True,
        )
    ]


def test_write_trace_vague_query_that_finds_nothing_gives_up() -> None:
    trace = _trace(Faults(stop_early=0.0, vague=1.0, guess=0.0, bad_format=0.0, give_up=1.0))
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
    trace = _trace(Faults(stop_early=0.0, vague=1.0, guess=0.0, bad_format=0.0, give_up=0.0))
    assert trace[2][0] == (
        " <think> I could not find it. I need the director of Balvak. </think> <search> director of Balvak </search>"
    )


@pytest.mark.parametrize("seed", range(6))
def test_write_trace_bad_format_is_never_scored_as_right(seed: int) -> None:
    faults = Faults(stop_early=0.0, vague=0.0, guess=0.0, bad_format=1.0, give_up=0.0)
    segments = write_trace(_question(), _search, random.Random(seed), faults, ["Zorzof"])
    assert score("".join(s.text for s in segments if s.by_policy), ["Borvik"]) == (False, False)


def test_observation_of_no_documents_keeps_both_tags() -> None:
    assert observation([]) == " <result>\n\n</result>"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (r"<think> x </think> <answer> \boxed{ Borvik } </answer><|im_end|>", (True, True)),
        (r"<think> x </think> <answer> \boxed{ Zorzof } </answer><|im_end|>", (False, True)),
        (r"<think> x </think> <answer> \boxed{ Borvik } </answer>", (False, False)),
        (r"<think> x <answer> \boxed{ Zorzof } </answer><|im_end|>", (False, False)),
        (r"<think> x </think> <answer> Borvik </answer><|im_end|>", (False, False)),
        (r"<search> y </search> <answer> \boxed{ Zorzof } </answer><|im_end|>", (False, False)),
        ("", (False, False)),
    ],
    ids=["right", "wrong", "no end", "open think", "no box", "no think", "empty"],
)
def test_score_table(written: str, expected: tuple[bool, bool]) -> None:
    assert score(written, ["Borvik"]) == expected


@pytest.mark.parametrize("split", [TRAIN, HELD_OUT])
def test_oracle_under_bm25_finds_every_fact_and_scores_one(split: str) -> None:
    pytest.importorskip("bm25s")
    from research_plugin.data.tiny_bm25 import TinyBM25

    world = make_world(0)
    search = TinyBM25(world.corpus).search
    for question in sample(world, split, {1: 100, 2: 200, 3: 200}):
        for query, fact in zip(question.oracle_queries, question.facts, strict=True):
            assert fact.passage.id in {doc.id for doc in search(query)}
        segments = write_trace(question, search, random.Random(0), NO_FAULTS, ["x"])
        assert score("".join(s.text for s in segments if s.by_policy), question.golden_answers) == (True, True)
        assert sum(not s.by_policy for s in segments) == len(question.facts)


def test_bm25_unknown_words_find_nothing() -> None:
    pytest.importorskip("bm25s")
    from research_plugin.data.tiny_bm25 import TinyBM25

    search = TinyBM25([DIRECTED, BORN, OTHER]).search
    assert search("qqq !!") == []
    assert [doc.id for doc in search("BIRTHPLACE, qqq Belven?")] == ["1", "0"]
