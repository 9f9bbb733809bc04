"""`research-plugin data difficulty` as a user runs it: a completions server that follows a script, a real retriever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
parquet = pytest.importorskip("pyarrow.parquet")

from research_plugin.cli import main  # noqa: E402
from research_plugin.data.rows import Row, make_row, write_parquet  # noqa: E402
from research_plugin.data.tiny_files import TinyFiles, tiny_dir  # noqa: E402
from research_plugin.retriever.process import RetrieverProcess  # noqa: E402

TINY = TinyFiles(tiny_dir())

# By question: the rollout that answers it rightly; None: none does.
RIGHT_AT = [1, 2, 3, 4, 5, None]
ENTITIES = ("Dalvak", "Galbov", "Sumvik", "Lumbov", "Jarvos", "Talkin")


class ScriptedModel:
    """Searches once and answers from what it reads; counts the answers per question. ``seconds``: a turn's length."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.seconds = tokenizer, 0.0
        self.answers: Counter[int] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.faults = 0
        model, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.reply(200, {"data": [{"id": "scripted", "max_model_len": 640}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                time.sleep(model.seconds)
                with lock:
                    model.requests.append(body)
                    if model.faults:
                        model.faults -= 1
                        self.reply(503, {"error": "busy"})
                        return
                    self.reply(200, {"choices": [model.turn(body["prompt"])]})

            def reply(self, status: int, content: Any) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def turn(self, prompt: list[int] | str) -> dict[str, Any]:
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        number = next(index for index, entity in enumerate(ENTITIES) if entity in text.split("<result>")[0])
        if "<result>" not in text:
            turn = f"<think> search </think> <search> {ENTITIES[number]} </search>".removesuffix("</search>")
            return {"text": turn, "finish_reason": "stop", "stop_reason": "</search>"}
        self.answers[number] += 1
        found = ENTITIES[number] in text.split("<result>")[1]
        right = found and RIGHT_AT[number] is not None and self.answers[number] >= RIGHT_AT[number]
        answer = f" <think> so </think> <answer> \\boxed{{{'Temkin' if right else 'Lorpov'}}} </answer>"
        return {"text": answer, "finish_reason": "stop", "stop_reason": None}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    from transformers import AutoTokenizer

    scripted = ScriptedModel(AutoTokenizer.from_pretrained(TINY.model))
    yield scripted
    scripted.server.shutdown()
    scripted.server.server_close()


@pytest.fixture(scope="module")
def retriever() -> Iterator[str]:
    with RetrieverProcess(TINY.corpus, timeout=60) as process:
        yield process.url


@pytest.fixture
def command(model: ScriptedModel, retriever: str, tmp_path: Path) -> list[str]:
    questions = [
        make_row("even" if index % 2 == 0 else "odd", "train", index, f"What is the city {entity}?", ["Temkin"])
        for index, entity in enumerate(ENTITIES)
    ]
    write_parquet(questions, tmp_path / "questions.parquet")
    arguments = [
        "data", "difficulty", "--data", tmp_path / "questions.parquet", "--out", tmp_path / "out",
        "--model-url", model.url, "--tokenizer", TINY.model, "--response-length", 384,
        "--samples", 5, "--easy-below", 3, "--medium-to", 4, "--concurrency", 3,
        f"search.url={retriever}", "search.topk=2", "prompt.style=question",
    ]  # fmt: skip
    return [str(argument) for argument in arguments]


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def entities(path: Path) -> set[int]:
    rows: list[Row] = parquet.read_table(path).to_pylist()
    return {row["extra_info"]["index"] for row in rows}


def test_questions_are_sorted_by_their_first_right_rollout(
    model: ScriptedModel, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.faults = 1  # and a busy server is asked again
    mixes = ["--mix", "stage1=odd/medium:1", "--mix", "stage2=medium:1,hard:2"]
    assert main([*command, *mixes]) == 0
    out = tmp_path / "out"
    assert [(entities(out / f"{name}.parquet")) for name in ("easy", "medium", "hard")] == [{0, 1}, {2, 3}, {4, 5}]
    assert (entities(out / "stage1.parquet"), entities(out / "stage2.parquet")) == ({3}, {2, 4, 5})
    assert [line["first_right"] for line in read(out / "results.jsonl")] == RIGHT_AT
    assert dict(model.answers) == {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 5}
    assert "medium.parquet             2 questions  1 even, 1 odd" in capsys.readouterr().out

    # The model read what it reads in training: token ids, a prompt of tokens, the retriever's passages as they are.
    last = model.requests[-1]
    text = model.tokenizer.decode(last["prompt"])
    assert text.startswith("<|im_start|>user\nWhat is the city")
    assert "</search> <result>\n" in text and text.endswith("\n</result>")
    assert last["stop"] == ["</search>"] and last["max_tokens"] == 384 - (
        len(last["prompt"]) - len(model.requests[0]["prompt"])
    )

    # Everything is known: the same command asks for nothing, other settings are refused.
    asked = len(model.requests)
    assert main([*command, *mixes]) == 0
    assert len(model.requests) == asked
    assert main([*command, "--metric", "f1"]) == 1
    assert "metric: 'em' there, 'f1' now" in capsys.readouterr().err


def test_killed_run_goes_on_and_counts_no_rollout_twice(
    model: ScriptedModel, command: list[str], tmp_path: Path
) -> None:
    model.seconds = 0.1
    log = tmp_path / "out" / "attempts.jsonl"
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with subprocess.Popen([sys.executable, "-m", "research_plugin.cli", *command], env=env) as process:
        try:
            deadline = time.monotonic() + 120
            while not (log.is_file() and log.read_bytes().count(b"\n") >= 5):
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.02)
        finally:
            process.send_signal(signal.SIGKILL)
    kept = log.read_bytes()
    log.write_bytes(kept + b'{"id": "even-tr')
    model.seconds = 0.0
    assert main(command) == 0
    assert log.read_bytes().startswith(kept)
    numbers: dict[str, list[int]] = {}
    for line in read(log)[1:]:
        numbers.setdefault(line["id"], []).append(line["attempt"])
    results = read(tmp_path / "out" / "results.jsonl")
    assert len(results) == len(ENTITIES)
    for line in results:
        assert numbers[line["id"]] == list(range(1, (line["first_right"] or 5) + 1))


def test_dead_retriever_ends_the_command_before_a_rollout(
    model: ScriptedModel, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "search.url=http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9" in capsys.readouterr().err
    assert model.requests == []


def test_text_prompts_and_faulty_requests(
    model: ScriptedModel, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--model", "other"]) == 1
    assert "serves scripted" in capsys.readouterr().err
    assert main([*command, "--samples", "3"]) == 1
    assert main([*command, "protocl=research"]) == 1
    assert "unknown key actor_rollout_ref.rollout.custom.protocl" in capsys.readouterr().err
    assert model.requests == []
    assert main([*command, "--text-prompts"]) == 0
    assert model.requests[0]["prompt"].startswith("<|im_start|>user\nWhat is the city")
