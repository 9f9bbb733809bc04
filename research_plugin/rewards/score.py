"""`compute_score`, the reward function as veRL calls it, and the table of methods it dispatches on.

Golden answers and extra_info are checked here and by what it calls; the rules themselves live in one module a method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from research_plugin.errors import ConfigError, DataError
from research_plugin.protocol import R1_SEARCHER, RESEARCH, SEARCH_R1, Dialect
from research_plugin.rewards import r1_searcher, search_r1
from research_plugin.rewards.answer import extract_answer, extract_plain_answer
from research_plugin.rewards.golden import golden_answers, name_row
from research_plugin.rewards.research import judge_paper, judge_released
from research_plugin.rewards.response import Response, read_response
from research_plugin.rewards.text_metrics import compare, normalise
from research_plugin.rewards.verdict import Reading, Verdict

__all__ = ["METHODS", "Method", "compute_score"]

_LONGEST_PRED = 1000  # veRL puts `pred` into a numpy string array, whose every item is as wide as the longest


@dataclass(frozen=True, slots=True)
class Method:
    """How one method's responses are read and judged."""

    dialect: Dialect
    extract: Callable[[Sequence[str], Dialect], tuple[str | None, str]]
    """From the policy's turns and the dialect to the answer (None: there is none) and the reason why there is none."""
    rules: Mapping[str, Callable[[Response, Reading], Verdict]]


METHODS: dict[str, Method] = {
    "research": Method(RESEARCH, extract_answer, {"paper": judge_paper, "released": judge_released}),
    "r1_searcher_stage1": Method(
        R1_SEARCHER,
        extract_plain_answer,
        {"paper": r1_searcher.judge_stage1, "released": r1_searcher.judge_stage1_released},
    ),
    "r1_searcher_stage2": Method(
        R1_SEARCHER,
        extract_plain_answer,
        {
            "paper": r1_searcher.judge_stage2,
            "released": r1_searcher.judge_stage2_released,
            "released_llama": r1_searcher.judge_stage2_released_llama,
        },
    ),
    "search_r1": Method(
        SEARCH_R1, extract_plain_answer, {"paper": search_r1.judge_exact_match, "format": search_r1.judge_format}
    ),
}


def compute_score(
    data_source: Any,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    method: str = "research",
    rules: str = "paper",
    per_character: bool = False,
    search_cost: float = 0.0,
    free_searches: int = 0,
    repeat_penalty: float = 0.0,
    reward_router_address: Any = None,
    reward_model_tokenizer: Any = None,
    **unknown: Any,
) -> dict[str, float | int | str]:
    """Score one response.

    The two costs are off unless set; they lower a positive score, at most to 0.

    Args:
        data_source: Names the row in errors; no reward depends on it.
        solution_str: The response without its prompt. Not read where ``extra_info`` holds segments.
        ground_truth: Golden answers, see `golden_answers`; the best one counts.
        extra_info: How the rollout went, see `read_response`.
        method: A key of `METHODS`.
        rules: A rule set of the method: ``paper`` (all), ``released`` (all but search_r1), and see docs/rewards.md.
        per_character: Compare Chinese, Japanese and Korean text by character instead of by word.
        search_cost: Taken off per search beyond ``free_searches``.
        free_searches: How many searches cost nothing.
        repeat_penalty: Taken off per query that equals an earlier one of the response once normalised.
        reward_router_address: Passed by veRL's managers when a reward model is served; ignored.
        reward_model_tokenizer: Likewise.
        **unknown: Refused.

    Returns:
        Always the same keys. Floats: ``score``, ``f1``, ``em``, ``cem`` (of the extracted answer, whatever the score),
        ``format_ok``, ``answered``, ``truncated`` (0.0 or 1.0), ``search_cost``, ``repeat_penalty`` (amounts charged).
        An int: ``num_searches``. Strings: ``pred``, at most 1,000 characters, and ``reason``.

    Raises:
        ConfigError: an option is unknown or outside what is allowed.
        DataError: the row has no golden answer, or ``extra_info`` holds what no rollout gives.
    """
    _check_options(unknown, per_character, search_cost, free_searches, repeat_penalty)
    chosen, judge = _choose(method, rules)
    if extra_info is not None and not isinstance(extra_info, Mapping):
        raise DataError(
            f"row (data_source={data_source!s}): extra_info is {extra_info!r:.200}; allowed: a dict or None"
        )
    row = name_row(data_source, extra_info)
    golden = golden_answers(ground_truth, row)
    response = read_response(solution_str, extra_info, chosen.dialect, row)

    answer, fault = chosen.extract(response.turns, chosen.dialect)
    match = compare(answer or "", golden, per_character=per_character)
    verdict = judge(response, Reading(answer, fault, golden, match.f1, match.em, per_character))
    if response.stop_reason in ("search_failed", "aborted"):
        verdict = Verdict(0.0, False, f"not judged: the rollout ended as {response.stop_reason}")

    repeated = _count_repeats(response, chosen.dialect) if repeat_penalty else 0
    charged_searches = search_cost * max(0, response.num_searches - free_searches)
    charged_repeats = repeat_penalty * repeated
    floor = min(0.0, verdict.score)
    return {
        "score": max(floor, verdict.score - charged_searches - charged_repeats),
        "f1": match.f1,
        "em": match.em,
        "cem": match.cem,
        "format_ok": float(verdict.format_ok),
        "num_searches": response.num_searches,
        "answered": float(bool(answer)),
        "truncated": float(response.stop_reason == "max_length"),
        "search_cost": float(charged_searches),
        "repeat_penalty": float(charged_repeats),
        # A lone surrogate would break veRL's JSON dumps.
        "pred": (answer or "")[:_LONGEST_PRED].encode("utf-8", "replace").decode("utf-8"),
        "reason": verdict.reason,
    }


def _choose(method: str, rules: str) -> tuple[Method, Callable[[Response, Reading], Verdict]]:
    if method not in METHODS:
        raise ConfigError(f"unknown reward method {method!r}; allowed: {sorted(METHODS)}")
    chosen = METHODS[method]
    if rules not in chosen.rules:
        raise ConfigError(f"unknown rules {rules!r} of reward method {method!r}; allowed: {sorted(chosen.rules)}")
    return chosen, chosen.rules[rules]


def _check_options(
    unknown: Mapping[str, Any], per_character: bool, search_cost: float, free_searches: int, repeat_penalty: float
) -> None:
    if unknown:
        allowed = "method, rules, per_character, search_cost, free_searches, repeat_penalty"
        raise ConfigError(f"unknown reward option(s) {sorted(unknown)}; allowed: {allowed}")
    if not isinstance(per_character, bool):
        raise ConfigError(f"reward option per_character is {per_character!r}; allowed: true or false")
    if not isinstance(free_searches, int) or isinstance(free_searches, bool) or free_searches < 0:
        raise ConfigError(f"reward option free_searches is {free_searches!r}; allowed: an integer from 0")
    for name, value in (("search_cost", search_cost), ("repeat_penalty", repeat_penalty)):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise ConfigError(f"reward option {name} is {value!r}; allowed: a finite number from 0")


def _count_repeats(response: Response, dialect: Dialect) -> int:
    queries = [normalise(query) for query in response.queries(dialect)]
    return len(queries) - len(set(queries))
