"""Rollout records survive the way through a file."""

from __future__ import annotations

import json

import pytest

from research_plugin.errors import DataError
from research_plugin.records import RolloutRecord, Tokens, parse_record


def test_a_record_survives_its_line() -> None:
    record = RolloutRecord(
        question="Who?",
        golden_answers=["Zoë"],
        segments=[("<search>a\nb</search>", True), (" <result>\n</script>\u2028\n</result>", False)],
        step=3,
        split="train",
        queries=["a\nb"],
        documents=[[{"id": "7", "contents": "T\ntext"}]],
        scores={"score": 0.5},
        advantage=-0.25,
        tokens=Tokens(["a", "b"], [1, 0], [-0.5, 0.0]),
    )
    line = record.to_line()
    assert "\n" not in line
    assert json.loads(line)["response"] == "<search>a\nb</search> <result>\n</script>\u2028\n</result>"
    assert parse_record(line) == record


def test_a_lone_surrogate_is_replaced() -> None:
    assert parse_record(RolloutRecord("q", ["a"], [("\ud800", True)]).to_line()).segments == [("?", True)]


def test_unknown_keys_are_skipped_and_missing_ones_filled_in() -> None:
    record = parse_record('{"question": "q", "golden_answers": [], "segments": [["x", 1]], "later": 1}')
    assert (record.segments, record.split, record.tokens) == ([("x", True)], "eval", None)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        '{"question": "q"}',
        '{"question": "q", "golden_answers": [], "segments": [1]}',
        '{"question": "q", "golden_answers": [], "segments": [], "tokens": {"texts": ["a"], "mask": []}}',
        '{"question": "q", "golden_answers": [], "segments": [], "scores": 1}',
        '{"question": "q", "golden_answers": [], "segments": [], "documents": ["a"]}',
        '{"question": "q", "golden_answers": [], "segments": [], "step": 1e999}',
        "[" * 100_000,
    ],
)
def test_anything_else_is_refused_with_its_place(line: str) -> None:
    with pytest.raises(DataError, match=r"f\.jsonl:3 is no rollout record"):
        parse_record(line, "f.jsonl:3")


def test_values_have_the_types_that_reports_rely_on() -> None:
    tokens = {"texts": ["a", "b"], "mask": [1, False], "log_probs": [None, 0], "later": []}
    values = {
        "question": 7,
        "golden_answers": [1961, None, "\ud83d"],
        "queries": "who",
        "segments": [["x", 1]],
        "scores": {"em": 1, "f1": None},
        "metrics": None,
        "advantage": 1,
        "documents": [[{"id": 0, "contents": None, "url": "u"}], []],
        "tokens": tokens,
    }
    record = parse_record(json.dumps(values))
    assert (record.question, record.golden_answers, record.advantage) == ("7", ["1961", "?"], 1.0)
    assert record.queries == ["who"]
    assert (record.scores, record.metrics) == ({"em": 1.0}, {})
    assert record.documents == [[{"id": "0", "contents": ""}], []]
    assert record.tokens is not None and record.tokens.log_probs is not None
    assert (record.tokens.mask, record.tokens.log_probs[0] != record.tokens.log_probs[0]) == ([1, 0], True)
