"""Before and after, read from the lines of veRL's file logger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from research_plugin.errors import DataError
from research_plugin.reports.summary import format_table, read_metrics, summarize, validation_metrics


def log(path: Path, *rows: tuple[int, dict[str, Any]], tail: bytes = b"") -> Path:
    lines = [json.dumps({"step": step, "data": data}, ensure_ascii=False) + "\n" for step, data in rows]
    path.write_bytes("".join(lines).encode() + tail)
    return path


BEFORE = {
    "val-core/tiny/reward/mean@1": 0.1,
    "val-aux/tiny/f1/mean@1": 0.2,
    "val-aux/tiny/num_searches/mean@1": 1.0,
    "val-aux/tiny/pred_len/mean@1": 9.0,
    "val-aux/num_turns/mean": 3.0,
}
AFTER = {"val-core/tiny/reward/mean@1": 0.75, "val-aux/tiny/f1/mean@1": 0.8, "val-aux/tiny/num_searches/mean@1": 2.0}
STEP = {"actor/loss": 0.5, "training/global_step": 1}


def test_summarize_takes_the_first_and_the_last_validation(tmp_path: Path) -> None:
    rows = [(0, BEFORE), (1, STEP), (2, {**STEP, "val-core/tiny/reward/mean@1": 0.3}), (3, AFTER), (4, STEP)]
    assert summarize(log(tmp_path / "m.jsonl", *rows), 12.3456) == {
        "before": {"reward": 0.1, "f1": 0.2, "num_searches": 1.0},
        "after": {"reward": 0.75, "f1": 0.8, "num_searches": 2.0},
        "minutes": 12.35,
        "steps": 4,
    }


def test_one_validation_is_both(tmp_path: Path) -> None:
    summary = summarize(log(tmp_path / "m.jsonl", (0, BEFORE)), 0)
    assert summary["before"] == summary["after"] == {"reward": 0.1, "f1": 0.2, "num_searches": 1.0}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"val-core/a/reward/mean@1": 0.2, "val-core/b/reward/mean@1": 0.6}, {"reward": 0.4}),
        ({"val-core/org/set-1/em/mean@16": 1}, {"em": 1.0}),
        ({"val-aux/a/em/best@4/mean": 1.0, "val-aux/a/em/std@4": 1.0, "train/a/em/mean@1": 1.0}, {}),
        ({}, {}),
    ],
    ids=["two-sources", "slash-in-source", "other-statistics", "none"],
)
def test_validation_metrics(data: dict[str, Any], expected: dict[str, float]) -> None:
    assert validation_metrics(data) == pytest.approx(expected)


@pytest.mark.parametrize("tail", [b'{"step": 5, "da', b'{"step": 5, "data": {"caf\xc3', b"\n\n", b"5", b""])
def test_last_line_cut_by_a_kill_is_left_out(tmp_path: Path, tail: bytes) -> None:
    assert [step for step, _ in read_metrics(log(tmp_path / "m.jsonl", (0, BEFORE), (1, STEP), tail=tail))] == [0, 1]


def test_line_separators_inside_a_name_do_not_end_a_line(tmp_path: Path) -> None:
    path = log(tmp_path / "m.jsonl", (0, {"a\u2028b": 1}), (1, STEP))
    assert read_metrics(path) == [(0, {"a\u2028b": 1}), (1, STEP)]


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 0, "data": {"a": null, "b": "x", "c": NaN, "d": 1e999, "e": 0.5}}\n')
    assert read_metrics(path) == [(0, {"e": 0.5})]


@pytest.mark.parametrize(
    "line", [b"{", b"5", b"[]", b'{"step": 1}', b'{"step": "x", "data": {}}', b'{"step": 1, "data": 5}', b"\xff"]
)
def test_broken_line_in_the_middle_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 0, "data": {}}\n' + line + b'\n{"step": 2, "data": {}}\n')
    with pytest.raises(DataError, match=r"m\.jsonl:2 is not a line of veRL's file logger"):
        read_metrics(path)


def test_no_file_and_no_validation(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.jsonl does not exist.*trainer\.logger must contain 'file'"):
        summarize(tmp_path / "gone.jsonl", 1)
    with pytest.raises(DataError, match=r"holds no validation \(trainer\.val_before_train and trainer\.test_freq"):
        summarize(log(tmp_path / "m.jsonl", (1, STEP)), 1)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="holds no validation"):
        summarize(tmp_path / "empty.jsonl", 1)


def test_format_table_by_hand() -> None:
    summary = {
        "before": {"reward": 0.1, "f1": 0.2, "em": 0.0},
        "after": {"reward": 0.75, "f1": 0.8, "num_searches": 2.0},
        "minutes": 12.35,
        "steps": 4,
    }
    assert format_table(summary).splitlines() == [
        "greedy, held-out questions    before   after",
        "validation reward              0.100   0.750",
        "F1                             0.200   0.800",
        "4 steps, 12.3 minutes",
    ]
