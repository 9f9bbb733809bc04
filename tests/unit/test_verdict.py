"""Replies of judges, as they come, and what each of them says."""

from __future__ import annotations

import pytest

from research_plugin.evaluation.verdict import read_verdict

REPLIES = {
    "json": ('{"rationale": "Same city.", "verdict": "correct"}', True),
    "json_incorrect": ('{"rationale": "Not the correct city.", "verdict": "incorrect"}', False),
    "fence": ('```json\n{"rationale": "x",\n "verdict": "Correct."}\n```', True),
    "text_around": ('Here it is:\n{"rationale": "x", "verdict": "incorrect"}\nI hope this helps.', False),
    "other_key": ('{"rationale": "x", "Judgement": "INCORRECT"}', False),
    "not_correct": ('{"rationale": "x", "verdict": "not correct"}', False),
    "boolean": ('{"rationale": "x", "verdict": true}', True),
    "line_break_in_a_string": ('{"rationale": "one\ntwo", "verdict": "correct"}', True),
    "quotes_in_the_rationale": ('{"rationale": "It says "correct", which it is not", "verdict": "incorrect"}', False),
    "thoughts": ('<think>verdict: incorrect? {no}</think>{"rationale": "x", "verdict": "correct"}', True),
    "braces_in_the_rationale": ('{"rationale": "{a} is a set", "verdict": "correct"}', True),
    "plain": ("correct", True),
    "plain_incorrect": ("Incorrect.", False),
    "judgement": ("The years are the same.\njudgement: correct.", True),
    "judgment": ("**Judgment:** incorrect", False),
    "the_answer_is": ("The answer is therefore incorrect.", False),
    "the_answer_is_not": ("So the answer is not correct", False),
    "the_answer_isnt": ("The answer isn't correct.", False),
    "verdict_is": ("correct would be Rome.\n\nThe final verdict is: incorrect\n", False),
    "cut_in_the_rationale": ('{"rationale": "The verdict is correct if', None),
    "cut_in_the_verdict": ('{"rationale": "x", "verdict": "correct', None),
    "cut_before_the_verdict": ('```json\n{"rationale": "x", "ver', None),
    "no_verdict": ('{"rationale": "x"}', None),
    "both": ('{"rationale": "x", "verdict": "correct or incorrect"}', None),
    "plain_both": ("The answer is correct or incorrect", None),
    "plain_doubt": ("I cannot say that the answer is correct", None),
    "plain_hedge": ("The answer is partially correct.", None),
    "plain_question": ("Is the answer right?", None),
    "other_language": ("richtig", None),
    "list": ('[{"verdict": "correct"}]', True),
    "null": ('{"verdict": null}', None),
    "empty": ("", None),
    "only_thoughts": ("<think>Is it\ncorrect", None),
}


@pytest.mark.parametrize(("reply", "expected"), REPLIES.values(), ids=REPLIES)
def test_read_verdict(reply: str, expected: bool | None) -> None:
    assert read_verdict(reply) is expected
