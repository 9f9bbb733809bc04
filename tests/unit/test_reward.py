"""`compute_score`: both rule sets on the shared cases, the paper's rules one by one, options, golden answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from research_plugin.errors import ConfigError, DataError
from research_plugin.protocol import RESEARCH, Segment
from research_plugin.rewards import compute_score
from research_plugin.rollout import StopReason

ROOT = Path(__file__).resolve().parents[2]
ROWS: list[dict[str, Any]] = json.loads((ROOT / "tests/data/research_reward.json").read_text(encoding="utf-8"))

# Where Eq. 2 on what the policy wrote gives another score than the released code; docs/rewards.md says why.
PAPER_DIFFERS = {
    "apostrophe_curly": 1.0,
    "nested_braces": 1.0,
    "no_think": 1.0,
    "search_without_result": 1.0,
    "result_before_search": 1.0,
    "answer_in_result": 1.0,
}
KEYS = {
    "score", "f1", "em", "cem", "format_ok", "num_searches", "answered", "truncated", "search_cost", "repeat_penalty",
    "pred", "reason",
}  # fmt: skip

OBSERVATION = RESEARCH.wrap('"Torvale"\nTorvale is a town.')
SEARCH = f"<think> where? </think> <search> Torvale </search>{OBSERVATION}"


def answer(text: str = "Torvale") -> str:
    return f"<think> so </think> <answer> It is \\[ \\boxed{{{text}}} \\] </answer>"


def score(response: str, golden: Any = ("Torvale",), extra_info: dict[str, Any] | None = None, **options: Any) -> Any:
    return compute_score("musique", response, golden, extra_info, **options)


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_shared_case_released_and_paper(row: dict[str, Any]) -> None:
    info = {"stop_reason": "answered" if row["finished"] else "max_length"}
    released = score(row["response"], row["ground_truth"], info, rules="released")
    paper = score(row["response"], row["ground_truth"], info)
    assert released["score"] == pytest.approx(row["score_released"], abs=1e-6)
    assert paper["score"] == pytest.approx(PAPER_DIFFERS.get(row["name"], row["score_released"]), abs=1e-6)


def test_table_of_differences_in_the_docs_is_the_one_tested() -> None:
    page = (ROOT / "docs/rewards.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|", page, flags=re.MULTILINE)
    released = {row["name"]: row["score_released"] for row in ROWS}
    assert {name: float(value) for name, _, value in table} == PAPER_DIFFERS
    assert {name: float(value) for name, value, _ in table} == {name: released[name] for name in PAPER_DIFFERS}


@pytest.mark.parametrize(
    ("response", "extra_info", "expected"),
    [
        (SEARCH + answer() + "<|im_end|>", None, 1.0),
        (SEARCH + answer("Torvale Hills"), None, 2 / 3),
        (SEARCH + answer("Rome"), None, 0.1),
        (SEARCH + answer(), {"stop_reason": "max_length"}, 0.0),
        (SEARCH + answer(), {"stop_reason": "max_searches"}, 0.0),
        (SEARCH + answer() + "<|im_end|>\n", None, 0.0),
        (answer().replace("<think> so </think>", ""), None, 0.0),
        (answer(), None, 1.0),
        ("hello " + SEARCH + " text outside " + answer(), None, 1.0),
        (answer().split("</think>")[1] + "<think> late </think>", None, 1.0),
        (answer() + answer(), None, 0.0),
        ("<search> q </search>" + answer(), None, 0.0),
        ("</search>" + answer(), None, 1.0),
        ("<search>q<search>r</search> <result>\nd\n</result>" + answer(), None, 1.0),
        ("<search> q <result> </search> </result>" + answer(), None, 0.0),
        ("<think> a </think><answer> Torvale </answer>", None, 0.0),
        (answer("Tor{vale"), None, 0.0),
        (answer("\\text{Torvale}"), None, 0.1),
        (answer(""), None, 0.1),
        (answer("Rome} then \\boxed{Torvale"), None, 1.0),
        ("<search> q </search> <result>\na <think> in a page\n</result>" + answer(), None, 0.0),
        ("<think></think><answer>\\boxed{Rome} \\boxed Torvale$ x</answer>", None, 1.0),
        ("<think></think><answer>\\boxed{Torvale} \\boxedfoo{x}</answer>", None, 0.0),
        ("<think></think><answer>\\boxed Torvale$ </answer>", None, 0.0),
    ],
    ids=[
        "right", "half_right", "wrong", "truncated", "out_of_searches", "newline_after_end_token", "no_think",
        "no_search", "text_outside", "answer_before_think", "two_answers", "search_without_result", "stray_close",
        "two_opens", "result_inside_search", "no_box", "unbalanced_box", "wrapped_box", "empty_box", "last_box",
        "think_in_page", "boxed_and_space", "last_boxed_unreadable",
        "boxed_and_space_alone",
    ],
)  # fmt: skip
def test_released_rules(response: str, extra_info: dict[str, Any] | None, expected: float) -> None:
    assert score(response, extra_info=extra_info, rules="released")["score"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("response", "format_ok"),
    [
        (SEARCH + answer("Rome"), 1.0),
        (SEARCH + SEARCH + answer("Rome"), 1.0),
        (answer("Rome"), 1.0),
        (answer(""), 1.0),
        (f"<think> a <search> q </search>{OBSERVATION} </think>" + answer("Rome"), 1.0),
        (f"<search> q <search> r </search>{OBSERVATION}" + answer("Rome"), 1.0),
        ("</search>" + answer("Rome"), 1.0),
        ("<search> q </search>" + answer("Rome"), 0.0),
        (f"<search> q </search> and <search> r </search>{OBSERVATION}" + answer("Rome"), 0.0),
        (SEARCH + "<search> q" + answer("Rome"), 0.0),
        ("<result> made up </result>" + answer("Rome"), 0.0),
        ("<search> q </search> so <result> made up </result>" + answer("Rome"), 0.0),
        (SEARCH + "<result> more </result>" + answer("Rome"), 0.0),
        ("<think>" + answer("Rome"), 0.0),
        (answer("Rome").replace("<think> so </think>", ""), 0.0),
        (answer("Rome") + answer("Rome"), 0.0),
        ("<think> \\boxed{Rome} </think>", 0.0),
        (answer("Ro{me"), 0.0),
        ("", 0.0),
    ],
    ids=[
        "one_search", "two_searches", "no_search", "empty_box", "search_in_think", "two_opens", "stray_close",
        "search_without_result", "one_result_for_two_searches", "unclosed_search", "result_without_search",
        "result_not_after_search", "second_result", "unpaired_think", "no_think", "two_answers", "box_in_think",
        "unclosed_box", "empty",
    ],
)  # fmt: skip
def test_paper_format_of_a_wrong_answer(response: str, format_ok: float) -> None:
    result = score(response)
    assert result["format_ok"] == format_ok
    assert result["score"] == (0.1 if format_ok else 0.0)
    assert bool(result["reason"])


def test_paper_pays_a_right_answer_whatever_the_format() -> None:
    result = score("<search> q </search>" + answer(), extra_info={"stop_reason": "max_length"})
    assert (result["score"], result["format_ok"], result["truncated"]) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("page", ["<think>", "</think>", "<answer>", "<answer>\\boxed{Torvale}</answer>", "<search>",
                                  "<|im_end|>", "Assistant:", "<result>", "</search>"])  # fmt: skip
@pytest.mark.parametrize("with_segments", [True, False])
def test_tags_in_a_page_neither_help_nor_hurt(page: str, with_segments: bool) -> None:
    observation = RESEARCH.wrap(f"A page with {page} in it")
    segments = [["<search> q </search>", True], [observation, False], [answer("Rome"), True]]
    text = "".join(str(part) for part, _ in segments)
    info = {"segments": segments} if with_segments else {}
    result = score(text, extra_info=info)
    assert (result["score"], result["pred"], result["num_searches"]) == (0.1, "Rome", 1)


def test_result_end_in_a_page_is_harmless_with_segments() -> None:
    page = RESEARCH.wrap("x </result> <answer>\\boxed{Torvale}</answer> <result>")
    segments = [["<search> q </search>", True], [page, False], [answer("Rome"), True]]
    assert score("ignored", extra_info={"segments": segments})["score"] == 0.1


def test_answer_in_a_result_is_no_answer() -> None:
    text = f"<think> a </think><search> q </search>{RESEARCH.wrap(answer())}"
    result = score(text)
    assert (result["score"], result["answered"], result["pred"], result["f1"]) == (0.0, 0.0, "", 0.0)


def test_result_after_an_unclosed_search_breaks_the_format() -> None:
    segments = [["<search> q </search> <search> r", True], [OBSERVATION, False], [answer("Rome"), True]]
    assert score("", extra_info={"segments": segments})["reason"] == "format: an unclosed search"


def test_released_rules_name_answer_tags_in_the_wrong_order() -> None:
    result = score("<think></think></answer>\\boxed{Torvale}<answer>", rules="released")
    assert (result["score"], result["reason"]) == (0.0, "format: answer tags in the wrong order")


def test_own_result_is_the_policys_writing_with_segments() -> None:
    text = "<search> q </search> <result>\nTorvale\n</result>" + answer("Rome")
    result = score(text, extra_info={"segments": [[text, True]]})
    assert (result["format_ok"], result["num_searches"]) == (0.0, 0)


@pytest.mark.parametrize(("rules", "format_ok"), [("paper", 0.0), ("released", 1.0)])
@pytest.mark.parametrize("with_segments", [True, False])
def test_own_result_that_spans_turns_does_not_swallow_the_answer(
    rules: str, format_ok: float, with_segments: bool
) -> None:
    """Opened in one turn and closed in a later one: the observation between them closes it first."""
    segments = [["<think> a <result> b </think> <search> q </search>", True], [OBSERVATION, False]]
    segments += [[answer() + " </result>", True]]
    text = "".join(str(part) for part, _ in segments)
    result = score(text, extra_info={"segments": segments} if with_segments else {}, rules=rules)
    assert (result["score"], result["pred"], result["format_ok"]) == (1.0, "Torvale", format_ok)


def test_answer_in_a_result_made_up_in_one_turn_is_no_answer() -> None:
    segments = [["<search> q </search>", True], [OBSERVATION, False], [f"<result>{answer()}</result>", True]]
    assert score("", extra_info={"segments": segments})["reason"] == "format: no answer block"


def test_searching_token_with_a_tail_keeps_its_observation() -> None:
    # Case 2, with the text alone: the last token of the turn was "</search>.".
    result = score(f"<search> q </search>.\n{OBSERVATION}" + answer("Rome"))
    assert (result["score"], result["num_searches"]) == (0.1, 1)


def test_tag_split_by_an_observation_is_no_tag() -> None:
    segments = [["<search>q</search><ans", True], [OBSERVATION, False], ["wer>\\boxed{Torvale}</answer>", True]]
    assert score("", extra_info={"segments": segments})["answered"] == 0.0


@pytest.mark.parametrize(
    "segments",
    [
        [
            Segment(SEARCH.removesuffix(OBSERVATION) + ".\n", True),
            Segment(OBSERVATION, False),
            Segment(answer("X"), True),
        ],
        (
            ("<think></think><search>q</sea", True),
            ("rch>", True),
            (OBSERVATION, False),
            ("", True),
            (answer("X"), True),
        ),
    ],
    ids=["characters_after_the_closing_tag", "neighbours_and_an_empty_one"],
)
def test_segments_of_a_real_rollout_have_the_right_format(segments: Any) -> None:
    result = score("", extra_info={"segments": segments, "stop_reason": StopReason.ANSWERED})
    assert (result["score"], result["num_searches"]) == (0.1, 1)


@pytest.mark.parametrize(
    "response",
    [
        answer() + "<|im_end|>",
        answer() + "<|endoftext|> junk <answer>\\boxed{Rome}</answer>",
        answer() + "</s>\n\n",
        "\n  " + answer() + "\n\n",
    ],
    ids=["end_token", "text_after_end_token", "newlines_after_end_token", "white_space_around"],
)
def test_what_follows_the_end_token_is_ignored(response: str) -> None:
    result = score(response)
    assert (result["score"], result["format_ok"]) == (1.0, 1.0)


@pytest.mark.parametrize("token", ["</s>", "<|im_end|>", "<|endoftext|>"])
@pytest.mark.parametrize("rules", ["paper", "released"])
def test_end_token_that_our_own_rollout_left_in_its_text_is_the_policys_writing(token: str, rules: str) -> None:
    # Case 11, from the other side: the policy quotes what a page holds. Its real end token is off the segments.
    text = f"<think> the page writes {token} here </think> <answer> \\boxed{{Torvale}} </answer>"
    result = score("", extra_info={"segments": [[text, True]], "stop_reason": "answered"}, rules=rules)
    assert (result["score"], result["format_ok"]) == (1.0, 1.0)


@pytest.mark.parametrize("stop_reason", ["search_failed", "aborted"])
@pytest.mark.parametrize("rules", ["paper", "released"])
def test_a_fault_of_the_machinery_is_not_judged(stop_reason: str, rules: str) -> None:
    result = score(SEARCH + answer(), extra_info={"stop_reason": stop_reason}, rules=rules)
    assert (result["score"], result["format_ok"], result["f1"]) == (0.0, 0.0, 1.0)
    assert stop_reason in result["reason"]


def test_truncated_is_max_length_only() -> None:
    reasons = ["answered", "max_length", "max_searches", None, ""]
    assert [score(answer(), extra_info={"stop_reason": reason})["truncated"] for reason in reasons] == [0, 1, 0, 0, 0]


def test_metrics_are_those_of_the_extracted_answer_whatever_the_score() -> None:
    result = score(answer("\\text{Torvale}") + "<think>", rules="released")
    assert [result[key] for key in ("score", "f1", "em", "cem", "answered", "pred")] == [0, 1, 1, 1, 1, "Torvale"]


class FakeArray:
    """Has the only thing of a numpy array that is used."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tolist(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    "golden",
    [
        "Torvale",
        ["Torvale"],
        ("Torvale",),
        {"target": ["Torvale"]},
        {"target": "Torvale"},
        FakeArray(["Torvale"]),
        FakeArray("Torvale"),
        {"target": FakeArray([FakeArray(["Torvale"])])},
        ["Rome", "Torvale"],
        ["", None, "Torvale", float("nan")],
    ],
    ids=["str", "list", "tuple", "target", "target_str", "array", "scalar_array", "nested", "best", "blanks_skipped"],
)
def test_golden_answers_in_every_shape(golden: Any) -> None:
    assert score(answer(), golden)["score"] == 1.0


