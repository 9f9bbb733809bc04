"""The text protocol: observations to the byte, queries out of whatever a policy writes, foreign responses split."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from research_plugin.document import Document
from research_plugin.errors import ConfigError
from research_plugin.protocol import (
    DIALECTS,
    R1_SEARCHER,
    RESEARCH,
    SEARCH_R1,
    Dialect,
    Segment,
    get_dialect,
    parse_query,
    parse_response,
    register_dialect,
)

LONG = "w " * 5_000


def by_author(text: str) -> list[tuple[str, str]]:
    """Segments as ("policy" or "env", text)."""
    return [("policy" if segment.by_policy else "env", segment.text) for segment in parse_response(text)]


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (['"A"\nfirst', '"B"\nsecond'], ' <result>\n"A"\nfirst\n\n"B"\nsecond\n</result>'),
        (["one"], " <result>\none\n</result>"),
        (["  lead", "tail \n"], " <result>\nlead\n\ntail\n</result>"),
        ([], " <result>\nNo passage was found for this query.\n</result>"),
        (["", " \n"], " <result>\nNo passage was found for this query.\n</result>"),
        (["日本 🙂"], " <result>\n日本 🙂\n</result>"),
    ],
    ids=["two", "one", "stripped-as-a-whole", "none", "only-blank", "unicode"],
)
def test_format_observation_is_byte_for_byte_the_released_one(contents: list[str], expected: str) -> None:
    assert RESEARCH.format_observation([Document("1", text) for text in contents]) == expected


PARIS = Document("7", '"Paris"\nParis is a city.\nIt is old.')
TOKYO = Document("8", "Tokyo")


def test_observations_of_the_other_dialects_byte_for_byte() -> None:
    assert R1_SEARCHER.format_observation([PARIS, TOKYO]) == (
        '\n\n<|begin_of_documents|>\n(1)"Paris"\nParis is a city.\nIt is old.\n(2)Tokyo\n<|end_of_documents|>\n\n'
    )
    assert R1_SEARCHER.format_observation([]) == "\n\n<|begin_of_documents|>\nNone\n<|end_of_documents|>\n\n"
    assert SEARCH_R1.format_observation([PARIS, TOKYO]) == (
        '\n\n<information>Doc 1(Title: "Paris") Paris is a city.\nIt is old.\nDoc 2(Title: Tokyo)</information>\n\n'
    )


def test_braces_in_a_document_are_text() -> None:
    assert SEARCH_R1.format_observation([Document("1", "{title}\n{0} {contents}")]).count("{") == 3


def test_document_layout_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\{body\}.*allowed fields: \{contents\}, \{title\}, \{text\}, \{number\}"):
        dataclasses.replace(RESEARCH, document="{body}")


def test_r1_searcher_cleans_its_queries() -> None:
    text = '<think>so <|begin_of_query|> "Eiffel\n Tower"  height <|end_of_query|>'
    assert parse_query(text, R1_SEARCHER) == "Eiffel Tower height"


@pytest.mark.parametrize("dialect", [R1_SEARCHER, SEARCH_R1], ids=lambda dialect: dialect.name)
def test_observation_is_found_again_in_the_text(dialect: Dialect) -> None:
    turn = f"a {dialect.search_open} q {dialect.search_close}"
    observation = dialect.format_observation([PARIS, TOKYO])
    found = parse_response(f"{turn}{observation}b", dialect)
    assert found == [Segment(turn, True), Segment(observation, False), Segment("b", True)]


def test_wrap_puts_a_notice_between_the_tags() -> None:
    assert RESEARCH.wrap("Notice.") == " <result>\nNotice.\n</result>"


def test_dialect_tags_without_white_space() -> None:
    assert (RESEARCH.stop, RESEARCH.result_open, RESEARCH.result_close) == (("</search>",), "<result>", "</result>")


# Case 14: each of these has one documented behaviour.
@pytest.mark.parametrize(
    ("turn", "query"),
    [
        ("<think> x </think> <search> who is it </search>", "who is it"),
        ("<search>a</search>", "a"),
        ("<search> a <search> b </search>", "b"),
        ("<search> a </search> then <search> b </search>", "b"),
        ("<think> maybe <search> inside </search>", "inside"),
        ("<search> never closed", None),
        ("no search at all", None),
        ("", None),
        ("<search></search>", ""),
        ("<search> \n\t </search>", ""),
        ("closed but never opened </search>", ""),
        ("</search> <search> open after", ""),
        ("<search> a </search>\n\n", "a"),
        ("<search> a </search>.", "a"),
        ("<search>\nline 1\nline 2\n</search>", "line 1\nline 2"),
        ("<search> \"quoted\" and 'single' </search>", "\"quoted\" and 'single'"),
        ("<search> 東京タワーの高さ </search>", "東京タワーの高さ"),
        ("<search> 🙂🙃 </search>", "🙂🙃"),
        (f"<search>{LONG}</search>", LONG.strip()),
        ("<SEARCH> a </SEARCH>", None),
        ("<search> a </search", None),
        ("<search> a </result> b </search>", "a </result> b"),
    ],
    ids=[
        "plain",
        "no-spaces",
        "two-opens",
        "two-searches",
        "inside-think",
        "unclosed",
        "none",
        "empty-text",
        "empty-query",
        "blank-query",
        "never-opened",
        "reversed",
        "newlines-after",
        "full-stop-after",
        "newlines-inside",
        "quotes",
        "cjk",
        "emoji",
        "10000-characters",
        "upper-case",
        "cut-tag",
        "other-tag-inside",
    ],
)
def test_parse_query(turn: str, query: str | None) -> None:
    assert parse_query(turn) == query


def test_10000_character_query_is_not_cut_here() -> None:
    assert len(parse_query(f"<search>{LONG}</search>") or "") == 9_999


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("policy", "")]),
        ("only words", [("policy", "only words")]),
        (
            "a <search> q </search> <result>\nd\n</result> b",
            [("policy", "a <search> q </search>"), ("env", " <result>\nd\n</result>"), ("policy", " b")],
        ),
        (
            "<search> q </search>\n <result>\nd\n</result>",
            [("policy", "<search> q </search>\n"), ("env", " <result>\nd\n</result>")],
        ),
        (
            "<search> q </search>\n<result>d</result>",
            [("policy", "<search> q </search>\n"), ("env", "<result>d</result>")],
        ),
        (
            "<search> q </search><result>d</result>x",
            [("policy", "<search> q </search>"), ("env", "<result>d</result>"), ("policy", "x")],
        ),
        (
            "<think> a </think> <result> made up </result>",
            [("policy", "<think> a </think> <result> made up </result>")],
        ),
        (
            "</search> <result> nothing was opened </result>",
            [("policy", "</search> <result> nothing was opened </result>")],
        ),
        ("<search> q </search> so <result> x </result>", [("policy", "<search> q </search> so <result> x </result>")]),
        (
            "<search> q </search>.\n\n <result>\nd\n</result> b",
            [("policy", "<search> q </search>.\n\n"), ("env", " <result>\nd\n</result>"), ("policy", " b")],
        ),
        (
            "<search> q </search>Then <result>\nd",
            [("policy", "<search> q </search>Then"), ("env", " <result>\nd")],
        ),
        ("<search> q </search>. <result>d</result>", [("policy", "<search> q </search>. <result>d</result>")]),
        ("<search> q </search>. So <result>\nd", [("policy", "<search> q </search>. So <result>\nd")]),
        (
            f"<search> q </search>{'.' * 16} <result>\nd\n</result>",
            [("policy", f"<search> q </search>{'.' * 16} <result>\nd\n</result>")],
        ),
        ("<search> q </search> <result>\ncut off", [("policy", "<search> q </search>"), ("env", " <result>\ncut off")]),
        (
            "<search> q </search> <result>\n<search> a </search> <answer> b\n</result> c",
            [
                ("policy", "<search> q </search>"),
                ("env", " <result>\n<search> a </search> <answer> b\n</result>"),
                ("policy", " c"),
            ],
        ),
        (
            "<search> q </search> <result>\nd\n</result></search> <result> mine </result>",
            [
                ("policy", "<search> q </search>"),
                ("env", " <result>\nd\n</result>"),
                ("policy", "</search> <result> mine </result>"),
            ],
        ),
    ],
    ids=[
        "empty",
        "no-search",
        "one-search",
        "newline-before",
        "newline-instead-of-space",
        "glued",
        "own-result",
        "never-opened",
        "words-between",
        "token-with-a-tail",
        "token-with-a-word",
        "tail-but-another-prefix",
        "tail-and-more-words",
        "too-long-for-a-token",
        "cut-result",
        "tags-in-a-document",
        "second-result-without-search",
    ],
)
def test_parse_response(text: str, expected: list[tuple[str, str]]) -> None:
    assert by_author(text) == expected


PARTS = ["<search>", "</search>", "<result>", "</result>", " <result>\n", "\n</result>", " ", "\n", "a", "é", "<", ">"]


@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join))
@example("<search></search> ")
@settings(deadline=None, max_examples=300)
def test_parse_response_segments_concatenate_and_alternate(text: str) -> None:
    segments = parse_response(text)
    assert "".join(segment.text for segment in segments) == text
    assert all(first.by_policy != second.by_policy for first, second in itertools.pairwise(segments))
    assert all(segment.text.strip().startswith("<result>") for segment in segments if not segment.by_policy)


@pytest.mark.parametrize(
    "text",
    [
        "<search>" * 125_000,
        "</search>" * 110_000,
        "<search></search>" * 60_000,
        "<search></search>" + " " * 1_000_000,
        ("</search>" + " " * 100) * 10_000,
        "<search></search><result>" * 40_000,
        "<search></search> <result></result>" * 28_000,
        "<search>" + "</search> <result>" * 55_000,
        "<" * 1_000_000,
    ],
    ids=[
        "open",
        "close",
        "pairs",
        "white-space",
        "close-and-white-space",
        "unclosed-results",
        "whole",
        "one-open",
        "lt",
    ],
)
def test_parse_response_of_a_megabyte_returns(text: str) -> None:
    # Quadratic code needs hours for these; linear code milliseconds.
    segments = parse_response(text)
    assert "".join(segment.text for segment in segments) == text


def test_parse_response_reads_back_what_format_observation_wrote() -> None:
    observation = RESEARCH.format_observation([Document("1", '"T"\nbody'), Document("2", '"U"\nmore')])
    assert parse_response("<search> q </search>" + observation + " so") == [
        Segment("<search> q </search>", True),
        Segment(observation, False),
        Segment(" so", True),
    ]


def test_register_dialect_same_value_twice_and_other_value_under_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research_plugin.protocol.DIALECTS", dict(DIALECTS))
    mine = dataclasses.replace(RESEARCH, name="mine", search_open="<query>", search_close="</query>")
    assert register_dialect(mine) is mine
    assert register_dialect(dataclasses.replace(mine)) == mine
    assert get_dialect("mine") is mine
    assert parse_query("<query> x </query>", mine) == "x"
    with pytest.raises(ConfigError, match="'mine' is already registered"):
        register_dialect(dataclasses.replace(mine, search_open="<q>"))


def test_get_dialect_unknown_names_the_allowed_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown protocol 'reserch'; allowed: r1_searcher, research, search_r1"):
        get_dialect("reserch")


def test_get_dialect_from_a_module_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tags.py").write_text(
        "import dataclasses\nfrom research_plugin.protocol import RESEARCH\n"
        "MINE = dataclasses.replace(RESEARCH, name='mine', search_open='<q>', search_close='</q>')\nOTHER = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert parse_query("<q> x </q>", get_dialect("my_tags:MINE")) == "x"
    with pytest.raises(ConfigError, match="cannot import the protocol 'my_tags:GONE'"):
        get_dialect("my_tags:GONE")
    with pytest.raises(ConfigError, match="cannot import the protocol 'no_such_module:X'"):
        get_dialect("no_such_module:X")
    with pytest.raises(ConfigError, match="my_tags:OTHER is a int; a Dialect is needed"):
        get_dialect("my_tags:OTHER")


@pytest.mark.parametrize("name", ["search_open", "search_close", "result_prefix", "result_suffix"])
def test_dialect_with_a_blank_tag_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is blank"):
        dataclasses.replace(RESEARCH, name="mine", **{name: " \n"})
