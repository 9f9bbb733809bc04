"""research-plugin data prepare: real files, small ones and full-sized ones."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from research_plugin.cli import main
from research_plugin.data.prepare import draw
from research_plugin.data.published_sets import PUBLISHED_SETS, count_problem
from research_plugin.data.questions import answers_of, question_of, read_rows
from research_plugin.errors import ConfigError, DataError


def write(path: Path, values: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def questions(count: int, split: str) -> list[dict[str, Any]]:
    return [{"id": f"{split}_{n}", "question": f"{split} {n}?", "golden_answers": [f"a{n}"]} for n in range(count)]


def prepare(*arguments: object) -> int:
    return main(["data", "prepare", *map(str, arguments)])


def table(path: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("values", "golds"),
    [
        ({"golden_answers": ["Paris", "Lutetia"]}, ["Paris", "Lutetia"]),
        ({"answer": "Paris"}, ["Paris"]),
        ({"answers": ["Paris", "Paris"]}, ["Paris"]),
        ({"ground_truth": {"target": ["Paris"]}}, ["Paris"]),
        ({"reward_model": {"style": "rule", "ground_truth": ["Paris"]}}, ["Paris"]),
        ({"reward_model": {"ground_truth": {"target": "Paris"}}}, ["Paris"]),
        ({"target": ["Paris"]}, ["Paris"]),
        ({"answer": "Paris", "answer_aliases": ["Lutetia", "Paris"]}, ["Paris", "Lutetia"]),
        ({"golden_answers": [], "answer": 1961}, ["1961"]),
    ],
)
def test_answers_are_found_under_any_name(values: dict[str, Any], golds: list[str]) -> None:
    assert answers_of(values) == golds


def test_question_is_found_under_any_name() -> None:
    assert question_of({"query": "Who?"}) == "Who?"
    assert question_of({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "Who?"}]}) == "Who?"
    with pytest.raises(DataError, match=r"fields: text.*question, query"):
        question_of({"text": "Who?"})


def test_broken_lines_are_named_by_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(
        b'{"question": "a?", "answer": "b"}\n\n{"question": "a?"\n["x"]\n{"question": " ", "answer": "b"}\n'
        b'{"question": "a?", "answer": [""]}\n{"question": "\xff", "answer": "b"}\n'
        b'{"question": "\\ud83d", "answer": "b"}\n' + b"[" * 100_000 + b"\n"
    )
    with pytest.raises(DataError) as caught:
        read_rows(path, "mine", "test")
    named = [line.split(":")[1] for line in str(caught.value).splitlines()[1:-1]]
    assert named == ["3", "4", "5", "6", "7"]
    assert str(caught.value).endswith("... and 2 more")


def test_musique_is_written_with_train_val_and_dev(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dev = questions(2_417, "dev")
    dev[7]["question"] = "Train 11"  # the train set's "train 11?", punctuation and case aside
    source = write(tmp_path / "flashrag/musique/train.jsonl", questions(19_938, "train"))
    write(tmp_path / "flashrag/musique/dev.jsonl", dev)
    out = tmp_path / "out"
    assert prepare("musique", "--from", tmp_path / "flashrag", "--out", out) == 0
    captured = capsys.readouterr()
    assert "train.parquet  19,938 rows" in captured.out
    assert "note: 1 questions are in train and in dev, such as 'train 11'" in captured.err

    assert {path.name for path in out.iterdir()} == {"train.parquet", "dev.parquet", "val.parquet", "manifest.json"}
    manifest = json.loads((out / "manifest.json").read_text())
    assert {name: facts["rows"] for name, facts in manifest["files"].items()} == {
        "train.parquet": 19_938, "dev.parquet": 2_417, "val.parquet": 100,
    }  # fmt: skip
    assert manifest["seed"] == 42
    assert manifest["sources"]["train"]["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    for name, facts in manifest["files"].items():
        assert facts["sha256"] == hashlib.sha256((out / name).read_bytes()).hexdigest()

    row = table(out / "dev.parquet")[3]
    assert row["prompt"] == [{"role": "user", "content": "dev 3?"}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": ["a3"]}
    assert row["extra_info"] == {"id": "musique-dev-00003", "split": "dev", "index": 3, "question": "dev 3?"}
    order = list(range(2_417))
    random.Random(42).shuffle(order)
    assert [row["extra_info"]["index"] for row in table(out / "val.parquet")] == order[:100]


def test_the_seed_changes_the_draw_only(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "q.jsonl", questions(300, "dev")), "mine", "dev")
    assert draw(rows, 100, 1) == draw(rows, 100, 1) != draw(rows, 100, 2)
    with pytest.raises(ConfigError, match="--val 301: from 1 to the 300"):
        draw(rows, 301, 1)


def test_another_number_of_rows_is_refused_with_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "bamboogle/test.jsonl", questions(124, "test"))
    arguments = ("bamboogle", "--from", tmp_path, "--out", tmp_path / "out")
    assert prepare(*arguments) == 1
    error = capsys.readouterr().err
    assert "bamboogle test: 124 rows, published are 125" in error and "--any-count" in error
    assert not (tmp_path / "out").exists()
    assert prepare(*arguments, "--any-count") == 0
    assert json.loads((tmp_path / "out/manifest.json").read_text())["notes"] == [
        "bamboogle test: 124 rows, published are 125"
    ]


def test_a_test_split_that_is_really_dev_is_refused() -> None:
    problem = count_problem("musique", "test", 2_417)
    assert problem and "no public answers" in problem and "2,417 is the number of its dev split" in problem
    problem = count_problem("musique", "train", 2_417)
    assert problem and "published are 19,938; 2,417 is the number of its dev split" in problem
    published = [(n, s, c) for n, known in PUBLISHED_SETS.items() for s, c in known.rows.items()]
    assert not any(count_problem(*values) for values in published)
    assert count_problem("mine", "test", 3) is None


def test_a_file_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "mine.jsonl", [{"query": "Who?", "target": "me"}])
    assert prepare(path) == 0
    assert table(tmp_path / "data/mine/test.parquet")[0]["data_source"] == "mine"
    assert prepare("other", "--from", path, "--split", "train", "--out", "o") == 0
    assert table(tmp_path / "o/train.parquet")[0]["extra_info"]["id"] == "other-train-00000"


def test_one_file_cannot_be_two_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "q.jsonl", questions(3, "dev"))
    assert prepare("musique", "--from", path) == 1
    assert "one file" in capsys.readouterr().err
    assert prepare("nowhere.jsonl") == 1
    assert "neither a file nor one of musique" in capsys.readouterr().err


def test_nothing_is_replaced_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(tmp_path / "q.jsonl", questions(3, "dev")), tmp_path / "out"
    assert prepare("mine", "--from", path, "--out", out) == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def full(rows: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("research_plugin.data.prepare.write_parquet", full)
    assert prepare("mine", "--from", write(path, questions(4, "dev")), "--out", out) == 1
    assert "no space left on device" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_without_network_or_library_the_error_says_what_to_fetch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as if it were not installed
    assert prepare("musique") == 1
    error = capsys.readouterr().err
    assert "hf download RUC-NLPIR/FlashRAG_datasets musique/train.jsonl musique/dev.jsonl --repo-type" in error
    assert "--from flashrag" in error