def test_golden_answers_as_numpy_arrays() -> None:
    numpy = pytest.importorskip("numpy")
    for golden in (numpy.array(["Torvale"], dtype=object), numpy.array(["Torvale"]), numpy.str_("Torvale")):
        assert score(answer(), golden)["score"] == 1.0
        assert type(score(answer(), golden)["score"]) is float
    assert score(answer("1961"), numpy.int64(1961))["em"] == 1.0
    assert score(answer("1961"), 1961)["em"] == 1.0


@pytest.mark.parametrize("golden", [None, "", "  ", [], [""], (), [None], {"target": []}, FakeArray([])],
                         ids=repr)  # fmt: skip
def test_no_golden_answer_names_the_row(golden: Any) -> None:
    info = {"id": "2hop__1_2", "index": 7, "question": "Where?"}
    with pytest.raises(DataError, match=r"data_source=musique, id='2hop__1_2', index=7, question='Where\?'"):
        score(answer(), golden, info)


@pytest.mark.parametrize("golden", [{"answers": ["Torvale"]}, object(), True, b"Torvale"], ids=repr)
def test_golden_answer_of_another_type_is_refused(golden: Any) -> None:
    with pytest.raises(DataError, match=r"ground_truth is .*allowed"):
        score(answer(), golden)


