"""Follows a training log: keeps every line in a file and shows the few that say how far the run is.

``python -m verl.trainer.main_ppo ... 2>&1 | python -m research_plugin.reports.follow run.log``. veRL prints its whole
config and some 70 numbers a step; a newcomer needs five of them. When the input ends without a summary, the end of the
log is shown, which is where the reason stands.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

_PREFIX = re.compile(r"^(?:\x1b\[\d+m)?\(\w+ pid=\d+\)(?:\x1b\[0m)? ?")
_METRIC = re.compile(r"(?P<name>[\w/.@-]+):(?:np\.\w+\()?(?P<value>-?\d[\d.e+-]*)")
_STEP = re.compile(r"\bstep:(\d+) - ")
_ALARM = "WARNING: this run may be collapsing"
_END = "logs, rollouts and summary.json:"

# What a line holds -> what it means; each is shown once.
MILESTONES = (
    ("retriever ready", "the retriever answers"),
    ("Started a local Ray instance", "Ray is up, starting trainer and engine"),
    ("Loading weights", "the trainer loads the model"),
    ("--worker_extension_cls", "vLLM starts"),
    ("all initialize finished", "everything is ready, validating before training"),
    ("Initial validation metrics", "training starts"),
)
SHOWN = (
    ("critic/score/mean", "reward"),
    ("num_turns/mean", "turns"),
    ("rollout/generated_tokens/mean", "own tokens"),
    ("rollout/retrieved_tokens/mean", "retrieved"),
    ("actor/grad_norm", "grad norm"),
    ("training/rollout_probs_diff_max", "rollout-actor difference"),
    ("timing_s/step", "seconds"),
)


def step_line(line: str) -> str | None:
    """Return the short form of one of veRL's step lines, or None for any other line."""
    match = _STEP.search(line)
    if match is None or "timing_s/step" not in line:
        return None
    values = {found["name"]: float(found["value"]) for found in _METRIC.finditer(line)}
    shown = (f"{label} {values[name]:.3g}" for name, label in SHOWN if name in values)
    return f"step {match.group(1)}: " + ", ".join(shown)


def follow(lines: Iterator[str], log: TextIO, out: TextIO) -> bool:
    """Copy ``lines`` to ``log`` and show progress on ``out``; return whether the run reached its summary."""
    started = time.monotonic()
    waiting = list(MILESTONES)
    last: deque[str] = deque(maxlen=40)
    finished = stopped = False
    for raw in lines:
        log.write(raw)
        log.flush()
        line = _PREFIX.sub("", raw.rstrip("\n"))
        last.append(line)
        stopped = stopped or line.startswith("This run was stopped before it started")
        if finished or stopped or line.startswith("greedy, held-out questions"):
            finished = finished or not stopped
            # After the table Ray may still report its own end; that is for the log.
            if stopped or not raw.startswith(("\x1b", "(")):
                out.write(line + "\n")
        elif _ALARM in line:
            out.write(line[line.index(_ALARM) :] + "\n")
        elif (short := step_line(line)) is not None:
            out.write(f"[{time.monotonic() - started:4.0f} s] {short}\n")
        else:
            for milestone in waiting:
                if milestone[0] in line:
                    waiting.remove(milestone)
                    out.write(f"[{time.monotonic() - started:4.0f} s] {milestone[1]}\n")
                    break
        out.flush()
        if line.startswith(_END):
            return _drain(lines, log)
    if not finished and not stopped:
        shown = "\n".join(line[:300] for line in last)
        out.write(f"the run ended without a summary; its last lines:\n{shown}\n")
    return finished


def _drain(lines: Iterator[str], log: TextIO) -> bool:
    log.writelines(lines)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Read standard input; exit 1 when the run did not reach its summary."""
    parser = argparse.ArgumentParser(description="Show the progress of a training run; keep its whole output.")
    parser.add_argument("log", type=Path, help="file for the whole output")
    args = parser.parse_args(argv)
    args.log.parent.mkdir(parents=True, exist_ok=True)
    with args.log.open("w", encoding="utf-8") as log:
        try:
            return 0 if follow(sys.stdin, log, sys.stdout) else 1
        except KeyboardInterrupt:
            # The trainer got the same Ctrl-C; let its last words reach the log.
            log.writelines(sys.stdin)
            return 130


if __name__ == "__main__":
    sys.exit(main())
