"""`research-plugin chat` as a user runs it: a server that streams as a script says, a real retriever, a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from openai_server import OpenAIServer

pytest.importorskip("transformers")

from research_plugin.data.tiny_files import TinyFiles, tiny_dir
from research_plugin.retriever.process import RetrieverProcess

TINY = TinyFiles(tiny_dir())


class Model:
    """Searches for Dalvak, answers Rome; a question with "broken" gets a 500, one with "slow" a turn of a minute."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def __call__(self, route: str, request: dict[str, Any]) -> tuple[int, Any]:
        assert route == "completions"
        self.requests.append(request)
        if "broken" in request["prompt"]:
            return 500, {"error": "out of memory"}
        return 200, self.turn(request["prompt"])

    def turn(self, prompt: str) -> Iterator[dict[str, Any]]:
        if "slow" in prompt:
            yield event("<think> well")
            time.sleep(60)
        if "Dalvak </search> <result>" in prompt:
            yield from map(event, ["<think> I see. </think> <ans", "wer> \\boxed{Rome} </answer>"])
            yield event("", finish_reason="stop", stop_reason=None)
        else:
            yield from map(event, ["<think> I sea", "", "rch. </think> <sear", "ch> Dalvak "])
            yield event("", finish_reason="stop", stop_reason="</search>")


def event(text: str, **facts: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": None, **facts}]}


@pytest.fixture(scope="module")
def retriever_url() -> Iterator[str]:
    with RetrieverProcess(TINY.corpus, timeout=60) as process:
        yield process.url


def start(model_url: str, retriever_url: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "research_plugin.cli", "chat", "--model-url", model_url, "--retriever", retriever_url,
        "--tokenizer", str(TINY.model), "--text-prompts", "search.topk=2",
    ]  # fmt: skip
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def test_questions_from_a_pipe_one_fault_and_one_interruption(retriever_url: str) -> None:
    model = Model()
    with OpenAIServer(model, max_model_len=4096) as server, start(server.url, retriever_url) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("Where?\n\nbroken?\nslow?\nAgain?\n")
        process.stdin.close()
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line == "> slow?\n":
                while not any("slow" in request["prompt"] for request in model.requests):
                    time.sleep(0.01)
                time.sleep(0.2)
                os.kill(process.pid, signal.SIGINT)
        watchdog.cancel()
    assert process.returncode == 0, lines
    answered = [
        "I search.",
        "search: Dalvak",
        "  2 passages: ",
        "I see.",
        "answer: \\boxed{Rome}",
        "= Rome",
        "  read: ",
    ]
    first, second = lines.index("> broken?"), lines.index("> Again?")
    for part in (lines[:first], lines[second:]):
        assert [any(line.startswith(begin) for line in part) for begin in answered] == [True] * len(answered), lines
    assert lines[first + 1].startswith("! ") and "out of memory" in lines[first + 1]
    assert lines[second - 1] == "! stopped"
    assert len([request for request in model.requests if "broken" in request["prompt"]]) == 1
    assert "\033" not in "".join(lines)
    begun, went_on = (request for request in model.requests if "Where?" in request["prompt"])
    assert begun["stop"] == ["</search>"] and begun["temperature"] == 0.0
    assert went_on["prompt"].startswith(
        begun["prompt"] + "<think> I search. </think> <search> Dalvak </search> <result>"
    )


@pytest.mark.parametrize("down", ["model", "retriever"])
def test_what_is_down_is_said_at_once(retriever_url: str, down: str) -> None:
    with OpenAIServer(Model()) as server:
        gone = "http://127.0.0.1:9"
        process = start(gone if down == "model" else server.url, gone if down == "retriever" else retriever_url)
        begun = time.monotonic()
        out, _ = process.communicate("Where?\n", timeout=60)
    assert process.returncode == 1
    assert gone in out and "Traceback" not in out
    assert time.monotonic() - begun < 20
