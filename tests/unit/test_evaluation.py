"""Evaluation without a server: what a world counts, what an attempt scores, options, and questions left unanswered."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from research_plugin.data.rows import Row, make_row
from research_plugin.document import Document
from research_plugin.errors import ConfigError, DataError, ModelError, SearchError
from research_plugin.evaluation.command import add_arguments
from research_plugin.evaluation.method import Attempt, Settings, World, get_method
from research_plugin.evaluation.plan import Plan, make_plan, read_dataset
from research_plugin.evaluation.record import make_record
from research_plugin.evaluation.runner import RecordLog, answer_all
from research_plugin.records import RolloutRecord

QUESTION = "Where was Ida born?"
PASSAGES = [Document("3", "Ida\nBorn in Tessel {not a field}."), Document("4", "Eva\nBorn in Lom.")]
CONTEXT_FULL = ModelError("status 400: This model's maximum context length is 10 tokens.")


class Server:
    """Gives the replies of a script; an exception among them is raised."""

    def __init__(self, *replies: Any, **settings: Any) -> None:
        self.replies, self.requests = list(replies), list[tuple[str, Mapping[str, Any]]]()
        self.world = World(self.ask, self.find, Settings(**settings))

    async def ask(self, route: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.requests.append((route, request))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        choice = {"finish_reason": "stop"} | (
            {"text": reply} if route == "completions" else {"message": {"content": reply}}
        )
        return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}

    async def find(self, query: str) -> Sequence[Document]:
        return PASSAGES


async def test_direct_asks_the_question_alone() -> None:
    server = Server(" Tessel\n", temperature=0.5, seed=3)
    attempt = await get_method("direct")(QUESTION, server.world)
    assert attempt == Attempt("Tessel", [("Tessel", True)], prompt_tokens=7, generated_tokens=2, model_calls=1)
    route, request = server.requests[0]
    assert route == "chat/completions"
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert request["messages"][1]["content"] == f"Question: {QUESTION}"
    assert {key: request[key] for key in ("temperature", "top_p", "max_tokens", "seed")} == {
        "temperature": 0.5, "top_p": 1.0, "max_tokens": 1024, "seed": 3,
    }  # fmt: skip


async def test_rag_reads_the_passages_of_one_search() -> None:
    server = Server("Tessel")
    attempt = await get_method("rag")(QUESTION, server.world)
    assert (attempt.queries, attempt.documents) == ([QUESTION], [PASSAGES])
    assert [by_policy for _, by_policy in attempt.segments] == [False, True]
    assert "Born in Lom" in attempt.segments[0][0]
    system = server.requests[0][1]["messages"][0]["content"]
    assert "[1] Ida: Born in Tessel {not a field}.\n[2] Eva: Born in Lom." in system


async def test_base_model_reads_plain_text() -> None:
    server = Server("Tessel", base=True)
    await get_method("direct")(QUESTION, server.world)
    route, request = server.requests[0]
    assert route == "completions"
    assert request["prompt"].endswith(f"Question: {QUESTION}\nAnswer:")
    assert "seed" not in request


async def test_full_context_is_a_fault_at_first_and_the_methods_own_later() -> None:
    with pytest.raises(ModelError):
        await Server(CONTEXT_FULL).world.complete("long")
    server = Server("one", CONTEXT_FULL, ModelError("status 500"))
    await server.world.complete("short")
    reply = await server.world.complete("long")
    assert (reply.text, reply.complete) == ("", False)
    with pytest.raises(ModelError, match="500"):
        await server.world.complete("short")


def test_another_attempt_has_counts_and_a_seed_of_its_own() -> None:
    world = Server(seed=3).world.again(2)
    assert world.settings.seed == 5
    assert Server().world.again(2).settings.seed is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rga", "allowed: research, r1_searcher, search_r1, direct, rag"),
        ("no_module:f", "no_module"),
        ("json:f", "'f'"),
    ],
)
def test_unknown_method_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_method(name)


def row(index: int = 0, golden: str = "Tessel") -> Row:
    return make_row("towns", "test", index, QUESTION, [golden, "Texel"])


def test_record_of_a_prompted_attempt() -> None:
    attempt = Attempt(
        "The Tessel", [("found", False), ("Tessel", True)], ["a", "A"], [PASSAGES, []], "max_length", 30, 4, None, 2
    )
    record = make_record(row(), attempt, reward=None, seconds=1.5)
    assert record.scores == {
        "f1": 1.0, "em": 1.0, "cem": 1.0, "precision": 1.0, "recall": 1.0,
        "answered": 1.0, "truncated": 1.0, "num_searches": 2.0,
    }  # fmt: skip
    assert record.metrics == {
        "num_searches": 2.0, "num_repeated_queries": 1.0, "golden_in_results": 1.0, "prompt_tokens": 30.0,
        "generated_tokens": 4.0, "model_calls": 2.0, "seconds": 1.5,
    }  # fmt: skip
    assert (record.id, record.split, record.data_source) == ("towns-test-00000", "eval", "towns")
    assert record.golden_answers == ["Tessel", "Texel"]
    assert record.documents[0][0] == {"id": "3", "contents": PASSAGES[0].contents}
    nothing = make_record(row(), Attempt(), reward=None, seconds=0.0)
    assert (nothing.pred, nothing.scores["answered"], nothing.scores["f1"]) == ("", 0.0, 0.0)


def test_record_of_an_agentic_attempt_is_judged_by_its_reward() -> None:
    own = "<think> so </think> <answer> \\boxed{Tessel} </answer>"
    record = make_record(row(), Attempt("Tessel", [(own, True)], retrieved_tokens=0), reward="research", seconds=0.0)
    assert (record.scores["score"], record.scores["format_ok"], record.scores["precision"]) == (1.0, 1.0, 1.0)
    assert record.reason and record.metrics["retrieved_tokens"] == 0.0
    spoilt = make_record(row(), Attempt("Tessel", [(own[1:], True)]), reward="research", seconds=0.0)
    assert spoilt.scores["format_ok"] == 0.0


def plan(*arguments: str) -> Plan:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    needed = ["--model-url", "http://m:1", "--dataset", "d.parquet", "--out", "o"]
    return make_plan(parser.parse_args([*arguments, *needed]))


def test_plan_of_an_agentic_method() -> None:
    made = plan("--method", "r1_searcher", "--retriever", "http://127.0.0.1:1", "search.api=queries", "search.topk=3")
    assert made.agent is not None and made.search is made.agent.search
    assert (made.reward, made.agent.protocol, made.prompt.style) == ("r1_searcher_stage2", "r1_searcher", "instruct")
    assert (made.search.url, made.search.api, made.search.topk) == ("http://127.0.0.1:1", "queries", 3)
    assert made.settings.seed is None


def test_plan_of_a_prompted_method() -> None:
    made = plan("--method", "rag", "--retriever", "http://127.0.0.1:1", "--temperature", "0.7", "prompt.style=base")
    assert (made.reward, made.agent) == (None, None)
    assert (made.settings.base, made.settings.seed) == (True, 0)
    assert plan("--method", "direct").search is None
    assert plan("--method", "research_plugin.evaluation.prompted:rag").search is None  # who knows whether it searches


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "ragg"], "unknown method 'ragg'"),
        (["--method", "rag"], "give --retriever"),
        (["--method", "research"], "search.url: not set"),
        (["--method", "rag", "--retriever", "http://RETRIEVER:8000/search"], "names a route"),
        (["--method", "research", "--retriever", "http://127.0.0.1:1", "protocol=search_r1"], "speaks research"),
        (["--method", "direct", "max_searches=3"], "has no max_searches"),
        (["--method", "direct", "prompt.file=mine.txt"], "prompts of its own"),
        (["--method", "direct", "prompt.style=question"], "prompts of its own"),
        (["--method", "direct", "--best-of", "3"], "--temperature 0"),
        (["--method", "research", "--retriever", "http://127.0.0.1:1", "max_serches=3"], "max_serches; allowed"),
        (["--method", "direct", "nonsense"], "key=value"),
    ],
)
def test_plan_that_cannot_be_carried_out_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(*arguments)


def test_jsonl_is_called_after_its_file_or_its_folder(tmp_path: Path) -> None:
    line = json.dumps({"id": "x7", "question": QUESTION, "golden_answers": ["Tessel"]}) + "\n"
    (tmp_path / "hotpotqa").mkdir()
    for path, name in (("hotpotqa/dev.jsonl", "hotpotqa"), ("towns.jsonl", "towns")):
        (tmp_path / path).write_text(line * 4, encoding="utf-8")
        assert {row["data_source"] for row in read_dataset(tmp_path / path, None, None, 0)} == {name}
        assert {row["data_source"] for row in read_dataset(tmp_path / path, "mine", None, 0)} == {"mine"}
    drawn = [[row["extra_info"]["index"] for row in read_dataset(tmp_path / path, None, 2, seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(read_dataset(tmp_path / path, None, 99, 0)) == 4
    (tmp_path / path).write_text(line + json.dumps({"question": QUESTION, "golden_answers": []}), encoding="utf-8")
    with pytest.raises(DataError, match=r"towns.jsonl:2: no golden answer"):
        read_dataset(tmp_path / path, None, None, 0)


class Attempts:
    """Answers a question; those in ``down`` fail."""

    def __init__(self, *down: int) -> None:
        self.down, self.made = down, list[int]()

    async def __call__(self, row: Row) -> RolloutRecord:
        index = row["extra_info"]["index"]
        self.made.append(index)
        if index in self.down:
            raise (SearchError if index % 2 else ModelError)(f"{index} is down")
        return make_record(row, Attempt("Tessel"), reward=None, seconds=0.0)


async def test_fault_is_no_answer_and_the_next_run_tries_it_again(tmp_path: Path) -> None:
    rows = [row(index) for index in range(6)]
    path = tmp_path / "records.jsonl"
    with RecordLog(path) as log:
        faults = await answer_all(rows, Attempts(1, 4), log, concurrency=2)
    assert faults == {"towns-test-00001": "1 is down", "towns-test-00004": "4 is down"}
    assert len(path.read_text().splitlines()) == 4
    with path.open("a") as file:
        file.write('{"question": "torn')
    again = Attempts()
    with RecordLog(path) as log:
        assert await answer_all(rows, again, log, concurrency=2) == {}
    assert sorted(again.made) == [1, 4]
    ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert sorted(ids) == sorted({row["extra_info"]["id"] for row in rows})


async def test_a_run_in_which_nothing_works_ends_early(tmp_path: Path) -> None:
    attempts = Attempts(*range(10, 100))
    with RecordLog(tmp_path / "records.jsonl") as log:
        await answer_all([row(index) for index in range(100)], attempts, log, concurrency=3)
        assert len(log.records) == 10
    assert 30 <= len(attempts.made) < 35


def test_log_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"attempt": 1}\n')
    with pytest.raises(DataError, match="line 1 is no rollout record"):
        RecordLog(tmp_path / "records.jsonl")
