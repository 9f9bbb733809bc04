"""No response makes the reward fail, and its work grows with the length of the response, not faster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research_plugin.protocol import parse_response
from research_plugin.rewards import compute_score
from research_plugin.rewards.response import END_TOKENS

PIECES = st.sampled_from(
    ["<think>", "</think>", "<search>", "</search>", "<result>", "</result>", "<answer>", "</answer>", "\\boxed{",
     "\\boxed", "\\boxed ", "\\fbox{", "\\text{", "\\%", "{", "}", "$", "Torvale", " ", "\n", "<|im_end|>", "</s>",
     "yes", "\ud800", "\x00", "e\u0301", "\u5317", "\\"]
)  # fmt: skip
RESPONSES = st.lists(PIECES | st.text(max_size=5), max_size=40).map("".join)
STOP_REASONS = st.sampled_from([None, "answered", "max_length", "max_searches", "search_failed", "aborted"])


@settings(max_examples=150, deadline=None)
@given(RESPONSES, STOP_REASONS, st.sampled_from(["paper", "released"]), st.booleans())
def test_any_response_gets_a_score(response: str, stop_reason: str | None, rules: str, per_character: bool) -> None:
    info = {"stop_reason": stop_reason}
    result = compute_score("fuzz", response, ["Torvale"], info, rules=rules, per_character=per_character)
    assert 0.0 <= float(result["score"]) <= 1.0
    assert set(result) == set(compute_score("fuzz", "", ["Torvale"]))
    str(result["pred"]).encode("utf-8")


@settings(max_examples=75, deadline=None)
@given(st.lists(st.tuples(RESPONSES, st.booleans()), max_size=6), st.sampled_from(["paper", "released"]))
def test_any_segments_get_a_score(segments: list[tuple[str, bool]], rules: str) -> None:
    result = compute_score("fuzz", "", ["Torvale"], {"segments": segments}, rules=rules, repeat_penalty=0.1)
    assert 0.0 <= float(result["score"]) <= 1.0


@settings(max_examples=75, deadline=None)
@given(RESPONSES)
def test_parsed_segments_score_as_the_text_they_came_from(response: str) -> None:
    for token in END_TOKENS:  # the end of a text, but the policy's words in a segment
        response = response.replace(token, "")
    segments = [(segment.text, segment.by_policy) for segment in parse_response(response)]
    assert compute_score("fuzz", response, ["Torvale"]) == compute_score(
        "fuzz", "", ["Torvale"], {"segments": segments}
    )


def lines_run(call: Callable[[], Any]) -> int:
    """Return how many lines of Python ``call`` runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("rules", ["paper", "released"])
@pytest.mark.parametrize(
    ("before", "piece", "after"),
    [
        ("", "<search>", ""),
        ("", "</search>", ""),
        ("", "<search>q</search>", ""),
        ("", "<search>q</search> <result>", ""),
        ("", "<search>q</search> <result>\nd\n</result>", ""),
        ("<search>q</search>", " ", ""),
        ("", "<result>", ""),
        ("", "<result></result>", ""),
        ("", "<answer>", ""),
        ("<think></think><answer>", "\\boxed{", "</answer>"),
        ("<think></think><answer>", "\\boxed ", "</answer>"),
        ("<think></think><answer>\\boxed{", "{", "</answer>"),
        ("<think></think><answer>\\boxed{", "\\text{", "}</answer>"),
        ("<think></think><answer>\\boxed{", "a\u0301", "}</answer>"),
        ("", "<|im_end|>", ""),
    ],
)
def test_work_grows_no_faster_than_the_response(before: str, piece: str, after: str, rules: str) -> None:
    def work(times: int) -> int:
        response = before + piece * times + after
        return lines_run(lambda: compute_score("growth", response, ["Torvale"], rules=rules, repeat_penalty=0.1))

    assert work(1600) <= 2 * work(800) + 100
