"""Real training through the installed package: stock veRL, Ray, FSDP2, vLLM's CPU build, our retriever process.

The gate on learning is loose on purpose: a few steps, held-out greedy reward clearly above the start. The quickstart's
table is the proof of the full claim.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from composing import clean_environment

pytest.importorskip("verl")
pytest.importorskip("vllm")
pytestmark = [pytest.mark.e2e, pytest.mark.verl]

COMMAND = [sys.executable, "-u", "-m", "verl.trainer.main_ppo", "+recipe=research_tiny"]
STEPS = 4
QUESTIONS = 61  # a prime: divides into nothing


def _session(pid: int) -> set[int]:
    """Processes that still belong to the session of ``pid`` or were started by Ray below it."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                state, _, _, session = stat.rsplit(")", 1)[1].split()[:4]
            except (OSError, IndexError):
                continue
            if int(session) == pid and state != "Z":
                found.add(int(entry.name))
    return found


def _marked(folder: Path) -> list[str]:
    """Command lines of processes that name ``folder``: the retriever, which has a session of its own."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(folder) in line:
                lines.append(line)
    return lines


def _wait(condition: object, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.5)
    return False


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One short training run from an unrelated folder; yields its run folder."""
    folder = tmp_path_factory.mktemp("train")
    corpus = folder / "corpus.jsonl"
    import research_plugin.data.tiny_files as tiny

    corpus.write_bytes((tiny.tiny_dir() / "corpus.jsonl").read_bytes())
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *COMMAND,
                f"trainer.total_training_steps={STEPS}",
                "trainer.default_local_dir=run",
                f"data.val_max_samples={QUESTIONS}",
                # With a reference model, which the recipe does without.
                "actor_rollout_ref.actor.use_kl_loss=true",
                # Named so that the retriever can be told apart from any other on this machine.
                f"actor_rollout_ref.rollout.custom.search.corpus={corpus}",
            ],
            cwd=folder,
            env=clean_environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(timeout=1200)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, (folder / "log").read_text(errors="replace")[-4000:]
    yield folder / "run"


def _metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line)["data"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_run_learns(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["before"]) == set(summary["after"]) == {"reward", "f1", "em", "format_ok", "num_searches"}
    assert summary["before"]["reward"] < 0.35
    assert summary["after"]["reward"] > summary["before"]["reward"] + 0.08
    assert summary["steps"] == STEPS


def test_run_engine_and_trainer_agree(run: Path) -> None:
    """Mask, log-probs and weight sync: a token's probability in vLLM is the trainer's, after every update."""
    differences = [row["training/rollout_probs_diff_max"] for row in _metrics(run) if "actor/grad_norm" in row]
    assert len(differences) == STEPS
    assert max(differences) < 1e-3
    assert all("actor/kl_loss" in row for row in _metrics(run) if "actor/grad_norm" in row)


def test_run_dumps_rollouts_that_searched(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "rollouts" / "1.jsonl").read_text().splitlines()]
    assert len(rows) == 16 * 5
    assert any("<result>" in row["output"] for row in rows)
    assert all(0.0 <= row["score"] <= 1.0 for row in rows)


def test_run_validates_every_question_once(run: Path) -> None:
    """Case 23: a validation set that no batch or worker count divides gives one result a question."""
    for step in (0, STEPS):
        rows = [json.loads(line) for line in (run / "validation" / f"{step}.jsonl").read_text().splitlines()]
        assert len(rows) == QUESTIONS
        assert len({row["input"] for row in rows}) == QUESTIONS


def test_run_leaves_no_process_behind(run: Path) -> None:
    assert _wait(lambda: not _marked(run.parent), 30), _marked(run.parent)


def test_ctrl_c_cleans_up(tmp_path: Path) -> None:
    import research_plugin.data.tiny_files as tiny

    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes((tiny.tiny_dir() / "corpus.jsonl").read_bytes())
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, "trainer.default_local_dir=run", f"actor_rollout_ref.rollout.custom.search.corpus={corpus}"],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            text = tmp_path / "log"
            started = _wait(lambda: "Started a local Ray instance" in text.read_text(errors="replace"), 240)
            assert started, text.read_text(errors="replace")[-4000:]
            assert _marked(tmp_path), "the retriever should be running"
            process.send_signal(signal.SIGINT)
            process.wait(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    assert _wait(lambda: not _marked(tmp_path), 30), _marked(tmp_path)
    assert _wait(lambda: not _session(process.pid), 60), _session(process.pid)
