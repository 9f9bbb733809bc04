"""`research-plugin judge` as a user runs it, against a server that speaks the OpenAI API and follows a script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai_server import OpenAIServer

from research_plugin.cli import main
from research_plugin.evaluation.judge import summarise
from research_plugin.records import RolloutRecord, parse_record

SAYS = {
    "Paris": '{"rationale": "Same city.", "verdict": "correct"}',
    "the capital": "It means the right city.\nVerdict: correct.",
    "Rome": '```json\n{"rationale": "Not the correct city.", "verdict": "incorrect"}\n```',
    "cut": '{"rationale": "The verdict is corr',
}


class Judge:
    """Replies by the answer it is shown; ``failing`` answers get a 400, every request takes ``seconds``."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.failing: set[str] = set()
        self.seconds = 0.0

    def __call__(self, route: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assert route == "chat/completions"
        self.requests.append(request)
        time.sleep(self.seconds)
        prompt = request["messages"][0]["content"]
        answer = prompt.split("Answer to grade: ")[1].split("\n")[0]
        if answer in self.failing:
            return 400, {"error": "refused"}
        text = SAYS.get(answer, SAYS["Rome"])
        return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}


@pytest.fixture
def judge() -> Iterator[tuple[Judge, str]]:
    script = Judge()
    with OpenAIServer(script) as server:
        yield script, server.url


def write_run(folder: Path, preds: list[str]) -> Path:
    folder.mkdir()
    records = [
        RolloutRecord(f"Which city {number}?", ["Paris", "City of {answer}"], [], id=str(number), pred=pred)
        for number, pred in enumerate(preds)
    ]
    (folder / "records.jsonl").write_text("".join(f"{record.to_line()}\n" for record in records))
    (folder / "summary.json").write_text('{"method": "rag"}')
    return folder


def summary(run: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return read


def test_verdicts_go_into_the_summary_and_nothing_is_asked_twice(
    tmp_path: Path, judge: tuple[Judge, str], capsys: pytest.CaptureFixture[str]
) -> None:
    script, url = judge
    run = write_run(tmp_path / "run", ["Paris", "the capital", "Rome", "cut", "", " "])
    other = write_run(tmp_path / "other", ["Paris", "Rome"])
    assert main(["judge", str(run), "--judge-url", url, "--price-in", "1000", "--price-out", "2000"]) == 0
    found = summary(run)
    # Two right; wrong are Rome and the two without an answer.
    assert found["metrics"]["judge"]["mean"] == pytest.approx(2 / 5)
    assert (found["judge_unparsed"], found["judge_missing"], found["judge_model"]) == (1, 0, "scripted")
    assert found["method"] == "rag"
    assert len(script.requests) == 4
    assert all(request["temperature"] == 0 and request["model"] == "scripted" for request in script.requests)
    assert 'Right answers: ["Paris", "City of {answer}"]' in script.requests[0]["messages"][0]["content"]
    out = capsys.readouterr().out
    assert "4 requests" in out and "at these prices" in out and "1 unreadable" in out

    assert main(["judge", str(run), "--judge-url", url]) == 0
    assert summary(run) == found and len(script.requests) == 4
    records = [parse_record(line) for line in (run / "records.jsonl").read_bytes().splitlines()]
    assert {**found, **summarise(run, records)} == found, "a later eval keeps the verdicts"

    assert main(["judge", str(run), str(other), "--judge-url", url]) == 0
    assert summary(other)["metrics"]["judge"]["mean"] == 0.5
    assert len(script.requests) == 5, "only the second question's answer Rome was new"


def test_dry_run_asks_nothing(tmp_path: Path, judge: tuple[Judge, str], capsys: pytest.CaptureFixture[str]) -> None:
    script, url = judge
    run = write_run(tmp_path / "run", ["Paris", "Rome"])
    assert main(["judge", str(run), "--judge-url", url, "--dry-run"]) == 0
    assert "2 requests" in capsys.readouterr().out
    assert script.requests == [] and "judge_model" not in summary(run)


def test_failed_requests_are_not_wrong_and_are_made_again(tmp_path: Path, judge: tuple[Judge, str]) -> None:
    script, url = judge
    run = write_run(tmp_path / "run", ["Paris", "Rome", "the capital"])
    script.failing = {"the capital"}
    assert main(["judge", str(run), "--judge-url", url]) == 1
    assert summary(run)["metrics"]["judge"] == summary(run)["metrics"]["judge"] | {"mean": 0.5, "n": 2}
    assert summary(run)["judge_missing"] == 1
    script.failing = set()
    assert main(["judge", str(run), "--judge-url", url]) == 0
    assert summary(run)["metrics"]["judge"]["mean"] == pytest.approx(2 / 3)
    assert len(script.requests) == 4


def test_a_judge_that_answers_nothing_ends_it(
    tmp_path: Path, judge: tuple[Judge, str], capsys: pytest.CaptureFixture[str]
) -> None:
    script, url = judge
    script.failing = {"Rome"}
    run = write_run(tmp_path / "run", ["Rome"] * 50)
    assert main(["judge", str(run), "--judge-url", url, "--concurrency", "1"]) == 1
    assert len(script.requests) == 10
    assert "10 requests to the judge failed in a row" in capsys.readouterr().err


def test_killed_run_goes_on(tmp_path: Path, judge: tuple[Judge, str]) -> None:
    script, url = judge
    script.seconds = 0.1
    run = write_run(tmp_path / "run", ["Paris", "Rome"] * 20)
    command = [sys.executable, "-m", "research_plugin.cli", "judge", str(run), "--judge-url", url, "--concurrency", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    replies = run / "judge.jsonl"
    deadline = time.monotonic() + 60
    while not (replies.exists() and replies.read_bytes().count(b"\n") >= 5):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with replies.open("ab") as file:
        file.write(b'{"key": "to')  # a torn line
    kept, asked = replies.read_bytes().count(b"\n"), len(script.requests)
    script.seconds = 0.0
    assert main(["judge", str(run), "--judge-url", url]) == 0
    assert len(script.requests) - asked == 40 - kept
    assert summary(run)["metrics"]["judge"] == summary(run)["metrics"]["judge"] | {"mean": 0.5, "n": 40}


def test_a_folder_without_records_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", str(tmp_path), "--judge-url", "http://127.0.0.1:1"]) == 1
    assert str(tmp_path) in capsys.readouterr().err
