"""Where the answer of a response is: block, box, braces, LaTeX wrappers."""

from __future__ import annotations

import pytest

from research_plugin.rewards import extract_answer
from research_plugin.rewards.answer import last_boxed, unwrap_latex


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{Torvale}", "Torvale"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{set {a}}", "set {a}"),
        (r"\boxed{Brenlow} or rather \boxed{Torvale}", "Torvale"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"\boxed {Torvale}", "Torvale"),
        (r"\boxed{Torvale} as \boxed says", "Torvale"),
        (r"\boxed{}", ""),
        (r"\boxed{Torvale", None),
        (r"\boxed{Par{is}", None),
        (r"\boxed{Torvale} \boxed{Bren", None),
        (r"\boxed", None),
        ("{Torvale}", None),
        ("", None),
    ],
)
def test_last_boxed(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\text{Torvale}", "Torvale"),
        (r"\textbf{Tor\mathrm{va}le}", "Torvale"),
        (r"\text{a} and \textbf{b}", "a and b"),
        (r"\text {a}", "a"),
        (r"50\%", "50%"),
        (r"Smith \& Sons", "Smith & Sons"),
        (r"\$5", "$5"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\text{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"{\text{a}}", "{a}"),
        (r"\textcolor{red}", r"\textcolor{red}"),
        ("}\\text{a", "}a"),
        ("Torvale", "Torvale"),
    ],
)
def test_unwrap_latex(text: str, expected: str) -> None:
    assert unwrap_latex(text) == expected


@pytest.mark.parametrize(
    ("text", "expected", "fault"),
    [
        (r"<answer> It is \[ \boxed{Torvale} \] </answer>", "Torvale", ""),
        (r"<answer>\boxed{ \text{Torvale} }</answer>", "Torvale", ""),
        (r"<answer>\boxed{}</answer>", "", ""),
        (r"\boxed{Torvale}", None, "no answer block"),
        (r"<think>\boxed{Torvale}</think><answer>Torvale</answer>", None, "no box in the answer"),
        (r"<answer>Torvale</answer> \boxed{Torvale}", None, "no box in the answer"),
        (r"<answer>\boxed{Torvale</answer>}", None, "unclosed box in the answer"),
        (r"<answer>\boxed{T}</answer><answer>\boxed{T}</answer>", None, "not exactly one answer block"),
        (r"<answer>\boxed{T}", None, "not exactly one answer block"),
        (r"</answer>\boxed{T}<answer>", None, "answer tags in the wrong order"),
        (r"<result><answer>\boxed{T}</answer></result>", None, "no answer block"),
        (r"<result><answer>\boxed{T}</answer></result><answer>\boxed{U}</answer>", "U", ""),
        (r"<result><answer>\boxed{T}</answer>", "T", ""),
    ],
)
def test_extract_answer(text: str, expected: str | None, fault: str) -> None:
    assert extract_answer(text) == (expected, fault)
