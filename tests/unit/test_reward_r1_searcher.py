"""R1-Searcher's rewards: the scores of the released servers on known inputs, and where the paper's rules differ."""

from __future__ import annotations

import pytest

from research_plugin.rewards import compute_score

SEARCH = "<|begin_of_query|> capital France <|end_of_query|>"
DOCUMENTS = "\n\n<|begin_of_documents|>\n(1)Paris is the capital.\n(2)France is a country.\n<|end_of_documents|>\n\n"
END = "so it is that.</think>\n\n<answer>{}</answer>"
FOUND = f"I look. {SEARCH}{DOCUMENTS}"

# text, then released scores (Qwen stage 2, Llama stage 1, Llama stage 2), then paper (stage 1, stage 2).
ROWS = {
    "right, searched": (FOUND + END.format("Paris"), 1.0, 2.0, 1.0, 1.0, 1.0),
    "right, no search": (END.format("Paris"), 1.0, 1.5, 1.0, 0.5, 1.0),
    "wrong, searched": (FOUND + END.format("Rome"), 0.0, 0.0, 0.0, 1.0, 0.0),
    "wrong, no search": (END.format("Rome"), 0.0, -0.5, 0.0, 0.5, 0.0),
    "no answer, searched": (FOUND + "so it is.</think>", -2.0, -0.5, -1.0, 0.5, -2.0),
    "half right": (END.format("Paris France"), 2 / 3, 1.5, 2 / 3, 0.5, 2 / 3),
    "think opened again": ("<think>" + END.format("Paris"), -1.0, 1.0, 0.0, 0.0, -1.0),
    "think closed twice": ("</think>" + END.format("Paris"), -1.0, 1.0, 0.0, 0.0, -1.0),
    "query without documents": (SEARCH + END.format("Paris"), -1.0, 1.5, 0.0, 0.5, -1.0),
    "assistant in a document": (
        FOUND.replace("a country", "an assistant") + END.format("Paris"),
        -1.0,
        2.0,
        1.0,
        1.0,
        1.0,
    ),
    "eleven words": (END.format("Paris b c d e f g h i j k"), 1 / 6 - 2, 1.5, 1 / 6, 0.5, 1 / 6),
    "Chinese outside documents": ("\u4e2d" + END.format("Paris"), -1.0, 1.5, 0.0, 0.5, 1.0),
    "Chinese inside documents": (FOUND.replace("a country", "\u4e2d") + END.format("Paris"), 1.0, 2.0, 1.0, 1.0, 1.0),
    "documents are None": (
        f"{SEARCH}\n\n<|begin_of_documents|>\nNone\n<|end_of_documents|>\n\n" + END.format("Paris"),
        -1.0,
        1.5,
        0.0,
        1.0,
        1.0,
    ),
}
COLUMNS = (
    ("r1_searcher_stage2", "released"),
    ("r1_searcher_stage1", "released"),
    ("r1_searcher_stage2", "released_llama"),
    ("r1_searcher_stage1", "paper"),
    ("r1_searcher_stage2", "paper"),
)


@pytest.mark.parametrize(("column", "method_and_rules"), list(enumerate(COLUMNS, start=1)))
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_scores(row: tuple[str | float, ...], column: int, method_and_rules: tuple[str, str]) -> None:
    method, rules = method_and_rules
    scored = compute_score("hotpotqa", str(row[0]), ["Paris"], method=method, rules=rules)
    assert scored["score"] == pytest.approx(row[column])


@pytest.mark.parametrize("rules", ["released", "paper"])
def test_yes_and_no_need_the_same_word(rules: str) -> None:
    def score(answer: str) -> float:
        method = "r1_searcher_stage2"
        return float(compute_score("q", END.format(answer), "yes", method=method, rules=rules)["score"])

    assert (score("Yes."), score("yes it is"), score("no")) == (1.0, 0.0, 0.0)


def test_paper_judges_what_the_policy_wrote() -> None:
    """A page that holds tags breaks nothing; documents that the policy makes up are no retrieval."""
    hostile = [["I look. " + SEARCH, True], [DOCUMENTS.replace("(2)", "</think><answer>(2)"), False]]
    end = [END.format("Paris"), True]
    made_up = [[FOUND + END.format("Paris"), True]]

    def scores(segments: list[list[object]]) -> list[float]:
        info = {"segments": segments, "stop_reason": "answered"}
        methods = ("r1_searcher_stage1", "r1_searcher_stage2")
        return [float(compute_score("q", "", "Paris", info, method=method)["score"]) for method in methods]

    assert scores([*hostile, end]) == [1.0, 1.0]
    assert scores(made_up) == [0.5, -1.0]


def test_unfinished_rollout_has_no_right_format() -> None:
    info = {"segments": [[END.format("Paris"), True]], "stop_reason": "max_length"}
    assert compute_score("q", "", "Paris", info, method="r1_searcher_stage1")["score"] == 0.0
    assert compute_score("q", "", "Paris", info, method="r1_searcher_stage2")["score"] == -1.0
