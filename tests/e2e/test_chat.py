"""`research-plugin chat` on the real things: the tiny model in vLLM, streamed, and the retriever server."""

from __future__ import annotations

import io

import pytest

from research_plugin.cli import main
from research_plugin.config import AgentConfig, PromptConfig
from research_plugin.data.rows import question_text, read_parquet
from research_plugin.data.tiny_files import TinyFiles, tiny_dir
from research_plugin.search.client import SearchClient
from research_plugin.search.settings import SearchConfig
from research_plugin.served.model import ServedModel
from research_plugin.served.rollouts import ServedRollouts
from research_plugin.served.streamed import StreamedModel

pytest.importorskip("vllm")
pytestmark = [pytest.mark.e2e, pytest.mark.verl]

TINY = TinyFiles(tiny_dir())


def questions() -> list[str]:
    return [question_text(row) for row in read_parquet([TINY.val]).values()][:6]


async def test_streamed_rollouts_are_those_of_an_evaluation(tiny_model_url: str, tiny_retriever_url: str) -> None:
    search = SearchConfig(url=tiny_retriever_url, topk=2)
    settings = AgentConfig(prompt=PromptConfig(style="question"), search=search)
    client, pieces = SearchClient(search), list[str]()

    async def find(query: str) -> object:
        return (await client.search(query)).documents

    streamed = StreamedModel(tiny_model_url)
    streamed.on_text = pieces.append
    rolled = []
    try:
        for model in (ServedModel(tiny_model_url), streamed):
            async with model:
                roll = ServedRollouts(model, find, settings, tokenizer=str(TINY.model), response_length=256)
                rolled.append([(await roll(question, temperature=0.0)).rollout for question in questions()])
    finally:
        await client.aclose()
    plain, seen = ([(rollout.segments, rollout.stop_reason) for rollout in made] for made in rolled)
    assert plain == seen
    assert any(len(rollout.segments) > 1 for rollout in rolled[0]), "no rollout of the tiny model searched"
    written = [segment.text for rollout in rolled[1] for segment in rollout.segments if segment.by_policy]
    turns = "".join(piece or "\0" for piece in pieces).split("\0")[1:]
    assert all(turn and text.startswith(turn) for text, turn in zip(written, turns, strict=True))
    assert len(pieces) > 5 * len(turns), "a turn comes in pieces"


def test_chat_answers_questions_from_a_pipe(
    tiny_model_url: str, tiny_retriever_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(questions())))
    arguments = ["--model-url", tiny_model_url, "--retriever", tiny_retriever_url, "--tokenizer", str(TINY.model)]
    assert main(["chat", *arguments, "--response-length", "256", "prompt.style=question", "search.topk=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[2:] for line in lines if line.startswith("> ")] == questions()
    assert len([line for line in lines if line.startswith("= ")]) == len(questions())
    assert any(line.startswith("search: ") for line in lines)
    assert any(line.startswith("  2 passages: ") for line in lines)
