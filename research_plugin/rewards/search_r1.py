"""The rewards of Search-R1 (arXiv 2503.09516): exact match, and the variant that also looks at the format."""

from __future__ import annotations

import re

from research_plugin.protocol import SEARCH_R1
from research_plugin.rewards.response import Response
from research_plugin.rewards.verdict import Reading, Verdict, unfinished

__all__ = ["judge_exact_match", "judge_format"]

STRUCTURE_SCORE = 0.2
FINAL_SCORE = 0.1

_TAG = re.compile(r"</?(?:think|search|answer)>")
# What may follow what: think, then a search and its result, then think again ... then the answer.
_AFTER = {
    "start": {"<think>": "in think"},
    "in think": {"</think>": "thought"},
    "thought": {"<search>": "in search", "<answer>": "in answer"},
    "in search": {"</search>": "searched"},
    "informed": {"<think>": "in think"},
    "in answer": {"</answer>": "end"},
}


def judge_exact_match(response: Response, reading: Reading) -> Verdict:
    """Return 1 if the answer equals a golden answer once both are normalised, else 0."""
    fault = _format_fault(response)
    return Verdict(reading.em, not fault, reading.fault or ("answer matches" if reading.em else "wrong answer"))


def judge_format(response: Response, reading: Reading) -> Verdict:
    """Return the format-aware reward (qa_em_format.py of the release, with the weights of its v0.3 scripts).

    1 for a right answer in the right format, 0.8 for one in a wrong format; without a right answer 0.2 for the format
    and, failing that, 0.1 for any answer at all.
    """
    fault = _format_fault(response)
    if reading.em:
        score = 1.0 - STRUCTURE_SCORE * bool(fault)
    elif not fault:
        score = STRUCTURE_SCORE
    else:
        score = 0.0 if reading.answer is None else FINAL_SCORE
    outcome = reading.fault or ("answer matches" if reading.em else "wrong answer")
    return Verdict(score, not fault, f"{outcome}; format: {fault or 'right'}")


def _format_fault(response: Response) -> str:
    """Return what breaks the order of blocks in what the policy wrote, "" for nothing."""
    state = "start"
    for segment in response.segments:
        if not segment.by_policy:
            if state != "searched" or not segment.text.strip().startswith(SEARCH_R1.result_open):
                return "an observation that answers no search"
            state = "informed"
            continue
        if SEARCH_R1.result_open in segment.text:
            return "a result that no search produced"
        done = 0
        for tag in _TAG.finditer(segment.text):
            following = _AFTER.get(state, {}).get(tag.group())
            if following is None:
                return f"{tag.group()} out of place"
            if not state.startswith("in ") and segment.text[done : tag.start()].strip():
                return "text between blocks"
            state, done = following, tag.end()
        if not state.startswith("in ") and segment.text[done:].strip():
            return "text between blocks"
    return unfinished(response) or ("" if state == "end" else "no complete answer block at the end")
