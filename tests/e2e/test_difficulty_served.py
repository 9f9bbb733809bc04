"""`research-plugin data difficulty` for real: the tiny model in vLLM, the retriever server, a kill on its way.

tests/integration/test_difficulty.py has the command's rules, against a model that follows a script.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from composing import clean_environment

from research_plugin.data.tiny_files import TinyFiles, tiny_dir

pytest.importorskip("vllm")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.e2e

TINY = TinyFiles(tiny_dir())
QUESTIONS, SAMPLES = 12, 3


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_questions_are_sorted_by_what_the_served_model_can_do(
    tiny_model_url: str, tiny_retriever_url: str, tmp_path: Path
) -> None:
    """Killed by SIGKILL on its way, the same command goes on: no rollout is lost or made twice."""
    parquet.write_table(parquet.read_table(TINY.val).slice(0, QUESTIONS), tmp_path / "questions.parquet")
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "research_plugin.cli", "data", "difficulty",
        "--data", str(tmp_path / "questions.parquet"), "--out", str(out), "--tokenizer", str(TINY.model),
        "--model-url", f"{tiny_model_url}/v1", "--response-length", "320", "--temperature", "0.7",
        "--samples", str(SAMPLES), "--easy-below", "2", "--medium-to", str(SAMPLES), "--mix", "stage1=hard:2",
        "prompt.style=question", f"search.url={tiny_retriever_url}", "search.topk=2",
    ]  # fmt: skip
    log = out / "attempts.jsonl"
    with subprocess.Popen([*command, "--concurrency", "1"], cwd=tmp_path, env=clean_environment()) as process:
        try:
            deadline = time.monotonic() + 120
            while not (log.is_file() and log.read_bytes().count(b"\n") > 5):
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.02)
        finally:
            process.kill()
    kept = log.read_bytes()
    done = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert log.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])

    attempts: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in read(log)[1:]:
        attempts[line["id"]].append(line)
    results = read(out / "results.jsonl")
    assert len(results) == len(attempts) == QUESTIONS
    for line in results:
        made = attempts[line["id"]]
        assert [attempt["attempt"] for attempt in made] == list(range(1, (line["first_right"] or SAMPLES) + 1))
        assert [attempt["right"] for attempt in made] == [
            number == line["first_right"] for number in range(1, len(made) + 1)
        ]

    # A model that answers some of them, having searched as its training taught it.
    buckets = {name: parquet.read_table(out / f"{name}.parquet").num_rows for name in ("easy", "medium", "hard")}
    assert sum(buckets.values()) == QUESTIONS
    assert buckets["easy"] + buckets["medium"] >= 1
    assert parquet.read_table(out / "stage1.parquet").num_rows == 2
    made = [attempt for of_one in attempts.values() for attempt in of_one]
    assert sum(attempt["num_searches"] > 0 for attempt in made) > 0.8 * len(made)
    assert sum(attempt["format_ok"] for attempt in made) > 0.8 * len(made)
    assert sum(attempt["stop_reason"] == "answered" for attempt in made) > 0.8 * len(made)
