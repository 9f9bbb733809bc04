"""examples/own_dialect: a dialect, prompt and reward of one's own in the package's turn loop, nothing of it touched."""

from __future__ import annotations

import argparse
import asyncio
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from research_plugin.config import AgentConfig, build_config
from research_plugin.evaluation.command import add_arguments
from research_plugin.evaluation.plan import make_plan
from research_plugin.prompts import load_prompt
from research_plugin.protocol import get_dialect
from research_plugin.rewards import METHODS

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "own_dialect"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module as a worker imports it: found on its path, named by the recipe's setting."""
    monkeypatch.syspath_prepend(str(FOLDER))
    known = dict(METHODS)
    dialect = get_dialect(build_config(AgentConfig, {"protocol": "my_dialect:LIBRARY", "search": URL}).protocol)
    module = sys.modules["my_dialect"]
    assert dialect is module.LIBRARY
    yield module
    del sys.modules["my_dialect"]
    METHODS.clear()
    METHODS.update(known)


URL = {"url": "http://127.0.0.1:8000"}


def play(example: Any, *script: str) -> tuple[Any, dict[str, Any]]:
    rollout = asyncio.run(example.play(script)).rollout
    info = {"segments": rollout.segments, "stop_reason": rollout.stop_reason}
    return rollout, example.compute_score("films", "", ["Ada Quill"], info, method="library")


def test_rollout_in_the_dialect_is_masked_and_scored(example: Any) -> None:
    rollout, score = play(example, "[ask]Glass Harbour[/ask]", "Her. [answer]Ada Quill[/answer]")
    assert [(segment.text, segment.by_policy) for segment in rollout.segments] == [
        ("[ask]Glass Harbour[/ask]", True),
        ("\n[shelf]\n1. Glass Harbour: A film directed by Ada Quill.\n[/shelf]\n", False),
        ("Her. [answer]Ada Quill[/answer]", True),
    ]
    assert rollout.response_mask == [1] * 24 + [0] * 66 + [1] * 31
    assert rollout.stop_reason == "answered"
    assert (score["score"], score["num_searches"], score["pred"]) == (1.0, 1, "Ada Quill")


def test_reward_is_the_examples_own(example: Any) -> None:
    assert play(example, "[answer]Ada Quill[/answer]")[1]["score"] == 0.5
    rollout, score = play(example, "who knows", "[/answer]")
    assert rollout.segments[1].text == example.LIBRARY.invalid_notice
    assert (score["score"], score["reason"]) == (0.0, "no answer block")
    assert play(example, "[ask]a[/ask]", "[answer]Bo[/answer]")[1]["score"] == 0.0


def test_prompt_names_every_tag_of_the_dialect(example: Any) -> None:
    text = load_prompt("my_dialect:LIBRARY", "instruct", str(FOLDER / "my_prompt.txt"))
    tags = (*example.LIBRARY.stop, example.LIBRARY.search_open, example.LIBRARY.result_open, "[answer]")
    assert [tag for tag in tags if tag not in text] == []


def test_example_runs_as_a_script(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "my_dialect.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1] == "score 1.0, searches 1, answer 'Ada Quill': F1 1.00"


def test_evaluation_takes_it_as_a_method(example: Any) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = ["--method", "library", "--dataset", "d.parquet", "--out", "o", "--model-url", "http://m:1"]
    settings = ["protocol=my_dialect:LIBRARY", f"search.url={URL['url']}"]
    plan = make_plan(parser.parse_args([*arguments, *settings]))
    assert plan.reward == "library" and plan.agent is not None
