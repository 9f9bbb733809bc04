"""research-plugin report table: the published cells, ways of averaging, and own runs beside them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from research_plugin.cli import main
from research_plugin.reports.results import average, gains, published_rows
from research_plugin.reports.table_text import escape_latex


@pytest.mark.parametrize(("size", "em", "judge"), [("7b", 15.81, 17.56), ("32b", 14.82, 15.46)], ids=["7b", "32b"])
def test_the_papers_average_improvement_is_the_one_over_iter_retgen(size: str, em: float, judge: float) -> None:
    *baselines, _, instruct = published_rows(size)
    found = gains(instruct, [row for row in baselines if row.method == "iter_retgen"])
    assert [round(average(found, metric) or 0, 2) for metric in ("em", "judge")] == [em, judge]


@pytest.mark.parametrize(
    ("size", "em", "judge"),
    [
        ("7b", [9.16, 19.67, 13.61, 17.60], [11.40, 22.36, 17.29, 17.60]),
        ("32b", [6.92, 11.26, 13.91, 25.60], [8.90, 12.08, 18.45, 20.00]),
    ],
    ids=["7b", "32b"],
)
def test_gains_over_each_columns_best_baseline(size: str, em: list[float], judge: list[float]) -> None:
    *rows, instruct = published_rows(size)
    found = gains(instruct, [row for row in rows if row.is_baseline])
    for metric, expected in (("em", em), ("judge", judge)):
        assert [round(value, 2) for (_, name), value in found.items() if name == metric] == expected


def run_folder(folder: Path, metrics: dict[str, float], *, questions: int = 2_417, **facts: Any) -> Path:
    folder.mkdir(parents=True)
    facts = {"method": "research", "model": "mine", "prompt": "instruct", "dataset": "musique", "seed": 0} | facts
    (folder / "run.json").write_text(json.dumps(facts))
    values = {
        name: {"mean": value, "low": value - 0.1, "high": value + 0.1, "n": questions}
        for name, value in metrics.items()
    }
    (folder / "summary.json").write_text(json.dumps({"questions": questions, "metrics": values}))
    return folder


def report(*arguments: object) -> int:
    return main(["report", "table", *map(str, arguments)])


def lines(text: str) -> list[list[str]]:
    return [re.split(r" *\| *", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")]


def test_own_runs_stand_beside_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        run_folder(tmp_path / "a", {"em": 0.20, "f1": 0.3}),
        run_folder(tmp_path / "b", {"em": 0.24}, seed=1),
        run_folder(tmp_path / "c", {"em": 0.01}, prompt="base"),
        run_folder(tmp_path / "d", {"em": 0.08}, method="iter_retgen", prompt=""),
        run_folder(tmp_path / "e", {"em": 0.09}, method="ircot", prompt=""),
        run_folder(tmp_path / "f", {"em": 0.5}, dataset="bamboogle", questions=20),
    ]
    assert report(*runs, runs[0], "--published", "7b", "--metric", "em") == 0
    text = capsys.readouterr().out
    rows = lines(text)
    assert rows[0] == [
        *("method", "prompt", "model", "source"),
        *("hotpotqa em", "2wikimultihopqa em", "musique em", "bamboogle em", "average em"),
    ]
    assert rows[7][:5] == ["research", "instruct", "ReSearch-Qwen-7B-Instruct", "paper", "43.52"]
    own = rows[8:12]
    assert own[0] == ["research", "instruct", "mine", "own runs", "", "", "22.00 ± 2.83 (2)", "50.00", "36.00"]
    assert own[1] == ["research", "base", "mine", "own runs", "", "", "1.00"]  # no average: one set is missing
    gained = [row for row in rows[12:] if row[2] == "mine"]
    assert [row[:4] + row[6:7] for row in gained] == [
        ["research", "instruct", "mine", "iter_retgen", "+14.00"],
        ["research", "instruct", "mine", "best of each column", "+13.00"],
        ["research", "base", "mine", "iter_retgen", "-7.00"],
        ["research", "base", "mine", "best of each column", "-8.00"],
    ]
    assert "- f: bamboogle test: 20 rows, published are 125" in text
    assert "+15.81" in text


def test_files_are_written_and_their_numbers_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {"em": 0.25, "judge": 0.5, "num_searches": 2.5}
    run = run_folder(tmp_path / "a", numbers, model="my_model & co", dataset="my_set")
    assert report(run, "--published", "none", "--metric", "num_searches") == 0
    assert lines(capsys.readouterr().out)[2][4:] == ["2.50", "2.50"]  # a count is no share
    assert report(run, "--out", tmp_path / "out") == 0
    with (tmp_path / "out/table.csv").open(newline="") as file:
        found = {(line["model"], line["over"], line["dataset"], line["metric"]): line for line in csv.DictReader(file)}
    own = found["my_model & co", "", "my_set", "em"]
    assert [own[name] for name in ("value", "low", "high", "runs")] == ["25", "15", "35", "1"]
    assert found["ReSearch-Qwen-32B", "iter_retgen", "musique", "judge"]["value"] == "17.46"
    latex = (tmp_path / "out/table.tex").read_text()
    assert r"my\_model \& co" in latex and "my_model" not in latex
    header = next(line for line in latex.splitlines() if line.startswith("method"))
    assert re.search(r"\\begin\{tabular\}\{l{4}r{12}\}", latex) and header.count("&") == 15


def test_latex_is_escaped() -> None:
    assert escape_latex(r"a_b 50% \x{y} ±2 ~^") == (
        r"a\_b 50\% \textbackslash{}x\{y\} $\pm$2 \textasciitilde{}\textasciicircum{}"
    )


def test_rows_that_differ_in_more_than_the_seed_are_not_averaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        run_folder(tmp_path / "a", {"em": 0.2}, topk=3, temperature=0.0, questions=2_417),
        run_folder(tmp_path / "b", {"em": 0.4}, topk=5, temperature=0.0, questions=2_000, seed=1),
        run_folder(tmp_path / "c", {"em": 0.1}, method="rag x4 majority", topk=5, temperature=0.7),
    ]
    assert report(*runs, "--published", "none") == 0
    rows = lines(capsys.readouterr().out)
    assert [row[0] for row in rows[2:5]] == ["research (topk=3)", "research (topk=5)", "rag x4 majority"]
    assert rows[-1][3:5] == ["best of each column", "+30.00"]


def test_what_the_numbers_leave_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "a", {"em": 0.2})
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"failed": 2, "judge_unparsed": 1, "judge_missing": 0}))
    assert report(run) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("- ")]
    assert notes == [
        "- a: 2 of 2,417 questions failed, and are left out",
        "- a: 1 of 2,417 verdicts are unreadable, and are left out",
    ]


def test_the_same_run_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (run_folder(tmp_path / name, {"em": 0.2}) for name in "ab")
    assert report(one, other) == 1
    assert "the same evaluation with the same seed" in capsys.readouterr().err


def test_a_training_among_the_runs_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "a", {"em": 0.2})
    (tmp_path / "training").mkdir()
    (tmp_path / "training/run.json").write_text('{"recipe": "research_7b"}')
    (tmp_path / "log").touch()
    assert report(run, tmp_path / "training", tmp_path / "log") == 0
    text = capsys.readouterr().out
    assert "- training: no evaluation, left out\n" in text and "- log: no evaluation, left out\n" in text


def test_an_unfinished_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "a", {"em": 0.2})
    (run / "summary.json").unlink()
    assert report(run) == 1
    assert "summary.json cannot be read" in capsys.readouterr().err
    assert report(tmp_path / "nowhere") == 1
    assert "run.json cannot be read" in capsys.readouterr().err
    assert report("--published", "none") == 1


def test_what_another_version_lacks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "a", {"em": 0.2})
    (run / "summary.json").write_text('{"questions": 1}')
    assert report(run) == 1
    assert "lack metrics" in capsys.readouterr().err


def test_a_number_that_is_none_is_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "a", {"em": 0.2, "judge": float("nan")}, model="my\nmodel")
    assert report(run, "--published", "none") == 0
    assert lines(capsys.readouterr().out)[2] == ["research", "instruct", "my model", "own runs", "20.00", "", "20.00"]


def test_an_unknown_metric_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "a", {"em": 0.2})
    assert report(run, "--published", "none", "--metric", "exact") == 1
    assert "--metric exact: no row has it; known: em" in capsys.readouterr().err
