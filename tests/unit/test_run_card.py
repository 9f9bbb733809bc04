"""The run card: costs and results of a run that ended, was killed, or was resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from research_plugin.errors import DataError
from research_plugin.reports.command import add_arguments, run
from research_plugin.reports.run_card import build_card, card_markdown, write_card
from research_plugin.reports.summary import keep_metrics, read_metrics

START = 1_800_000_000.0
RUN = {
    "recipe": "research_7b",
    "state": "running, or stopped",
    "overrides": ["+recipe=research_7b", "trainer.experiment_name=a|b"],
    "versions": {"verl": "0.9.1"},
    "model": "some/model",
    "data": {"train.parquet": "sha256 ab, 12 bytes"},
    "prompt": "instruct",
    "protocol": "research",
    "reward": "method=research",
    "retriever": {"http://host:8000": {"engine": "dense", "size": 21_015_324}},
    "gpus": 8,
    "attempts": [{"started": START}],
}


def step(generated: float, searches: float, **more: float) -> dict[str, float]:
    return {
        "training/global_step": 1,
        "rollout/generated_tokens/total": generated,
        "rollout/retrieved_tokens/total": 2 * generated,
        "rollout/num_searches/total": searches,
        "rollout/cache_hits/share": 0.25,
        **more,
    }


def validation(reward: float) -> dict[str, float]:
    return {
        "val-core/nq/reward/mean@1": reward,
        "val-aux/nq/f1/mean@1": reward / 2,
        "val-aux/rollout/generated_tokens/total": 1000.0,
        "val-aux/rollout/num_searches/total": 8.0,
    }


def write(folder: Path, rows: list[tuple[int, dict[str, Any]]], hours: float, tail: str = "") -> None:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": number, "data": data}) + "\n" for number, data in rows) + tail)
    os.utime(path, (START + hours * 3600,) * 2)


ROWS = [
    (0, validation(0.1)),
    (1, step(100, 4)),
    (2, {**step(50, 8), **validation(0.6)}),
    (3, step(0, 0)),
    (4, {**step(10, 0), **validation(0.4)}),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    write(tmp_path, ROWS, hours=1.5, tail='{"step": 5, "da')  # killed while it wrote
    return tmp_path


def test_card_of_a_killed_run_by_hand(folder: Path) -> None:
    card = build_card(folder)
    assert {key: card[key] for key in ("steps", "hours", "gpu_hours", "alarms")} == {
        "steps": 4, "hours": 1.5, "gpu_hours": 12.0, "alarms": [],
    }  # fmt: skip
    assert card["training"] == {
        "generated_tokens": 160, "retrieved_tokens": 320, "searches": 12, "retrieval_calls": 9,
    }  # fmt: skip
    assert card["validations"] == {
        "generated_tokens": 3000, "retrieved_tokens": 0, "searches": 24, "retrieval_calls": 24,
    }  # fmt: skip
    assert card["validation"] == {
        "first": {"step": 0, "reward": 0.1, "f1": 0.05},
        "best": {"step": 2, "reward": 0.6, "f1": 0.3},
        "last": {"step": 4, "reward": 0.4, "f1": 0.2},
    }


def test_page_says_what_ran(folder: Path) -> None:
    page = card_markdown(build_card(folder))
    assert "| recipe | research_7b |" in page
    assert "`trainer.experiment_name=a\\|b`" in page
    assert "http://host:8000 engine dense, size 21015324" in page
    assert "1.50 h on 8 GPUs = 12.0 GPU hours" in page
    assert "| best | 2 | 0.600 | 0.300 |" in page
    assert "No alarm" in page
    rows = [line for line in page.splitlines() if line.startswith("| ") and "validation |" in line]
    assert {line.replace("\\|", "").count("|") for line in rows} == {8}


def test_a_resumed_run_counts_every_step_once_and_every_hour(folder: Path) -> None:
    keep_metrics(folder / "metrics.jsonl")
    assert not (folder / "metrics.jsonl").exists()
    attempts = [{"started": START, "ended": START + 5400}, {"started": START + 7200}]
    (folder / "run.json").write_text(json.dumps({**RUN, "attempts": attempts}))
    assert build_card(folder)["hours"] == 1.5  # no line yet
    write(folder, [(2, step(1000, 0)), (3, {**step(0, 0), **validation(0.9)})], hours=3.0)
    assert [number for number, _ in read_metrics(folder / "metrics.jsonl")] == [0, 1, 2, 3]
    card = build_card(folder)
    assert (card["hours"], card["steps"], card["training"]["generated_tokens"]) == (2.5, 3, 1100)
    assert card["validation"]["best"]["step"] == 3
    keep_metrics(folder / "metrics.jsonl")
    assert sorted(path.name for path in folder.glob("metrics*")) == ["metrics.1.jsonl", "metrics.2.jsonl"]


def test_alarms_are_on_the_card(folder: Path) -> None:
    shares = [0.1] * 5 + [0.9] * 5
    write(folder, [(i, step(1, 1, **{"health/repetition/share": v})) for i, v in enumerate(shares, 1)], hours=1)
    assert build_card(folder)["alarms"] == ["step 10: text that repeats itself 0.9 (0.1 in the first 5 steps)"]
    assert "- step 10: text that repeats itself" in card_markdown(build_card(folder))


def test_card_before_the_first_line_of_metrics(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({**RUN, "gpus": 0, "overrides": []}))
    page = write_card(tmp_path).read_text()
    assert "0.00 h on 0 GPUs" in page
    assert json.loads((tmp_path / "run_card.json").read_text())["validation"] == {}


@pytest.mark.parametrize("text", [None, "", "[]", "{}"])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(DataError, match=r"holds no readable run\.json"):
        build_card(tmp_path)


def test_command_writes_and_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert run(parser.parse_args(["card", str(folder)])) == 0
    assert (folder / "run_card.md").read_text() in capsys.readouterr().out


def test_a_run_file_of_another_version_is_refused(folder: Path) -> None:
    (folder / "run.json").write_text(json.dumps({key: value for key, value in RUN.items() if key != "reward"}))
    with pytest.raises(DataError, match=r"run\.json is not what this version writes \(KeyError\('reward'\)\)"):
        write_card(folder)