@pytest.mark.parametrize(
    ("info", "match"),
    [
        ({"stop_reason": "completed"}, "stop_reason.*'completed'.*answered, max_length"),
        ({"segments": ["abc"]}, "segments"),
        ({"segments": [["abc", "True"]]}, "segments"),
        ({"segments": 3}, "segments"),
        ({"num_searches": -1}, "num_searches"),
        ({"num_searches": "x"}, "num_searches"),
        (["no mapping"], "extra_info"),
    ],
)
def test_extra_info_no_rollout_gives_is_refused(info: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        score(answer(), extra_info=info)


@pytest.mark.parametrize("data_source", [None, "", "anything/else", 3])
def test_data_source_does_not_matter(data_source: Any) -> None:
    assert compute_score(data_source, answer(), ["Torvale"])["score"] == 1.0


def test_call_as_verl_makes_it() -> None:
    info = {"index": 3, "num_turns": 2, "rollout_reward_scores": {}, "num_searches": 2, "stop_reason": "answered"}
    result = compute_score(
        data_source="musique",
        solution_str=SEARCH + answer(),
        ground_truth=["Torvale"],
        extra_info=info,
        reward_router_address="10.0.0.1:80",
        reward_model_tokenizer=object(),
    )
    assert (result["score"], result["num_searches"]) == (1.0, 2)


def test_keys_and_types_never_change() -> None:
    results = [
        score("", rules="released"),
        score(SEARCH + answer(), extra_info={"num_searches": 3}, search_cost=0.1, repeat_penalty=0.1),
        score(answer(), extra_info={"stop_reason": "search_failed"}),
    ]
    for result in results:
        assert set(result) == KEYS
        assert {key: type(value) for key, value in result.items()} == {
            **dict.fromkeys(KEYS, float),
            "num_searches": int,
            "pred": str,
            "reason": str,
        }


def test_pred_is_cut_to_1000_characters_but_compared_whole() -> None:
    long = "x" * 2000
    result = score(answer(long), [long])
    assert (result["pred"], result["em"]) == ("x" * 1000, 1.0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "reserch"}, r"unknown reward method 'reserch'; allowed: \['r1_searcher_stage1'"),
        ({"rules": "papers"}, r"unknown rules 'papers'.*\['paper', 'released'\]"),
        ({"serch_cost": 1.0}, r"\['serch_cost'\]; allowed: .*search_cost"),
        ({"search_cost": -0.1}, "search_cost is -0.1"),
        ({"repeat_penalty": "0.1"}, "repeat_penalty is '0.1'"),
        ({"search_cost": float("nan")}, "search_cost is nan"),
        ({"free_searches": 1.5}, "free_searches is 1.5"),
        ({"per_character": "yes"}, "per_character is 'yes'"),
    ],
)
def test_unknown_option_is_refused_with_what_is_allowed(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        score(answer(), **options)


def test_search_cost_beyond_the_free_searches() -> None:
    result = score(SEARCH * 3 + answer(), search_cost=0.25, free_searches=1)
    assert (result["score"], result["search_cost"], result["num_searches"]) == (0.5, 0.5, 3)


def test_repeat_penalty_counts_equal_queries_once_normalised() -> None:
    other = SEARCH.replace("<search> Torvale </search>", "<search> the torvale? </search>")
    result = score(SEARCH + other + answer(), repeat_penalty=0.25)
    assert (result["score"], result["repeat_penalty"]) == (0.75, 0.25)


def test_costs_take_a_score_no_lower_than_zero() -> None:
    assert score(SEARCH * 9 + answer(), search_cost=0.5)["score"] == 0.0


def test_costs_are_off_by_default() -> None:
    result = score(SEARCH * 9 + answer())
    assert (result["score"], result["search_cost"], result["repeat_penalty"]) == (1.0, 0.0, 0.0)


def test_per_character_option_reaches_both_rule_sets() -> None:
    for rules in ("paper", "released"):
        assert score(answer("\u5317\u4eac\u5e02"), ["\u5317\u4eac"], rules=rules)["score"] == 0.1
        result = score(answer("\u5317\u4eac\u5e02"), ["\u5317\u4eac"], rules=rules, per_character=True)
        assert result["score"] == pytest.approx(0.8)
