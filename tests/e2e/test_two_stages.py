"""examples/two_stage as its script says it is run: stage 1 teaches to search, stage 2, on its checkpoint, to answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from composing import ROOT, clean_environment

pytest.importorskip("verl")
pytest.importorskip("vllm")
pytestmark = [pytest.mark.e2e, pytest.mark.verl]

STEPS = (3, 5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Both stages, a few steps each; the folder that holds stage1/ and stage2/."""
    folder = tmp_path_factory.mktemp("two_stage") / "example"
    shutil.copytree(ROOT / "examples" / "two_stage", folder, ignore=shutil.ignore_patterns("runs", "shy_model"))
    env = clean_environment() | {"PYTHON": sys.executable, "STAGE1": "tiny_stage1", "STAGE2": "tiny_stage2"}
    env["STAGE1_ARGS"], env["STAGE2_ARGS"] = (f"trainer.total_training_steps={steps}" for steps in STEPS)
    subprocess.run([sys.executable, "shy_model.py"], cwd=folder, env=env, check=True, timeout=120)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "run.sh", "--config-dir", ".", "data.val_max_samples=48"],
            cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(timeout=1200)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, (folder / "log").read_text(errors="replace")[-4000:]
    return folder / "runs" / "two_stage"


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def validation(run: Path, stage: int, step: int) -> list[dict[str, object]]:
    return read(run / f"stage{stage}" / "validation" / f"{step}.jsonl")


def searching(rows: list[dict[str, object]]) -> float:
    return sum("<result>" in str(row["output"]) for row in rows) / len(rows)


def mean_f1(rows: list[dict[str, object]]) -> float:
    return sum(float(str(row["f1"])) for row in rows) / len(rows)


def test_stage_1_raises_the_share_of_rollouts_that_search(run: Path) -> None:
    # Sampled rollouts: the greedy ones of the weakened model search as ever.
    shares = [searching(read(run / "stage1" / "rollouts" / f"{step}.jsonl")) for step in (1, STEPS[0])]
    assert shares[0] < 0.7
    assert shares[1] > shares[0] + 0.1


def test_stage_2_starts_where_stage_1_ended(run: Path) -> None:
    """Greedy answers before stage 2's first step are those after stage 1's last."""
    end = {str(row["input"]): row["output"] for row in validation(run, 1, STEPS[0])}
    start = {str(row["input"]): row["output"] for row in validation(run, 2, 0)}
    assert set(start) == set(end)
    same = sum(start[question] == end[question] for question in end)
    assert same >= 0.9 * len(end)


def test_stage_2_raises_f1_and_goes_on_searching(run: Path) -> None:
    before, after = validation(run, 2, 0), validation(run, 2, STEPS[1])
    assert mean_f1(after) > mean_f1(before) + 0.05
    assert searching(after) > 0.8
