"""Curves: which numbers of a run are drawn, and from where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rollout_samples import plain_rollout, write_run

from research_plugin.cli import main
from research_plugin.reports.curve_points import read_curves


def write_metrics(run: Path, *rows: tuple[int, dict[str, float | None]]) -> None:
    lines = (json.dumps({"step": step, "data": data}) for step, data in rows)
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_metrics_come_first_and_a_resumed_step_counts_once(tmp_path: Path) -> None:
    write_metrics(
        tmp_path,
        (0, {"val-core/a/reward/mean@1": 0.2, "val-core/b/reward/mean@1": 0.4, "val-aux/rollout/f1/mean": 0.3}),
        (1, {"critic/score/mean": 0.1, "rollout/generated_tokens/mean": 80.0, "rollout/f1/mean": None}),
        (1, {"critic/score/mean": 0.5}),
    )
    curves = read_curves(tmp_path, "run")
    assert dict(curves.train) == {"reward": {1: 0.5}, "generated_tokens": {1: 80.0}}
    assert curves.val["reward"] == {0: pytest.approx(0.3)}
    assert curves.val["f1"] == {0: 0.3}


def test_what_the_metrics_lack_is_averaged_over_records(tmp_path: Path) -> None:
    write_metrics(tmp_path, (4, {"critic/score/mean": 0.9}))
    records = [
        plain_rollout(4, split="train", scores={"score": 0.0, "f1": 0.2}, metrics={"retrieved_tokens": 10.0}),
        plain_rollout(4, split="train", scores={"score": 0.0, "f1": 0.6}, metrics={"retrieved_tokens": 30.0}),
        plain_rollout(5, scores={"score": 0.3, "f1": 1.0}),
        plain_rollout(5, scores={"score": float("nan")}),
    ]
    curves = read_curves(write_run(tmp_path, records), "run")
    assert curves.train["reward"] == {4: 0.9}
    assert curves.train["f1"] == {4: pytest.approx(0.4)}
    assert curves.train["retrieved_tokens"] == {4: 20.0}
    assert curves.val["reward"] == {5: 0.3}


@pytest.mark.parametrize(
    ("names", "message"),
    [(["empty"], "holds no steps"), (["a=run", "a=run"], "called the same"), (["gone"], "does not exist")],
)
def test_runs_that_cannot_be_drawn_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], names: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("run").mkdir()
    write_metrics(Path("run"), (1, {"critic/score/mean": 0.5}))
    assert main(["report", "curves", *names]) == 1
    assert message in capsys.readouterr().err


def test_a_runs_name_is_no_formula(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_metrics(tmp_path, (1, {"critic/score/mean": 0.5}))
    assert main(["report", "curves", f"a$b_{{c$={tmp_path}"]) == 0
    assert (tmp_path / "curves.png").is_file()


def test_a_training_of_one_step_is_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, path, **_: drawn.append(figure))
    write_metrics(tmp_path, (1, {"critic/score/mean": 0.5}))
    assert main(["report", "curves", str(tmp_path)]) == 0
    [line] = drawn[0].axes[0].lines
    assert line.get_marker() == "o"
