"""The rewards of R1-Searcher's two stages (arXiv 2503.05592), by the paper and by the rules of its released servers.

Stage 1 teaches to search, whatever the answer; stage 2 teaches to answer. ``<think>`` stands at the end of the prompt,
so a response closes one and opens none.
"""

from __future__ import annotations

import re
import string

from research_plugin.protocol import R1_SEARCHER
from research_plugin.rewards.answer import ANSWER_CLOSE, ANSWER_OPEN
from research_plugin.rewards.response import Response
from research_plugin.rewards.text_metrics import token_f1
from research_plugin.rewards.verdict import Reading, Verdict, unfinished

__all__ = [
    "judge_stage1",
    "judge_stage1_released",
    "judge_stage2",
    "judge_stage2_released",
    "judge_stage2_released_llama",
]

RETRIEVAL_SCORE = 0.5
FORMAT_SCORE = 0.5
FORMAT_PENALTY = 2.0
LLAMA_FORMAT_PENALTY = 1.0
LONGEST_ANSWER = 10
"""Words; the released Qwen rules punish a longer answer."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_TO_SPACE = str.maketrans(dict.fromkeys(string.punctuation + "\u2018\u2019\u00b4`", " "))
_BOOLEANS = {"True": "yes", "False": "no"}
_DOCUMENTS = re.compile(re.escape(R1_SEARCHER.result_open) + ".*?" + re.escape(R1_SEARCHER.result_close), re.DOTALL)
_HAN = re.compile("[\u4e00-\u9fff]")
# The released rules count these; equal counts of at least one are a well-formed retrieval.
_COUNTED = (
    R1_SEARCHER.result_open + "\n",
    R1_SEARCHER.result_close + "\n\n",
    R1_SEARCHER.search_open,
    R1_SEARCHER.search_close,
    R1_SEARCHER.result_open,
    R1_SEARCHER.result_close,
    R1_SEARCHER.result_open + "\n(1)",
)


def judge_stage1(response: Response, reading: Reading) -> Verdict:
    """Return 0.5 for at least one well-formed retrieval, and 0.5 for the format; the answer does not count."""
    fault = _format_fault(response)
    searched = bool(response.queries(R1_SEARCHER)) and not _search_fault(response)
    score = RETRIEVAL_SCORE * searched + FORMAT_SCORE * (not fault)
    return Verdict(score, not fault, f"{'searched' if searched else 'no search'}; format: {fault or 'right'}")


def judge_stage2(response: Response, reading: Reading) -> Verdict:
    """Return F1 = 2 IN / (PN + RN), less 2 if the format is not right."""
    fault = _format_fault(response) or _search_fault(response)
    return Verdict(
        reading.f1 - FORMAT_PENALTY * bool(fault), not fault, f"F1 {reading.f1:.3f}; format: {fault or 'right'}"
    )


def _format_fault(response: Response) -> str:
    return unfinished(response) or _tag_fault(response.policy_text)


def _tag_fault(text: str) -> str:
    if "<think>" in text:
        return "a think tag beside the one in the prompt"
    for tag in ("</think>", ANSWER_OPEN, ANSWER_CLOSE):
        if text.count(tag) != 1:
            return f"{text.count(tag)} times {tag} instead of once"
    return ""


def _search_fault(response: Response) -> str:
    """Return what is wrong with the searches in what the policy wrote, "" for nothing."""
    text = response.policy_text
    if R1_SEARCHER.result_open in text or R1_SEARCHER.result_close in text:
        return "documents that no search produced"
    opened, closed = text.count(R1_SEARCHER.search_open), text.count(R1_SEARCHER.search_close)
    answered = sum(not segment.by_policy for segment in response.segments)
    if not opened == closed == answered:
        return f"{opened} queries opened, {closed} closed, {answered} answered"
    return ""


def judge_stage1_released(response: Response, reading: Reading) -> Verdict:
    """Return the score of the released Llama server for stage 1, from -1 to 2.

    1 if every word of the golden answer is in the answer, else -1; 0.5 for a well-formed retrieval; 0.5 for the tags.
    """
    text = response.text
    answer = _released_answer(text)
    words = set(_released_words(answer or ""))
    right = answer is not None and any(set(_released_words(gold)) <= words for gold in reading.golden_answers)
    fault = _tag_fault(text)
    searched = _well_formed_retrieval(text) and R1_SEARCHER.search_open in text
    score = (1.0 if right else -1.0) + RETRIEVAL_SCORE * searched + FORMAT_SCORE * (not fault)
    return Verdict(score, not fault, f"{'right' if right else 'wrong'}; format: {fault or 'right'}")


def judge_stage2_released_llama(response: Response, reading: Reading) -> Verdict:
    """Return the score of the released Llama server for stage 2: F1, less 1 for a fault."""
    fault = _released_fault(response.text)
    return _released_stage2(response, reading, fault, LLAMA_FORMAT_PENALTY)


def judge_stage2_released(response: Response, reading: Reading) -> Verdict:
    """Return the score of the released Qwen server, which the repository's main recipe uses: F1, less 2 for a fault.

    It also punishes the word "assistant" anywhere, documents included, and answers of more than ten words.
    """
    text = response.text
    answer = _released_answer(text) or ""
    fault = _released_fault(text)
    if not fault and ("assistant" in text or "Assistant" in text):
        fault = 'the word "assistant"'
    if not fault and (R1_SEARCHER.search_open in answer or R1_SEARCHER.result_open in answer):
        fault = "a search inside the answer"
    if not fault and len(answer.split()) > LONGEST_ANSWER:
        fault = f"an answer of more than {LONGEST_ANSWER} words"
    return _released_stage2(response, reading, fault, FORMAT_PENALTY)


def _released_stage2(response: Response, reading: Reading, fault: str, penalty: float) -> Verdict:
    answer = _released_answer(response.text)
    golden = [_released_words(gold) for gold in reading.golden_answers]
    f1 = 0.0 if answer is None else max(token_f1(_released_words(answer), words) for words in golden)
    return Verdict(f1 - penalty * bool(fault), not fault, f"F1 {f1:.3f}; format: {fault or 'right'}")


def _released_fault(text: str) -> str:
    if not _well_formed_retrieval(text):
        return "tags of queries and documents do not pair"
    return _tag_fault(text) or ("Chinese outside documents" if _HAN.search(_DOCUMENTS.sub("", text)) else "")


def _well_formed_retrieval(text: str) -> bool:
    return len({text.count(counted) for counted in _COUNTED}) == 1


def _released_answer(text: str) -> str | None:
    if ANSWER_OPEN not in text or ANSWER_CLOSE not in text:
        return None
    return text.split(ANSWER_OPEN)[-1].split(ANSWER_CLOSE)[0].strip()


def _released_words(text: str) -> list[str]:
    """Punctuation becomes a space here ("U.S.A." is three words), where ReSearch deletes it."""
    return _ARTICLES.sub(" ", _BOOLEANS.get(text, text).lower().translate(_TO_SPACE)).split()
