"""`research-plugin eval` as a user runs it: a model server that follows a script, a real retriever."""

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

pytest.importorskip("transformers")
parquet = pytest.importorskip("pyarrow.parquet")

from research_plugin.cli import main  # noqa: E402
from research_plugin.data.rows import make_row, write_parquet  # noqa: E402
from research_plugin.data.tiny_files import TinyFiles, tiny_dir  # noqa: E402
from research_plugin.records import RolloutRecord, parse_record  # noqa: E402
from research_plugin.retriever.process import RetrieverProcess  # noqa: E402

TINY = TinyFiles(tiny_dir())
ENTITIES = ("Dalvak", "Galbov", "Sumvik", "Lumbov", "Jarvos", "Talkin")
KEY = "sk-only-in-the-environment"


class ScriptedModel:
    """Searches once and answers "Temkin", in a chat at once; for entities in ``down`` the server fails."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.seconds, self.down = tokenizer, 0.0, set[str]()
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, route: str, request: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(self.seconds)
        self.requests.append((route, request))
        if route == "chat/completions":
            choice: dict[str, Any] = {"message": {"content": "Temkin"}, "finish_reason": "stop"}
            return 200, {"choices": [choice], "usage": {"prompt_tokens": 40, "completion_tokens": 3}}
        text = self.tokenizer.decode(request["prompt"])
        entity = next(entity for entity in ENTITIES if entity in text.split("<result>")[0])
        if entity in self.down:
            return 400, {"error": f"the server cannot do {entity} for {KEY}"}
        turn, stop = f"<think> search </think> <search> {entity} ", "</search>"
        if "<result>" in text:
            turn, stop = " <think> so </think> <answer> \\boxed{Temkin} </answer>", None
        return 200, {"choices": [{"text": turn, "finish_reason": "stop", "stop_reason": stop}]}


@pytest.fixture
def model() -> ScriptedModel:
    from transformers import AutoTokenizer

    return ScriptedModel(AutoTokenizer.from_pretrained(TINY.model))


@pytest.fixture
def server(model: ScriptedModel) -> Iterator[str]:
    with OpenAIServer(model, max_model_len=640) as server:
        yield server.url


@pytest.fixture(scope="module")
def retriever() -> Iterator[str]:
    with RetrieverProcess(TINY.corpus, timeout=60) as process:
        yield process.url


@pytest.fixture
def command(server: str, retriever: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The research method over six questions, of which "Temkin" answers the first three."""
    questions = [
        make_row("towns", "test", index, f"What is the city {entity}?", ["Temkin" if index < 3 else "Lorpov"])
        for index, entity in enumerate(ENTITIES)
    ]
    write_parquet(questions, tmp_path / "questions.parquet")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    arguments = [
        "eval", "--method", "research", "--dataset", tmp_path / "questions.parquet", "--out", tmp_path / "out",
        "--model-url", server, "--tokenizer", TINY.model, "--retriever", retriever, "--response-length", 384,
        "--concurrency", 2, "--max-tokens", 64, "search.topk=2",
    ]  # fmt: skip
    return [*map(str, arguments), "prompt.style=question"]


