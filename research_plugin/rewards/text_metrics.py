"""How an answer is compared with golden answers: normalisation, token overlap, exact match, cover match.

Pure text, the same for training and evaluation. It knows nothing of tags, boxes, rollouts or scores.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "Comparison",
    "compare",
    "cover_match",
    "exact_match",
    "f1_score",
    "fold_unicode",
    "normalise",
    "token_f1",
    "token_overlap",
    "tokenise",
]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CJK = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f])")
_DROP_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DROP_CJK_PUNCTUATION = str.maketrans("", "", "\u3001\u3002\u3008\u3009\u300a\u300b\u300c\u300d\u300e\u300f\u3010\u3011"
                                      "\u30fb\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\u2026")  # fmt: skip
# Typographic variants become the ASCII sign (deleted later as punctuation); invisible characters go.
_FOLD = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""),
    }
)
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})
_LONGEST_MARK_RUN = 30  # as in the stream-safe text format of Unicode annex 15


def fold_unicode(text: str) -> str:
    """Return ``text`` in NFC, with curly quotes, dashes and minus signs as ASCII and invisible characters removed."""
    if text.isascii():
        return text
    if _is_stream_safe(text):
        text = unicodedata.normalize("NFC", text)
    return text.translate(_FOLD)


def _is_stream_safe(text: str) -> bool:
    """Whether NFC is quick: CPython's reordering of combining marks is quadratic in the length of a run of them."""
    if len(text) <= 1000:
        return True
    run = 0
    for character in text:
        run = run + 1 if unicodedata.combining(character) else 0
        if run > _LONGEST_MARK_RUN:
            return False
    return True


def normalise(text: str, *, fold: bool = True) -> str:
    """Return ``text`` as it is compared: lower case, no ASCII punctuation, no a/an/the, single spaces.

    Punctuation is deleted, not replaced by a space ("U.S.A." is "usa", "1,000" is "1000").

    Args:
        text: An answer.
        fold: Apply `fold_unicode` first, and keep what nothing else would remain of ("The The", "?") instead of
            returning "". False is the normaliser of ReSearch's released code, which does neither.
    """
    lowered = (fold_unicode(text) if fold else text).lower()
    stripped = " ".join(_ARTICLES.sub(" ", lowered.translate(_DROP_ASCII_PUNCTUATION)).split())
    return stripped or (" ".join(lowered.split()) if fold else "")


def tokenise(text: str, *, fold: bool = True, per_character: bool = False) -> list[str]:
    """Return the tokens of the normalised ``text``: its words.

    Args:
        text: An answer.
        fold: As in `normalise`.
        per_character: Make every Chinese, Japanese or Korean character a token of its own and drop the common
            punctuation of these scripts. Words of other scripts stay whole.
    """
    normalised = normalise(text, fold=fold)
    if per_character:
        normalised = _CJK.sub(r" \1 ", normalised.translate(_DROP_CJK_PUNCTUATION))
    return normalised.split()


def token_overlap(prediction: Sequence[str], golden: Sequence[str]) -> tuple[float, float]:
    """Return precision and recall of two token multisets.

    An answer that is exactly yes, no or noanswer, on either side, earns nothing unless both are the same.
    """
    if prediction != golden and (_is_closed(prediction) or _is_closed(golden)):
        return 0.0, 0.0
    same = sum((Counter(prediction) & Counter(golden)).values())
    return (same / len(prediction), same / len(golden)) if same else (0.0, 0.0)


def token_f1(prediction: Sequence[str], golden: Sequence[str]) -> float:
    """Return the F1 of two token multisets, 2PR / (P + R), of `token_overlap`."""
    return _f1(*token_overlap(prediction, golden))


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision else 0.0


def _is_closed(tokens: Sequence[str]) -> bool:
    return len(tokens) == 1 and tokens[0] in _CLOSED_ANSWERS


def _covers(prediction: Sequence[str], golden: Sequence[str]) -> bool:
    return bool(golden) and f" {' '.join(golden)} " in f" {' '.join(prediction)} "


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a prediction compares with several golden answers: the best of each number, all in [0, 1]."""

    f1: float
    """`token_f1`."""
    em: float
    """1.0 if the normalised prediction is a normalised golden answer. Nothing does not match nothing."""
    cem: float
    """1.0 if the tokens of a golden answer stand in a row in the prediction (cover-EM). Whole tokens: "no" is not
    covered by "nothing"."""
    precision: float
    """Share of the prediction's tokens that a golden answer has."""
    recall: float
    """Share of a golden answer's tokens that the prediction has."""


def compare(
    prediction: str, golden_answers: Sequence[str], *, fold: bool = True, per_character: bool = False
) -> Comparison:
    """Compare ``prediction`` with ``golden_answers``; ``fold`` and ``per_character`` as in `tokenise`."""
    tokens = tokenise(prediction, fold=fold, per_character=per_character)
    golden = [tokenise(answer, fold=fold, per_character=per_character) for answer in golden_answers]
    overlaps = [token_overlap(tokens, answer) for answer in golden]
    return Comparison(
        f1=max((_f1(*overlap) for overlap in overlaps), default=0.0),
        em=float(bool(tokens) and tokens in golden),
        cem=float(any(_covers(tokens, answer) for answer in golden)),
        precision=max((precision for precision, _ in overlaps), default=0.0),
        recall=max((recall for _, recall in overlaps), default=0.0),
    )


def f1_score(
    prediction: str, golden_answers: Sequence[str], *, fold: bool = True, per_character: bool = False
) -> float:
    """Return `Comparison.f1`."""
    return compare(prediction, golden_answers, fold=fold, per_character=per_character).f1


def exact_match(
    prediction: str, golden_answers: Sequence[str], *, fold: bool = True, per_character: bool = False
) -> float:
    """Return `Comparison.em`."""
    return compare(prediction, golden_answers, fold=fold, per_character=per_character).em


def cover_match(
    prediction: str, golden_answers: Sequence[str], *, fold: bool = True, per_character: bool = False
) -> float:
    """Return `Comparison.cem`."""
    return compare(prediction, golden_answers, fold=fold, per_character=per_character).cem
