"""What a judge's reply says: correct, incorrect, or nothing that can be relied on. Pure text."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["read_verdict"]

_KEYS = ("verdict", "judgement", "judgment")
_WORDS = {"correct": True, "incorrect": False, "not correct": False, "true": True, "false": False}
# JSON that does not parse, mostly for quotes within the rationale; the verdict has to be closed, or it may be cut.
_QUOTED = re.compile(rf'"(?:{"|".join(_KEYS)})"\s*:\s*"([^"{{}}]*)"\s*}}?\W*$', re.IGNORECASE)
_NAMED = re.compile(
    rf"^\W*(?:so|thus|hence|therefore)?\W*(?:(?:the|my|final|given|predicted)\s+)*(?:{'|'.join(_KEYS)}|answer|prediction)\b",
    re.IGNORECASE,
)
_FILLERS = frozenset({"is", "s", "so", "thus", "therefore"})


def read_verdict(reply: str) -> bool | None:
    """Return whether a reply judges the answer correct, or None when that cannot be told.

    It may be a JSON object, also in a code fence or after a model's thoughts, or plain text whose last line is the
    verdict. None is for replies that were cut, that name no verdict, and that name more than one.
    """
    text = reply.rsplit("</think>", 1)[-1].split("<think>")[0].strip()
    start = text.find("{")
    if start < 0:
        return _plain(text)
    try:
        values = json.JSONDecoder(strict=False).raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        found = _QUOTED.search(text)
        return _word(found[1]) if found else None
    return next((_word(value) for key, value in values.items() if key.lower() in _KEYS), None)


def _word(value: Any) -> bool | None:
    return _WORDS.get(" ".join(re.findall(r"\w+", str(value).lower())))


def _plain(text: str) -> bool | None:
    """Read the last line: the verdict alone, or after "verdict", "the answer is" and the like."""
    lines = [line for line in re.sub(r"```\w*", "", text).splitlines() if re.search(r"\w", line)]
    if not lines:
        return None
    named = _NAMED.match(lines[-1])
    words = re.findall(r"\w+", lines[-1][named.end() if named else 0 :].lower().replace("n't", " not"))
    return _word(" ".join(word for word in words if word not in _FILLERS))