def records(folder: Path) -> dict[str, RolloutRecord]:
    """By id; no id twice."""
    found = [parse_record(line) for line in (folder / "records.jsonl").read_bytes().splitlines()]
    assert len({record.id for record in found}) == len(found)
    return {record.id: record for record in found}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_agentic_run_is_training_s_own_rollout(
    model: ScriptedModel, command: list[str], retriever: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    out = tmp_path / "out"
    summary = read(out / "summary.json")
    assert (summary["questions"], summary["failed"]) == (6, 0)
    means = {name: value["mean"] for name, value in summary["metrics"].items()}
    assert means["em"] == means["f1"] == means["precision"] == 0.5
    assert means["num_searches"] == means["format_ok"] == means["answered"] == 1.0
    assert means["truncated"] == 0.0 < means["seconds"]
    assert "em                      0.500" in capsys.readouterr().out

    # The model read what it reads in training: token ids, a prompt of tokens, the retriever's passages as they are.
    route, last = model.requests[-1]
    text = model.tokenizer.decode(last["prompt"])
    assert route == "completions" and last["stop"] == ["</search>"] and last["temperature"] == 0.0
    assert text.startswith("<|im_start|>user\nWhat is the city") and text.endswith("\n</result>")
    record = records(out)["towns-test-00001"]
    assert [by_policy for _, by_policy in record.segments] == [True, False, True]
    assert record.segments[0][0] == "<think> search </think> <search> Galbov </search>"
    assert (record.queries, len(record.documents[0])) == (["Galbov"], 2)
    assert record.documents[0][0]["contents"] in record.segments[1][0]
    assert (record.method, record.prompt, record.stop_reason, record.pred) == (
        "research", "question", "answered", "Temkin",
    )  # fmt: skip
    prompts = [
        len(request["prompt"]) for _, request in model.requests if "Galbov" in model.tokenizer.decode(request["prompt"])
    ]
    assert record.metrics["prompt_tokens"] == sum(prompts)

    facts = read(out / "run.json")
    assert (facts["method"], facts["model"], facts["prompt"], facts["protocol"]) == (
        "research", "scripted", "question", "research",
    )  # fmt: skip
    assert (facts["dataset"], facts["questions"], facts["retriever"][0]["engine"]) == ("towns", 6, "bm25")
    assert facts["about"]["retrievers"] == [retriever]

    # Everything is known: the same command asks for nothing, other settings are refused.
    asked = len(model.requests)
    assert main(command) == 0
    assert len(model.requests) == asked
    assert main([*command, "--temperature", "0.5"]) == 1
    assert "temperature: 0.0 there, 0.5 now" in capsys.readouterr().err
    assert len(records(out)) == 6


def test_model_of_another_method_is_noticed(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--method", "search_r1", "max_searches=1"]) == 0
    assert "hardly a rollout is in the format of search_r1" in capsys.readouterr().err
    assert main([*command, "--method", "research"]) == 1
    assert "method: 'search_r1' there, 'research' now" in capsys.readouterr().err


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_stopped_run_goes_on_and_counts_no_question_twice(
    model: ScriptedModel, command: list[str], tmp_path: Path, stop: signal.Signals
) -> None:
    model.seconds = 0.4
    log = tmp_path / "out" / "records.jsonl"
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    process = subprocess.Popen(
        [sys.executable, "-m", "research_plugin.cli", *command], env=env, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            deadline = time.monotonic() + 120
            while not (log.is_file() and log.read_bytes().count(b"\n") >= 2):
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.02)
        finally:
            process.send_signal(stop)
        said = process.communicate(timeout=60)[1]
    if stop == signal.SIGINT:
        assert process.returncode == 130 and "the same command goes on from" in said
    kept = log.read_bytes()
    assert 2 <= kept.count(b"\n") < 6
    log.write_bytes(kept + b'{"question": "What')
    model.seconds = 0.0
    assert main(command) == 0
    assert log.read_bytes().startswith(kept)
    assert len(records(tmp_path / "out")) == read(tmp_path / "out" / "summary.json")["questions"] == 6


def test_fault_is_reported_and_not_scored(
    model: ScriptedModel, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.down = set(ENTITIES)
    assert main(command) == 1
    assert "6 of 6 questions have no answer" in capsys.readouterr().err
    model.down = {"Dalvak"}
    assert main(command) == 1
    said = capsys.readouterr()
    assert "1 of 6 questions have no answer" in said.err and "cannot do Dalvak" in said.err
    summary = read(tmp_path / "out" / "summary.json")
    assert (summary["questions"], summary["failed"], summary["metrics"]["em"]["mean"]) == (5, 1, 0.4)
    model.down, asked = set(), len(model.requests)
    assert main(command) == 0
    assert len(model.requests) == asked + 2
    assert read(tmp_path / "out" / "summary.json")["metrics"]["em"]["mean"] == 0.5
    for path in (tmp_path / "out").iterdir():
        assert KEY not in path.read_text()
    assert KEY not in said.out + said.err


def test_prompted_methods_and_one_of_ones_own(
    model: ScriptedModel, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"id": entity, "question": f"Where is {entity}?", "golden_answers": ["Temkin"]} for entity in ENTITIES]
    (tmp_path / "musique").mkdir()
    dataset = tmp_path / "musique" / "dev.jsonl"
    dataset.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (tmp_path / "mine.py").write_text(
        "async def twice(question, world):\n"
        "    await world.search(question)\n"
        "    await world.search(question + '?')\n"
        "    return world.attempt('no idea')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for method, searches, em in (("direct", 0, 1.0), ("rag", 1, 1.0), ("iter_retgen", 3, 1.0), ("mine:twice", 2, 0.0)):
        out = tmp_path / method
        arguments = [*command[:-1], "--method", method, "--dataset", str(dataset), "--out", str(out), "--limit", "4"]
        assert main(arguments) == 0
        means = {name: value["mean"] for name, value in read(out / "summary.json")["metrics"].items()}
        assert (means["num_searches"], means["em"]) == (searches, em)
        assert ("format_ok" in means, read(out / "run.json")["dataset"]) == (False, "musique")
        assert len(records(out)) == 4
    assert model.requests[0][1]["max_tokens"] == 64


def test_best_of_three_costs_three_attempts(model: ScriptedModel, command: list[str], tmp_path: Path) -> None:
    assert main([*command, "--best-of", "3", "--temperature", "0.7", "--seed", "5"]) == 0
    means = {name: value["mean"] for name, value in read(tmp_path / "out" / "summary.json")["metrics"].items()}
    assert (means["num_searches"], means["model_calls"], means["em"]) == (3, 6, 0.5)
    assert {request["seed"] for _, request in model.requests} == {5, 6, 7}
    assert all(len(record.queries) == 3 for record in records(tmp_path / "out").values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model-url", "http://127.0.0.1:9"], "http://127.0.0.1:9"),
        (["--model", "other"], "serves scripted"),
        (["--retriever", "http://127.0.0.1:9"], "http://127.0.0.1:9"),
        (["--response-length", "8192"], "--response-length 6"),
        (["--method", "direct", "prompt.style=base", "--max-tokens", "640"], "context of 640"),
        (["--method", "search_r2"], "unknown method 'search_r2'"),
        (["--tokenizer", "nowhere/to/be/found"], "--tokenizer"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_asked(
    model: ScriptedModel, command: list[str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    assert main([*command, *arguments]) == 1
    assert message in capsys.readouterr().err
    assert model.requests == []
    assert time.monotonic() - started < 10


def test_one_of_several_models_has_to_be_named(
    model: ScriptedModel, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with OpenAIServer(model, models=("scripted", "other"), max_model_len=640) as server:
        assert main([*command, "--model-url", server.url]) == 1
        assert "serves scripted, other; name one of these" in capsys.readouterr().err
        assert model.requests == []
        assert main([*command, "--model-url", server.url, "--model", "other"]) == 0


@pytest.mark.parametrize(("golden", "message"), [([""], "row 1: no golden answer"), (None, "holds no question")])
def test_dataset_that_cannot_be_scored_is_refused(
    model: ScriptedModel,
    command: list[str],
    tmp_path: Path,
    golden: Any,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = parquet.read_table(tmp_path / "questions.parquet").to_pylist()
    schema = parquet.read_schema(tmp_path / "questions.parquet")
    rows[1]["reward_model"]["ground_truth"] = golden
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist([] if golden is None else rows, schema=schema)
    parquet.write_table(table, tmp_path / "questions.parquet")
    assert main(command) == 1
    assert message in capsys.readouterr().err
    assert model.requests == []
