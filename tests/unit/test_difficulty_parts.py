"""Difficulty: the log of attempts, when sampling ends, buckets and mixes, and turns of a completions server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from stubs import SHORT, CharTokenizer

from research_plugin.data.attempts import AttemptLog, sample_until_right
from research_plugin.data.buckets import Bounds, draw_mixes, parse_mix
from research_plugin.data.rows import Row, make_row
from research_plugin.errors import ConfigError, DataError, SearchError
from research_plugin.protocol import SEARCH_R1
from research_plugin.served.model import ServedModel
from research_plugin.served.turns import read_turn

SETTINGS = {"model": "m", "limits": (1, 2)}


def attempts(path: Path) -> list[tuple[str, int, bool]]:
    return [(line["id"], line["attempt"], line["right"]) for line in map(json.loads, path.read_text().splitlines()[1:])]


class Script:
    """Attempts that are right from a given number on; counts them and those under way."""

    def __init__(self, right_at: Mapping[str, int], fail_at: int = -1) -> None:
        self.right_at, self.fail_at = right_at, fail_at
        self.made: list[str] = []
        self.running = self.most_running = 0

    async def __call__(self, question: str) -> dict[str, Any]:
        self.made.append(question)
        if len(self.made) == self.fail_at:
            raise SearchError("down")
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return {"right": self.made.count(question) >= self.right_at[question]}


def sample(script: Script, path: Path, *, most: int = 5, concurrency: int = 2) -> AttemptLog:
    with AttemptLog(path, SETTINGS) as log:
        asyncio.run(sample_until_right(list(script.right_at), script, log, most=most, concurrency=concurrency))
    return log


def test_a_question_is_attempted_until_right_or_the_most_are_made(tmp_path: Path) -> None:
    script = Script({"first": 1, "third": 3, "fifth": 5, "never": 99})
    log = sample(script, tmp_path / "log")
    assert log.first_right == {"first": 1, "third": 3, "fifth": 5}
    assert log.tried == {"first": 1, "third": 3, "fifth": 5, "never": 5}
    assert script.most_running == 2


def test_a_failed_attempt_ends_sampling_and_the_next_run_counts_every_attempt_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with pytest.raises(SearchError):
        sample(Script({"a": 99, "b": 99}, fail_at=4), path)
    before = attempts(path)
    assert 3 <= len(before) <= 4
    with path.open("a") as file:
        file.write('{"id": "a", "attempt"')  # torn by a kill
    log = sample(Script({"a": 1, "b": 99}), path)
    assert attempts(path)[: len(before)] == before
    numbers = {name: [number for row, number, _ in attempts(path) if row == name] for name in "ab"}
    assert numbers["b"] == [1, 2, 3, 4, 5]
    assert numbers["a"] == list(range(1, log.first_right["a"] + 1))
    assert sample(script := Script({"a": 1, "b": 1}), path).first_right == {"a": log.first_right["a"]}
    assert script.made == []


def test_more_attempts_go_on_where_fewer_ended(tmp_path: Path) -> None:
    sample(Script({"a": 99}), tmp_path / "log", most=2)
    script = Script({"a": 99})
    assert sample(script, tmp_path / "log", most=5).tried == {"a": 5}
    assert len(script.made) == 3


def test_decided_questions_are_told_once_and_not_again(tmp_path: Path) -> None:
    sample(Script({"a": 1}), tmp_path / "log")
    told: list[int] = []
    with AttemptLog(tmp_path / "log", SETTINGS) as log:
        script = Script({"a": 1, "b": 2, "c": 99})
        again = sample_until_right(
            ["a", "b", "c"], script, log, most=3, concurrency=8, on_decided=lambda: told.append(1)
        )
        asyncio.run(again)
    assert len(told) == 2


def test_log_refuses_other_settings_a_second_writer_and_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    sample(Script({"a": 1}), path)
    with pytest.raises(ConfigError, match=r"model: 'm' there, 'n' now"):
        AttemptLog(path, {**SETTINGS, "model": "n"})
    with AttemptLog(path, SETTINGS), pytest.raises(ConfigError, match="another process"):
        AttemptLog(path, SETTINGS)
    path.write_text(path.read_text() + '{"id": "b"}\n' + '{"id": "b", "attempt": 1, "right": true}\n')
    with pytest.raises(DataError, match=r"line 3: KeyError\('right'\)"):
        AttemptLog(path, SETTINGS)


def test_buckets_have_the_papers_limits() -> None:
    bounds = Bounds()
    assert [bounds.bucket(n) for n in (1, 9, 10, 20, 21, None)] == ["easy", "easy", "medium", "medium", "hard", "hard"]
    assert [Bounds(2, 2).bucket(n) for n in (1, 2, 3)] == ["easy", "medium", "hard"]
    for limits in ((0, 5), (6, 5)):
        with pytest.raises(ConfigError):
            Bounds(*limits)


def rows(source: str, count: int) -> list[Row]:
    return [make_row(source, "train", index, f"question {index}?", ["a"]) for index in range(count)]


def test_mixes_are_drawn_without_repetition_by_bucket_and_source() -> None:
    buckets = {"easy": [], "medium": rows("a", 5) + rows("org/b", 5), "hard": rows("c", 3)}
    mixes = dict(map(parse_mix, ["one=org/b/medium:3", "two=medium:7,hard:2"]))
    drawn = draw_mixes(mixes, buckets, seed=0)
    assert {row["data_source"] for row in drawn["one"]} == {"org/b"}
    ids = {name: [row["extra_info"]["id"] for row in rows] for name, rows in drawn.items()}
    assert (len(ids["one"]), len(ids["two"])) == (3, 9)
    assert len({*ids["one"], *ids["two"]}) == 12
    assert draw_mixes(mixes, buckets, seed=0) == drawn != draw_mixes(mixes, buckets, seed=1)
    with pytest.raises(ConfigError, match=r"mix two: 8 medium questions of any source are wanted and 7 are left"):
        draw_mixes(dict(map(parse_mix, ["one=org/b/medium:3", "two=medium:8"])), buckets, seed=0)


@pytest.mark.parametrize(
    "text", ["medium:3", "a=medium", "a=soft:3", "a=medium:0", "easy=medium:3", "../a=medium:3", "a="]
)
def test_mix_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=BUCKET:COUNT"):
        parse_mix(text)


class PromptCodec(CharTokenizer):
    def encode_prompt(self, text: str) -> list[int]:
        return self.sample(text)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"text": "a[q", "stop_reason": "]"}, "a[q]"),
        ({"text": "a[q]", "stop_reason": "]"}, "a[q]"),  # the server was set to keep it
        ({"text": "a[q", "stop_reason": None}, "a[q$"),  # the policy ended its turn within a search
        ({"text": "a[q", "stop_reason": 151645}, "a[q$"),
        ({"text": "a[q", "matched_stop": "]"}, "a[q]"),
        ({"text": "a[q"}, "a[q]"),
        ({"text": "a"}, "a$"),
        ({"text": "a[q", "finish_reason": "length", "stop_reason": None}, "a[q"),
    ],
)
def test_turn_gets_its_stop_string_or_end_token_back(choice: dict[str, Any], text: str) -> None:
    codec = PromptCodec()
    turn = read_turn({"finish_reason": "stop", **choice}, codec, SHORT)  # type: ignore[arg-type]
    assert codec.decode(turn.token_ids) == text
    assert not turn.aborted


@pytest.mark.parametrize(
    ("text", "closed"), [("<answer> 4", "</answer>"), ("<answer>4</answer> <search> q", "</search>")]
)
def test_server_that_does_not_say_which_stop_string_it_was(text: str, closed: str) -> None:
    codec = PromptCodec()
    turn = read_turn({"finish_reason": "stop", "text": text}, codec, SEARCH_R1)  # type: ignore[arg-type]
    assert codec.decode(turn.token_ids) == text + closed


def test_aborted_turn_is_no_attempt() -> None:
    assert read_turn({"finish_reason": "abort", "text": "a"}, PromptCodec(), SHORT).aborted  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["gpu1:8000", "ftp://gpu1", "", "http://me:secret@gpu1:8000", "http://gpu1?key=secret"])
def test_model_url_that_is_none_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--model-url") as raised:
        ServedModel(url)
    assert "secret" not in str(raised.value)
