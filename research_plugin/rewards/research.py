r"""The reward of ReSearch (arXiv 2503.19470), by the paper's Eq. 2 and by the authors' released code.

A rule set takes a `Response` and a `Reading` of it and gives a `Verdict`. Costs, metrics and the calling convention of
veRL are the business of `score`.
"""

from __future__ import annotations

import re

from research_plugin.protocol import RESEARCH
from research_plugin.rewards.answer import ANSWER_CLOSE, ANSWER_OPEN, braced
from research_plugin.rewards.response import Response
from research_plugin.rewards.text_metrics import f1_score
from research_plugin.rewards.verdict import Reading, Verdict, unfinished

__all__ = ["FORMAT_SCORE", "judge_paper", "judge_released"]

FORMAT_SCORE = 0.1
"""What a right format with a wrong answer earns."""

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
_TAG = re.compile("</?(?:think|search|result|answer)>")


def judge_paper(response: Response, reading: Reading) -> Verdict:
    """Return Eq. 2: F1 if F1 > 0, else 0.1 if the format is right, else 0.

    The format is judged on what the policy wrote: think tags pair and there is at least one; there is an answer in a
    box; every search got its result; no result without a search; the rollout finished.
    """
    fault = unfinished(response) or reading.fault or _think_fault(response.policy_text) or _search_fault(response)
    if reading.f1 > 0:
        return Verdict(reading.f1, not fault, f"answer matches; format: {fault}" if fault else "answer matches")
    if fault:
        return Verdict(0.0, False, f"format: {fault}")
    return Verdict(FORMAT_SCORE, True, "wrong answer, right format")


def _think_fault(text: str) -> str:
    opened = text.count(THINK_OPEN)
    if not opened:
        return "no think block"
    return "" if opened == text.count(THINK_CLOSE) else "think tags do not pair"


def _search_fault(response: Response) -> str:
    """Return what is wrong with the searches in what the policy wrote, "" for nothing.

    As in the released code, a second opening tag before a closing tag and a closing tag without an opening one pass.
    """
    opening, closing = RESEARCH.search_open, RESEARCH.search_close
    for index, segment in enumerate(response.segments):
        if not segment.by_policy:
            continue
        text = segment.text
        if RESEARCH.result_open in text:
            return "a result that no search produced"
        first = text.find(opening)
        if first < 0:
            continue
        if text.rfind(opening) > text.rfind(closing):
            return "an unclosed search"
        # A segment goes up to the next observation, so it holds at most one answered search.
        if text.count(closing, first) > 1 or index + 1 == len(response.segments):
            return "a search without a result"
    return ""


def judge_released(response: Response, reading: Reading) -> Verdict:
    r"""Return the score of the authors' published code.

    The format is a gate, judged on the whole text with observations as plain text: any fault scores 0 even with a right
    answer. Then F1 if F1 > 0, else 0.1. The box is taken raw and compared without Unicode folding.
    """
    text = response.text
    fault = (
        _released_tag_fault("".join(_TAG.findall(text)))
        or unfinished(response)
        or ("text after the end token" if response.has_tail else "")
    )
    if fault:
        return Verdict(0.0, False, f"format: {fault}")
    box = _released_box(text[text.rfind(ANSWER_OPEN) : text.rfind(ANSWER_CLOSE)])
    if box is None:
        return Verdict(0.0, False, "format: no readable box in the answer")
    f1 = f1_score(box, reading.golden_answers, fold=False, per_character=reading.per_character)
    if f1 > 0:
        return Verdict(f1, True, "answer matches")
    return Verdict(FORMAT_SCORE, True, "wrong answer, right format")


def _released_tag_fault(tags: str) -> str:
    """Return what the released code finds wrong with the tags of a text, given one after another; "" for nothing.

    It looks at no more than their number and order.
    """
    if fault := _think_fault(tags):
        return fault
    if tags.count(ANSWER_OPEN) != 1 or tags.count(ANSWER_CLOSE) != 1:
        return "not exactly one answer block"
    at = 0
    while (search := tags.find(RESEARCH.search_open, at)) >= 0:
        search_end = tags.find(RESEARCH.search_close, search)
        result = tags.find(RESEARCH.result_open, search)
        result_end = tags.find(RESEARCH.result_close, result) if result >= 0 else -1
        if not search < search_end < result < result_end:
            return "a search without a result"
        at = result_end
    return "" if tags.find(ANSWER_OPEN) < tags.find(ANSWER_CLOSE) else "answer tags in the wrong order"


def _released_box(block: str) -> str | None:
    r"""Return the box as the released code reads it: ``\boxed`` and a space, up to a dollar sign, else the last box."""
    if "\\boxed{" not in block or "}" not in block:
        return None
    spaced = block.rfind("\\boxed ")
    if spaced >= 0:
        return block[spaced + len("\\boxed ") :].split("$", 1)[0]
    last = block.rfind("\\boxed")
    return braced(block, last + len("\\boxed{")) if block.startswith("\\boxed{", last) else None
