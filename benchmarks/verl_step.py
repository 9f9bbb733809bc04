"""Seconds of one veRL step with the search loop against veRL's single_turn_agent, at the same number of tokens.

    python benchmarks/verl_step.py [--json FILE] [--steps 6]

Two real runs of ``+recipe=research_tiny`` (stock veRL, Ray, vLLM, FSDP2, on the CPU) that differ in the agent loop
alone. Every rollout runs to the response length: the model folder is a copy whose end token is one that the model does
not write, so it goes on after its answer. Both loops thus fill about the same number of tokens; in the search loop some
of them come from the retriever, over HTTP, instead of the engine, and each search interrupts the generation. What is
left of the difference in tokens is divided out: compared are seconds per 1,000 tokens of prompt and response, the
median over the steps after the first. A step is veRL's timing_s/step: generation with rewards, old and reference
log-probs, advantages, update, weight transfer. "gen/own" divides the generation by the tokens of the policy alone: a
rollout that searches has fewer of them, but the engine is done only when the longest one is.

The learning rate is 0, so that both runs keep the same policy. veRL's replay buffer polls every 0.05 s instead of
2.0 s (the recipe's choice); otherwise a difference in generation below 2 s would show as 0 or as 2.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from training_run import train

TARGET_RATIO = 1.05
LOOPS = ("research_search", "single_turn_agent")
PHASES = ("gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "step")


def endless_model(target: Path) -> Path:
    """Copy the tiny model with <|endoftext|>, which it never learned to write, as its only end token."""
    from research_plugin.plugin import data_file

    shutil.copytree(data_file("tiny/model"), target)
    for name, key, value in (
        ("tokenizer_config.json", "eos_token", "<|endoftext|>"),
        ("config.json", "eos_token_id", 0),
        ("generation_config.json", "eos_token_id", [0]),
    ):
        content = json.loads((target / name).read_text(encoding="utf-8"))
        content[key] = value
        (target / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    return target


def run(loop: str, folder: Path, model: Path, steps: int, timeout_s: float) -> dict[str, Any]:
    """Train with one loop; return its per-step numbers without the first step, and their medians per 1,000 tokens."""
    rows = train(
        folder,
        [
            f"actor_rollout_ref.rollout.agent.default_agent_loop={loop}",
            f"actor_rollout_ref.model.path={model}",
            "actor_rollout_ref.actor.optim.lr=0.0",
            f"trainer.total_training_steps={steps}",
            "trainer.val_before_train=false",
            "trainer.test_freq=-1",
        ],
        timeout_s,
    )
    measured = []
    for step, data in rows:
        if step < 2 or "timing_s/step" not in data:
            continue
        tokens = data["perf/total_num_tokens"]
        observed = observed_tokens(folder / "rollouts" / f"{step}.jsonl", model) if loop == LOOPS[0] else 0
        seconds = {phase: data[f"timing_s/{phase}"] for phase in PHASES if f"timing_s/{phase}" in data}
        response, prompt = data["response_length/mean"], data["prompt_length/mean"]
        own = tokens * response / (response + prompt) - observed
        measured.append(
            {"step": step, "tokens": tokens, "observed_tokens": observed, "own_tokens": own, "seconds": seconds}
        )
    if not measured:
        raise SystemExit(f"{folder} holds no step after the first; give --steps 2 or more")
    per_1000 = {
        phase: statistics.median(row["seconds"][phase] / row["tokens"] * 1000 for row in measured)
        for phase in measured[0]["seconds"]
    }
    per_1000["gen/own"] = statistics.median(row["seconds"]["gen"] / row["own_tokens"] * 1000 for row in measured)
    return {
        "loop": loop,
        "tokens": statistics.mean(row["tokens"] for row in measured),
        "observed_tokens": statistics.mean(row["observed_tokens"] for row in measured),
        "own_tokens": statistics.mean(row["own_tokens"] for row in measured),
        "seconds_per_1000_tokens": per_1000,
        "steps": measured,
    }


def observed_tokens(dump: Path, model: Path) -> int:
    """Count the tokens that the retriever inserted, from the rollouts that veRL wrote down."""
    from transformers import AutoTokenizer

    from research_plugin.protocol import parse_response

    tokenizer = AutoTokenizer.from_pretrained(model)
    inserted = [
        segment.text
        for line in dump.read_text(encoding="utf-8").splitlines()
        for segment in parse_response(json.loads(line)["output"])
        if not segment.by_policy
    ]
    return sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in inserted)


def main() -> None:
    """Run both, print the table and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--steps", type=int, default=6, help="steps of a run, of which the first is not counted")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that a run may take (default 1800)")
    parser.add_argument("--keep", type=Path, help="keep logs and rollouts in this folder")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.keep or Path(temporary)).resolve()
        model = endless_model(folder / "model")
        runs = [run(loop, folder / loop, model, arguments.steps, arguments.timeout) for loop in LOOPS]
    ours, stock = (entry["seconds_per_1000_tokens"] for entry in runs)
    phases = [phase for phase in ("gen/own", *PHASES) if phase in ours and phase in stock]
    print("seconds per 1,000 tokens, median of the steps")
    print(f"{'loop':<20} {'tokens/step':>12} {'own':>9} {'observed':>9}" + "".join(f" {phase:>14}" for phase in phases))
    for entry in runs:
        counts = f"{entry['tokens']:>12.0f} {entry['own_tokens']:>9.0f} {entry['observed_tokens']:>9.0f}"
        times = "".join(f" {entry['seconds_per_1000_tokens'][phase]:>14.4f}" for phase in phases)
        print(f"{entry['loop']:<20} {counts}{times}")
    ratio = {phase: ours[phase] / stock[phase] for phase in phases}
    print(f"{'ratio':<20} {'':>12} {'':>9} {'':>9}" + "".join(f" {ratio[phase]:>14.3f}" for phase in phases))
    print(f"target for the step: {TARGET_RATIO:g}")
    if arguments.json:
        numbers = {"runs": runs, "ratio": ratio, "target_ratio": TARGET_RATIO}
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
