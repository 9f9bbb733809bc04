"""Real training runs of `research_tiny` through the installed package, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composing import clean_environment

from research_plugin.data.tiny_files import tiny_dir

COMMAND = [sys.executable, "-u", "-m", "verl.trainer.main_ppo", "+recipe=research_tiny"]
STEPS = 4
QUESTIONS = 61  # a prime: divides into nothing


@contextmanager
def training(folder: Path, *overrides: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run in ``folder``, its output in ``folder/log``; kill what is left of it at the end.

    The corpus is a copy, so that the retriever can be told apart from any other on this machine.
    """
    corpus = shutil.copy(tiny_dir() / "corpus.jsonl", folder)
    settings = ["trainer.default_local_dir=run", f"actor_rollout_ref.rollout.custom.search.corpus={corpus}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, *settings, *overrides],
            cwd=folder,
            env=clean_environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def short_run(folder: Path) -> Path:
    """Train for `STEPS` steps, validate on `QUESTIONS` questions; the run's folder, with the model it ends with."""
    with training(
        folder,
        f"trainer.total_training_steps={STEPS}",
        f"data.val_max_samples={QUESTIONS}",
        f"trainer.save_freq={STEPS}",
        "actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]",
        # With a reference model, which the recipe does without.
        "actor_rollout_ref.actor.use_kl_loss=true",
    ) as process:
        process.wait(timeout=1200)
    assert process.returncode == 0, (folder / "log").read_text(errors="replace")[-4000:]
    return folder / "run"
