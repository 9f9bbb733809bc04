"""`research-plugin eval` for real: a tiny model that was just trained, in vLLM, the retriever server, every method.

The prompted methods score next to nothing: the model knows no English, only the tiny world. That they run is the point.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from research_plugin.cli import main
from research_plugin.data.tiny_files import TinyFiles, tiny_dir
from research_plugin.records import RolloutRecord, parse_record

pytest.importorskip("vllm")
pytestmark = [pytest.mark.e2e, pytest.mark.verl]

TINY = TinyFiles(tiny_dir())
AGENTIC = ("research", "r1_searcher", "search_r1")
PROMPTED = ("direct", "rag", "iter_retgen", "ircot", "search_o1")
QUESTIONS = 40


@pytest.fixture(scope="module")
def model_url(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from model_server import serve_model

    (model,) = tiny_run.glob("global_step_*/actor/huggingface")
    with serve_model(model, tmp_path_factory.mktemp("trained") / "log") as url:
        yield url


@pytest.fixture(scope="module")
def runs(model_url: str, tiny_retriever_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each method's run over the same questions."""
    folder = tmp_path_factory.mktemp("runs")
    for method in (*AGENTIC, *PROMPTED):
        arguments = [
            "--dataset", TINY.val, "--limit", QUESTIONS, "--out", folder / method, "--model-url", model_url,
            "--retriever", tiny_retriever_url, "--tokenizer", TINY.model, "search.topk=2", "--max-tokens", 48,
            "--response-length", 320 if method == "research" else 160,
        ]  # fmt: skip
        # The question alone is the prompt that the tiny model was trained with.
        style = ["prompt.style=question"] if method == "research" else []
        assert main(["eval", "--method", method, *map(str, arguments), *style]) == 0
    return folder


def summary(runs: Path, method: str) -> dict[str, Any]:
    found = json.loads((runs / method / "summary.json").read_text())
    return {name: value["mean"] for name, value in found["metrics"].items()} | {"failed": found["failed"]}


def records(runs: Path, method: str) -> list[RolloutRecord]:
    return [parse_record(line) for line in (runs / method / "records.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize("method", [*AGENTIC, *PROMPTED])
def test_method_answers_every_question_once(runs: Path, method: str) -> None:
    found = records(runs, method)
    assert len({record.id for record in found}) == len(found) == QUESTIONS
    assert {record.method for record in found} == {method}
    assert summary(runs, method)["failed"] == 0
    assert all(record.metrics["prompt_tokens"] > 0 and record.metrics["model_calls"] >= 1 for record in found)


def test_trained_model_beats_direct_and_rag_and_the_table_shows_it(runs: Path, tmp_path: Path) -> None:
    research = summary(runs, "research")
    assert research["em"] > max(summary(runs, "direct")["em"], summary(runs, "rag")["em"]) + 0.15
    assert research["num_searches"] > 1 and research["format_ok"] > 0.8 and research["golden_in_results"] > 0.3
    folders = [str(runs / method) for method in (*AGENTIC, *PROMPTED)]
    assert main(["report", "table", *folders, "--published", "none", "--metric", "em", "--out", str(tmp_path)]) == 0
    rows = csv.DictReader((tmp_path / "table.csv").open())
    table = {row["method"]: row for row in rows if not row["over"]}
    assert set(table) == {*AGENTIC, *PROMPTED}
    assert float(table["research"]["value"]) == pytest.approx(100 * research["em"], abs=0.1)
    assert "| research" in (tmp_path / "table.md").read_text()


def test_agentic_rollout_is_what_training_makes_of_the_same_model(runs: Path, tiny_run: Path) -> None:
    """Its last validation asked the same questions, greedily: most answers are equal to a token."""
    validated = {}
    for line in (sorted((tiny_run / "validation").glob("*.jsonl"), key=lambda path: int(path.stem))[-1]).open():
        row = json.loads(line)
        validated[row["input"]] = row["output"]
    same = [
        any(record.question in prompt and record.response in output for prompt, output in validated.items())
        for record in records(runs, "research")
        if any(record.question in prompt for prompt in validated)
    ]
    assert len(same) >= 10
    assert sum(same) >= 0.9 * len(same)


def test_rag_reads_what_the_retriever_serves(runs: Path) -> None:
    passages = {json.loads(line)["contents"] for line in TINY.corpus.read_text().splitlines()}
    for record in records(runs, "rag"):
        assert record.queries == [record.question]
        assert [document["contents"] in passages for document in record.documents[0]] == [True, True]
