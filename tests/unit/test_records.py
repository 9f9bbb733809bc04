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
    ],
)
def test_anything_else_is_refused_with_its_place(line: str) -> None:
    with pytest.raises(DataError, match=r"f\.jsonl:3 is no rollout record"):
        parse_record(line, "f.jsonl:3")
