r"""Where the final answer of a response is: the one ``<answer>`` block, its last ``\boxed{}``, the text in it.

Training and evaluation both call `extract_answer`. Pure text; it knows nothing of golden answers or scores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from research_plugin.protocol import RESEARCH, Dialect

__all__ = ["ANSWER_CLOSE", "ANSWER_OPEN", "extract_answer", "extract_plain_answer", "last_boxed", "unwrap_latex"]

ANSWER_OPEN = "<answer>"
ANSWER_CLOSE = "</answer>"

_BOXED = "\\boxed"
_BOX_OPEN = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"[{}]")
_WRAPPERS = r"text(?:bf|it|rm|sf|tt|sc|normal|up)?|math(?:rm|bf|it|sf|tt|normal)|operatorname|emph|mbox"
_LATEX = re.compile(rf"\\(?:{_WRAPPERS})\s*\{{|\\[%&$#_]|[{{}}]")


def extract_answer(written: str | Sequence[str], dialect: Dialect = RESEARCH) -> tuple[str | None, str]:
    r"""Return the final answer in what the policy wrote, and "" or why there is none.

    The answer is the content of the last ``\boxed{}`` in the only ``<answer>`` block, braces matched, LaTeX text
    wrappers removed. More than one ``<answer>`` or ``</answer>`` is no answer: which one counts would be a guess. So
    are a box outside the block, an unclosed last box, and an answer between result tags that the policy made up. Such
    tags pair within one turn only: an observation between them would have closed what was open.

    Args:
        written: What the policy wrote, whole or turn by turn; observations are left out.
        dialect: Gives the result tags.

    Returns:
        The answer, "" for an empty box, None when there is none; and the fault.
    """
    turns = [written] if isinstance(written, str) else written
    text = "\n".join(_without_results(turn, dialect) for turn in turns)
    opened, closed = text.count(ANSWER_OPEN), text.count(ANSWER_CLOSE)
    if opened == closed == 0:
        return None, "no answer block"
    if opened != 1 or closed != 1:
        return None, "not exactly one answer block"
    start, end = text.find(ANSWER_OPEN) + len(ANSWER_OPEN), text.find(ANSWER_CLOSE)
    if end < start:
        return None, "answer tags in the wrong order"
    block = text[start:end]
    box = last_boxed(block)
    if box is None:
        return None, "unclosed box in the answer" if _BOX_OPEN.search(block) else "no box in the answer"
    return unwrap_latex(box).strip(), ""


def extract_plain_answer(written: str | Sequence[str], dialect: Dialect) -> tuple[str | None, str]:
    """Return the final answer of a method without boxes, and "" or why there is none.

    It is the content of the last complete ``<answer>`` block of what the policy wrote, stripped; one between result
    tags that the policy made up is none.

    Args:
        written: What the policy wrote, whole or turn by turn; observations are left out.
        dialect: Gives the result tags.
    """
    turns = [written] if isinstance(written, str) else written
    text = "\n".join(_without_results(turn, dialect) for turn in turns)
    end = text.rfind(ANSWER_CLOSE)
    start = text.rfind(ANSWER_OPEN, 0, max(end, 0))
    if start < 0:
        return None, "no answer block"
    return text[start + len(ANSWER_OPEN) : end].strip(), ""


def last_boxed(text: str) -> str | None:
    r"""Return what the last ``\boxed{...}`` of ``text`` holds, or None when there is none or it never closes."""
    at = len(text)
    while (at := text.rfind(_BOXED, 0, at)) >= 0:
        if opening := _BOX_OPEN.match(text, at):
            return braced(text, opening.end())
    return None


def braced(text: str, start: int) -> str | None:
    """Return the text from ``start``, just after an opening brace, to its closing brace; None when it never closes."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if not depth:
            return text[start : brace.start()]
    return None


def unwrap_latex(text: str) -> str:
    r"""Return ``text`` without LaTeX text wrappers and escapes: ``\text{a \textbf{b}} 5\%`` is ``a b 5%``.

    Other commands and their braces stay: ``\frac{1}{2}`` is unchanged.
    """
    if "\\" not in text:
        return text
    wrappers: list[bool] = []  # for every open brace: does it belong to a wrapper, so that its end goes too

    def replace(match: re.Match[str]) -> str:
        found = match.group()
        if found == "}":
            return "" if wrappers and wrappers.pop() else found
        if found[-1] == "{":
            wrappers.append(found != "{")
            return "" if found != "{" else found
        return found[1:]

    return _LATEX.sub(replace, text)


def _without_results(text: str, dialect: Dialect) -> str:
    """Return ``text`` without the complete result blocks in it: the policy made those up."""
    kept: list[str] = []
    done = 0
    while (start := text.find(dialect.result_open, done)) >= 0:
        end = text.find(dialect.result_close, start)
        if end < 0:
            break
        kept.append(text[done:start])
        done = end + len(dialect.result_close)
    return "\n".join([*kept, text[done:]]) if kept else text
