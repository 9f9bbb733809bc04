"""Normalisation and the three comparisons, against values worked out by hand."""

from __future__ import annotations

import pytest

from research_plugin.rewards import compare, cover_match, exact_match, f1_score, normalise
from research_plugin.rewards.text_metrics import tokenise


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Beatles", "beatles"),
        ("an apple a day", "apple day"),
        ("U.S.A.", "usa"),
        ("1,000", "1000"),
        ("  New \t York\n", "new york"),
        ("theatre", "theatre"),
        ("mother-in-law", "motherinlaw"),
        ("", ""),
    ],
)
def test_normalise_is_the_released_one_on_plain_text(text: str, expected: str) -> None:
    assert normalise(text) == normalise(text, fold=False) == expected


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("O\u2019Brien", "O'Brien"),
        ("\u201cHeroes\u201d", '"Heroes"'),
        ("\u22125", "-5"),
        ("1999\u20132001", "1999-2001"),
        ("Beyonce\u0301", "Beyonc\u00e9"),
        ("New\u00a0York", "New York"),
        ("zero\u200bwidth", "zerowidth"),
    ],
    ids=["curly_apostrophe", "curly_quotes", "minus_sign", "en_dash", "nfd", "no_break_space", "zero_width"],
)
def test_normalise_folds_unicode_variants(text: str, same_as: str) -> None:
    assert normalise(text) == normalise(same_as)


def test_normalise_without_folding_keeps_a_curly_apostrophe() -> None:
    assert normalise("O\u2019Brien", fold=False) == "o\u2019brien"


@pytest.mark.parametrize(("text", "folded"), [("The The", "the the"), ("A", "a"), ("?", "?")])
def test_normalise_keeps_what_would_be_nothing_unless_released(text: str, folded: str) -> None:
    assert normalise(text) == folded
    assert normalise(text, fold=False) == ""


def test_normalise_leaves_a_long_run_of_combining_marks_alone() -> None:
    text = "x" + "\u0301\u0316" * 1000
    assert normalise(text) == text


@pytest.mark.parametrize(
    ("prediction", "golden", "expected"),
    [
        ("Paris", ["Paris"], 1.0),
        ("Paris France", ["Paris"], 2 / 3),
        ("Paris Paris Paris Paris Paris", ["Paris"], 1 / 3),
        ("Paris", ["Paris Paris"], 2 / 3),
        ("Rome", ["Paris"], 0.0),
        ("NYC", ["New York City", "NYC"], 1.0),
        ("Obama", ["Barack Obama", "President Obama of the USA"], 2 / 3),
        ("12 May 1999", ["May 12, 1999"], 1.0),
        ("Yes.", ["yes"], 1.0),
        ("yes, they are", ["yes"], 0.0),
        ("yes", ["yes it is"], 0.0),
        ("noanswer", ["no"], 0.0),
        ("no", ["yes", "no"], 1.0),
        ("1,000", ["1000"], 1.0),
        ("\u5317\u4eac", ["\u5317\u4eac"], 1.0),
        ("", ["Paris"], 0.0),
    ],
)
def test_f1_score(prediction: str, golden: list[str], expected: float) -> None:
    assert f1_score(prediction, golden) == pytest.approx(expected, abs=1e-12)


def test_f1_score_of_41_tokens_with_one_hit() -> None:
    assert f1_score(" ".join(["x"] * 40 + ["Paris"]), ["Paris"]) == pytest.approx(0.047619, abs=1e-6)


@pytest.mark.parametrize(
    ("prediction", "golden", "em", "cem"),
    [
        ("the paris", ["Paris"], 1.0, 1.0),
        ("city of Paris, France", ["Paris"], 0.0, 1.0),
        ("Paris", ["Paris, France"], 0.0, 0.0),
        ("nothing", ["no"], 0.0, 0.0),
        ("York the new", ["new york"], 0.0, 0.0),
        ("", ["Paris"], 0.0, 0.0),
        ("a", ["The"], 0.0, 0.0),
    ],
)
def test_exact_and_cover_match(prediction: str, golden: list[str], em: float, cem: float) -> None:
    assert exact_match(prediction, golden) == em
    assert cover_match(prediction, golden) == cem


def test_exact_match_of_nothing_with_nothing_is_no_match() -> None:
    assert exact_match("", ["The"], fold=False) == 0.0


def test_compare_takes_the_best_golden_answer_for_each_number() -> None:
    best = compare("city of Torvale", ["Torvale", "a town"])
    assert (best.f1, best.em, best.cem) == (0.5, 0.0, 1.0)
    assert compare("Torvale", []).f1 == 0.0


def test_per_character_splits_cjk_and_keeps_words() -> None:
    assert tokenise("\u5317\u4eac\u5e02\u3001New York", per_character=True) == [
        "\u5317",
        "\u4eac",
        "\u5e02",
        "new",
        "york",
    ]


def test_per_character_gives_partial_credit() -> None:
    prediction, golden = "\u5317\u4eac\u5e02", ["\u5317\u4eac"]
    assert f1_score(prediction, golden) == 0.0
    assert f1_score(prediction, golden, per_character=True) == pytest.approx(0.8)
    assert cover_match(prediction, golden, per_character=True) == 1.0


@pytest.mark.parametrize(
    ("prediction", "golden", "precision", "recall"),
    [
        ("the red fox", ["red fox"], 1.0, 1.0),
        ("red dog", ["red dog house in town", "dog"], 1.0, 1.0),
        ("yes it is", ["yes"], 0.0, 0.0),
        ("yes", ["Yes."], 1.0, 1.0),
        ("", ["red"], 0.0, 0.0),
    ],
    ids=["same", "best_of_two", "closed_against_words", "closed_alike", "empty"],
)
def test_precision_and_recall(prediction: str, golden: list[str], precision: float, recall: float) -> None:
    found = compare(prediction, golden)
    assert (found.precision, found.recall) == (precision, recall)
