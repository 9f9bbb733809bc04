"""Throughput of `compute_score` on 8k-token responses, and how its time grows with the length of a response.

    python benchmarks/reward.py [--json FILE]

All times are CPU time, so that a busy machine counts little. The last column of the second table is the time per byte
at 1 MB over that at 64 KB: 1 is linear, 16 is quadratic.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from research_plugin.protocol import RESEARCH, parse_response
from research_plugin.rewards import compute_score

GOLDEN = ["Torvale", "the city of Torvale"]
SMALL, LARGE = 64 * 1024, 1024 * 1024
TARGET_PER_SECOND = 2000
TARGET_GROWTH = 3.0  # room for what no longer fits the cache


def realistic(size: int) -> str:
    """Return a response of about ``size`` characters: five passages a search, then a boxed answer."""
    passage = '"Glass Harbour"\n' + "The film was directed by Ada Quill, who was born in a small town by the sea. " * 8
    body = "\n\n".join([passage] * 5)
    turn = (
        "<think> The director comes first, then the place of birth. </think> <search> director of Glass Harbour "
        f"</search>{RESEARCH.wrap(body)} "
    )
    answer = (
        "<think> Now I can answer. </think> <answer> The final answer is \\[ \\boxed{\\text{Torvale}} \\] </answer>"
    )
    return turn * max(1, round((size - len(answer)) / len(turn))) + answer


def repeated(piece: str, before: str = "", after: str = "") -> Callable[[int], str]:
    """Return a maker of responses that repeat ``piece`` up to a size."""
    return lambda size: before + piece * ((size - len(before) - len(after)) // len(piece)) + after


ADVERSARIAL: dict[str, Callable[[int], str]] = {
    "realistic": realistic,
    "many <search>": repeated("<search>"),
    "many </search>": repeated("</search>"),
    "many searches, no result": repeated("<search> q </search> "),
    "many <search>q</search> <result>": repeated("<search>q</search> <result>"),
    "many complete turns": repeated("<search>q</search> <result>\nd\n</result>"),
    "search, then white space": repeated(" ", before="<search>q</search>"),
    "many <result>": repeated("<result>"),
    "many <answer>": repeated("<answer>"),
    "many <think>": repeated("<think>"),
    "many \\boxed{": repeated("\\boxed{", "<think></think><answer>", "</answer>"),
    "many \\boxed and space": repeated("\\boxed ", "<think></think><answer>", "</answer>"),
    "many {": repeated("{", "<answer>\\boxed{", "</answer>"),
    "many {} in the box": repeated("{}", "<answer>\\boxed{", "}</answer>"),
    "many \\text{ in the box": repeated("\\text{", "<answer>\\boxed{", "}</answer>"),
    "many words in the box": repeated("the city of ", "<answer>\\boxed{", "}</answer>"),
    "combining marks in the box": repeated("\u0301\u0316", "<answer>\\boxed{a", "}</answer>"),
    "many end tokens": repeated("<|im_end|>"),
    "many <": repeated("<"),
    "many backslashes": repeated("\\", "<answer>\\boxed{", "}</answer>"),
}


def best_time(call: Callable[[], object], at_least_s: float = 0.15) -> float:
    """Return the shortest time of a call in seconds, over as many as fit into ``at_least_s``, three at least."""
    best, total, calls = float("inf"), 0.0, 0
    while total < at_least_s or calls < 3:
        start = time.process_time()
        call()
        took = time.process_time() - start
        best, total, calls = min(best, took), total + took, calls + 1
    return best


def measure_throughput(seconds: float) -> list[dict[str, object]]:
    """Return scores per second on one core for 32 KB responses, by rules and by whether segments come along."""
    text = realistic(32 * 1024)
    segments = [[segment.text, segment.by_policy] for segment in parse_response(text)]
    extra_infos = {"text alone": None, "with segments": {"segments": segments, "stop_reason": "answered"}}
    rows: list[dict[str, object]] = []
    for rules in ("paper", "released"):
        for source, extra_info in extra_infos.items():
            calls, start = 0, time.process_time()
            while (took := time.process_time() - start) < seconds:
                assert compute_score("bench", text, GOLDEN, extra_info, rules=rules)["answered"]
                calls += 1
            rows.append({"rules": rules, "input": source, "bytes": len(text), "per_second": calls / took})
    return rows


def measure_growth() -> list[dict[str, object]]:
    """Return milliseconds at both sizes and the growth of the time per byte, for every response and rule set."""
    rows: list[dict[str, object]] = []
    for name, make in ADVERSARIAL.items():
        for rules in ("paper", "released"):
            small, large = make(SMALL), make(LARGE)
            at_small = best_time(lambda: compute_score("bench", small, GOLDEN, rules=rules))  # noqa: B023
            at_large = best_time(lambda: compute_score("bench", large, GOLDEN, rules=rules))  # noqa: B023
            growth = (at_large / len(large)) / (at_small / len(small))
            rows.append(
                {"case": name, "rules": rules, "small_ms": at_small * 1e3, "large_ms": at_large * 1e3, "growth": growth}
            )
    return rows


def main() -> None:
    """Print both tables and write them as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds a throughput row (default 2)")
    arguments = parser.parse_args()

    throughput = measure_throughput(arguments.seconds)
    print(f"{'rules':<10} {'input':<14} {'bytes':>8} {'scores/s':>10}   target {TARGET_PER_SECOND}/s")
    for row in throughput:
        print(f"{row['rules']:<10} {row['input']:<14} {row['bytes']:>8} {row['per_second']:>10.0f}")
    growth = measure_growth()
    print(f"\n{'response':<34} {'rules':<10} {'64 KB ms':>10} {'1 MB ms':>10} {'growth':>8}   target {TARGET_GROWTH:g}")
    for row in growth:
        times = f"{row['small_ms']:>10.3f} {row['large_ms']:>10.3f} {row['growth']:>8.2f}"
        print(f"{row['case']:<34} {row['rules']:<10} {times}")
    if arguments.json:
        numbers = {
            "throughput": throughput,
            "growth": growth,
            "target_per_second": TARGET_PER_SECOND,
            "target_growth": TARGET_GROWTH,
        }
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
