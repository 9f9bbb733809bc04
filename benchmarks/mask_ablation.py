"""What the mask is worth: the tiny run with retrieved tokens out of the loss, and the same run with them in it.

    python benchmarks/mask_ablation.py [--json FILE] [--steps 20]
    python benchmarks/mask_ablation.py --reuse FILE

Two real runs of ``+recipe=research_tiny`` (stock veRL, Ray, vLLM, FSDP2, on the CPU), the second with
``actor_rollout_ref.rollout.custom.mask_observations=false``. Reward of the training rollouts (sampled) at every step,
greedy reward on held-out questions before training and every ``--test-every`` steps; both curves go to ``--plot``.
One seed each: a picture of the difference, not its size to the digit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from training_run import train

from research_plugin.reports.summary import validation_metrics

RUNS = {"masked": True, "unmasked": False}
TRAINING = {"reward": "critic/score/mean", "grad_norm": "actor/grad_norm", "kl_loss": "actor/kl_loss"}
COLOURS = {"masked": "#1f6fb4", "unmasked": "#d1622b"}


def curves(rows: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, list[dict[str, float]]]:
    """Return the training numbers of every step and the validations, oldest first."""
    training = [
        {"step": step, **{name: data[key] for name, key in TRAINING.items() if data.get(key) is not None}}
        for step, data in rows
        if TRAINING["reward"] in data
    ]
    validation = [{"step": step, **found} for step, data in rows if (found := validation_metrics(data))]
    return {"training": training, "validation": validation}


def measure(folder: Path, steps: int, test_every: int, timeout_s: float) -> dict[str, Any]:
    """Run both and return their curves."""
    runs = {}
    for name, masked in RUNS.items():
        rows = train(
            folder / name,
            [
                f"actor_rollout_ref.rollout.custom.mask_observations={str(masked).lower()}",
                f"trainer.total_training_steps={steps}",
                f"trainer.test_freq={test_every}",
            ],
            timeout_s,
        )
        runs[name] = curves(rows)
    return {"steps": steps, "runs": runs}


def means_of_five(points: Sequence[dict[str, float]]) -> list[float]:
    """Return the mean reward of steps 1-5, 6-10, ...; the last group may be shorter."""
    rewards = [point["reward"] for point in points]
    groups = [rewards[start : start + 5] for start in range(0, len(rewards), 5)]
    return [sum(group) / len(group) for group in groups]


def table(numbers: dict[str, Any]) -> str:
    """Return the table for a terminal."""
    lines = []
    for name, run in numbers["runs"].items():
        means = " ".join(f"{mean:.3f}" for mean in means_of_five(run["training"]))
        held_out = " ".join(f"{point['reward']:.3f}@{point['step']}" for point in run["validation"])
        last = run["validation"][-1]
        norms = [point["grad_norm"] for point in run["training"]]
        lines.append(
            f"{name:<10} training reward, means of 5 steps: {means}\n"
            f"{'':<10} held-out greedy reward @ step:      {held_out}\n"
            f"{'':<10} at the end: EM {last['em']:.3f}, format {last['format_ok']:.3f}, "
            f"{last['num_searches']:.2f} searches; gradient norm median {median(norms):.2f}, max {max(norms):.2f}"
        )
    return "\n".join(lines)


def panel(title: str, lines: dict[str, list[dict[str, float]]], steps: int, left: int) -> list[str]:
    """Return the SVG elements of one plot: reward from 0 to 1 over steps, a line per run."""
    width, top, height = 300, 40, 210
    bottom = top + height
    parts = [f'<text x="{left}" y="24" font-weight="bold">{title}</text>']
    for tenth in range(0, 11, 2):
        y = bottom - height * tenth / 10
        parts.append(f'<path d="M{left} {y:g}h{width}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:g}" text-anchor="end">{tenth / 10:g}</text>')
    for step in range(0, steps + 1, max(1, steps // 4)):
        parts.append(f'<text x="{left + width * step / steps:g}" y="{bottom + 16}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{left + width / 2:g}" y="{bottom + 34}" text-anchor="middle">step</text>')
    for row, (name, line) in enumerate(lines.items()):
        places = [(left + width * point["step"] / steps, bottom - height * point["reward"]) for point in line]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        y = bottom - 26 + 16 * row
        parts.append(f'<text x="{left + width - 4}" y="{y}" fill="{COLOURS[name]}" text-anchor="end">{name}</text>')
    return parts


def draw(numbers: dict[str, Any]) -> str:
    """Return both curves as an SVG."""
    runs, steps = numbers["runs"], max(1, numbers["steps"])
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="760" height="300" font-family="sans-serif" font-size="12">',
        '<rect width="760" height="300" fill="white"/>',
        *panel("training reward (sampled)", {name: run["training"] for name, run in runs.items()}, steps, 50),
        *panel("held-out reward (greedy)", {name: run["validation"] for name, run in runs.items()}, steps, 420),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Run or read, print the table, write JSON where asked and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--reuse", type=Path, help="take the numbers from this file instead of training")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--test-every", type=int, default=5, help="steps between validations (default 5)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that a run may take (default 3600)")
    parser.add_argument("--keep", type=Path, help="keep logs and rollouts in this folder")
    parser.add_argument("--plot", type=Path, help="write both curves to this file, as SVG")
    arguments = parser.parse_args()

    if arguments.reuse:
        numbers = json.loads(arguments.reuse.read_text(encoding="utf-8"))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (arguments.keep or Path(temporary)).resolve()
            numbers = measure(folder, arguments.steps, arguments.test_every, arguments.timeout)
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    print(table(numbers))
    if arguments.plot:
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        arguments.plot.write_text(draw(numbers), encoding="utf-8")


if __name__ == "__main__":
    main()
