"""Golden answers in every shape a dataset row may hold them, as a tuple of strings.

It must not import numpy: arrays and scalars are known by their ``tolist``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from research_plugin.errors import DataError

_INVISIBLE = re.compile("[\u200b-\u200d\u2060\ufeff]")  # zero-width characters: they look like an empty answer

__all__ = ["golden_answers", "name_row"]


def golden_answers(ground_truth: Any, row: str = "row") -> tuple[str, ...]:
    """Return the golden answers of a row; blank ones are left out.

    Args:
        ground_truth: A string or number, a list, tuple or array of them, or ``{"target": any of these}``.
        row: What to call the row in an error; see `name_row`.

    Raises:
        DataError: there is no golden answer that is not blank, or the type is none of these.
    """
    answers = tuple(answer for answer in _flatten(ground_truth, row) if _INVISIBLE.sub("", answer).strip())
    if not answers:
        raise DataError(
            f"{row}: no golden answer in ground_truth={ground_truth!r:.200}; at least one that is not blank is needed. "
            "Drop the row or fill in reward_model.ground_truth"
        )
    return answers


def _flatten(value: Any, row: str) -> Iterator[str]:
    if isinstance(value, str):
        yield str(value)
    elif value is None:
        return
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if value == value:  # a data frame holds a missing string as NaN, and an integer beside one as 1961.0
            yield str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item, row)
    elif isinstance(value, Mapping) and "target" in value:
        yield from _flatten(value["target"], row)
    elif hasattr(value, "tolist"):
        yield from _flatten(value.tolist(), row)
    else:
        given = f"a mapping with keys {sorted(map(str, value))}" if isinstance(value, Mapping) else repr(value)[:200]
        raise DataError(
            f"{row}: ground_truth is {given}; allowed: a string, a list, tuple or array of strings, or "
            '{"target": one of these}'
        )


def name_row(data_source: object, extra_info: Mapping[str, Any] | None) -> str:
    """Return how an error names a dataset row: its data source and what extra_info says of id, index and question."""
    parts = [f"data_source={data_source!s}"]
    info = extra_info or {}
    parts += [f"{key}={info[key]!r:.200}" for key in ("id", "index", "question") if key in info]
    return f"row ({', '.join(parts)})"
