"""Search-R1's rewards: exact match, and the variant that weighs the order of the blocks."""

from __future__ import annotations

import pytest

from research_plugin.rewards import compute_score

INFORMED = "<think>a</think>\n<search>q</search>\n\n<information>Doc 1(Title: T) x</information>\n\n<think>b</think>"
RIGHT = f"{INFORMED}<answer>The Paris.</answer>"

ROWS = {
    # text: (exact match, format-aware)
    "right": (RIGHT, 1.0, 1.0),
    "right without search": ("<think>a</think> <answer>Paris</answer>", 1.0, 1.0),
    "right, text between blocks": (f"so {RIGHT}", 1.0, 0.8),
    "right, no thinking": ("<answer>Paris</answer>", 1.0, 0.8),
    "right, search without thinking again": (
        INFORMED.replace("<think>b</think>", "") + "<answer>Paris</answer>",
        1,
        0.8,
    ),
    "right, information made up": ("<think>a</think><information>x</information><answer>Paris</answer>", 1.0, 0.8),
    "wrong, right format": (f"{INFORMED}<answer>Rome</answer>", 0.0, 0.2),
    "half right is wrong": (f"{INFORMED}<answer>Paris France</answer>", 0.0, 0.2),
    "wrong, wrong format": ("<answer>Rome</answer>", 0.0, 0.1),
    "no answer": (INFORMED, 0.0, 0.0),
    "nothing": ("", 0.0, 0.0),
    "last answer counts": ("<think>a</think><answer>Rome</answer><answer>Paris</answer>", 1.0, 0.8),
}


@pytest.mark.parametrize(("text", "exact", "aware"), ROWS.values(), ids=ROWS.keys())
def test_scores(text: str, exact: float, aware: float) -> None:
    def score(rules: str) -> object:
        return compute_score("nq", text, ["Paris"], method="search_r1", rules=rules)["score"]

    assert (score("paper"), score("format")) == (exact, aware)


def test_notice_after_an_invalid_turn_breaks_the_format_alone() -> None:
    segments = [["<think>a</think>", True], ["\nnotice\n", False], ["<think>b</think><answer>Paris</answer>", True]]
    info = {"segments": segments, "stop_reason": "answered", "num_searches": 0}
    assert compute_score("nq", "", "Paris", info, method="search_r1", rules="format")["score"] == 0.8
