"""Real training through the installed package: stock veRL, Ray, FSDP2, vLLM's CPU build, our retriever process.

The gate on learning is loose on purpose: a few steps, held-out greedy reward clearly above the start. The quickstart's
table is the proof of the full claim.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_training import QUESTIONS, STEPS, training

pytest.importorskip("verl")
pytest.importorskip("vllm")
pytestmark = [pytest.mark.e2e, pytest.mark.verl]


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


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.5)
    return False


@pytest.fixture(scope="module")
def run(tiny_run: Path) -> Path:
    """One short training run from an unrelated folder; its run folder."""
    return tiny_run


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


def test_run_logs_what_the_plugin_counts(run: Path) -> None:
    """Cases 17 and 19, in veRL's own tracker: its response_length counts retrieved tokens, too."""
    steps = [row for row in _metrics(run) if "actor/grad_norm" in row]
    for row in steps:
        tokens = row["rollout/generated_tokens/mean"], row["rollout/retrieved_tokens/mean"]
        assert min(tokens) > 0
        assert sum(tokens) == pytest.approx(row["response_length/mean"], rel=1e-4)
        assert 0.0 <= row["rollout/groups_without_spread/share"] <= 1.0
        for reason in ("search_failed", "aborted", "no_room"):
            assert row[f"rollout/{reason}/total"] == row[f"rollout/{reason}/share"] == 0.0
    assert any(row["rollout/groups_without_spread/share"] < 1.0 for row in steps)


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
    with training(tmp_path) as process:
        log = tmp_path / "log"
        started = _wait(lambda: "Started a local Ray instance" in log.read_text(errors="replace"), 240)
        assert started, log.read_text(errors="replace")[-4000:]
        assert _marked(tmp_path), "the retriever should be running"
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
    assert process.returncode != 0
    assert _wait(lambda: not _marked(tmp_path), 30), _marked(tmp_path)
    assert _wait(lambda: not _session(process.pid), 60), _session(process.pid)
