"""A run's folder of records: whole files, a bounded size, readable after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from research_plugin.records import RolloutRecord
from research_plugin.reports.read_records import RunRecords
from research_plugin.reports.records_folder import record_file, trim_records, write_records


def record(question: str, step: int = 0) -> RolloutRecord:
    return RolloutRecord(question, ["a"], [("x", True)], step=step)


def questions(run: Path) -> list[str]:
    return [record.question for _, record in RunRecords(run).new()]


def test_records_come_back_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for split, step in (("train", 12), ("val", 2), ("train", 2), ("val", 0)):
        write_records(record_file(tmp_path, split, step), [record(f"{split}{step}", step), record("second")])
    assert [path.name for path in RunRecords(tmp_path).files()] == [
        "val_000000.jsonl", "train_000002.jsonl", "val_000002.jsonl", "train_000012.jsonl",
    ]  # fmt: skip
    assert questions(tmp_path)[::2] == ["val0", "train2", "val2", "train12"]


def test_a_step_that_is_written_again_replaces_the_first(tmp_path: Path) -> None:
    for question in ("before the resume", "after it"):
        write_records(record_file(tmp_path, "train", 3), [record(question)])
    assert questions(tmp_path) == ["after it"]


def test_a_write_that_is_interrupted_leaves_what_was_there(tmp_path: Path) -> None:
    path = record_file(tmp_path, "train", 3)
    write_records(path, [record("good")])

    def broken() -> object:
        yield record("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(path, broken())  # type: ignore[arg-type]
    assert questions(tmp_path) == ["good"]


def test_trimming_keeps_the_ends_and_an_even_spread(tmp_path: Path) -> None:
    for split, step in [*(("train", step) for step in range(1, 10)), *(("val", step) for step in (0, 5, 10))]:
        path = record_file(tmp_path, split, step)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
    (tmp_path / "records" / "notes.txt").write_bytes(b"x" * 1000)

    def left(split: str) -> list[int]:
        return sorted(int(path.stem.split("_")[1]) for path in tmp_path.glob(f"records/{split}_*"))

    assert trim_records(tmp_path, 0.012) == []
    assert [path.name for path in trim_records(tmp_path, 0.0095)] == [f"train_00000{step}.jsonl" for step in (2, 4, 6)]
    assert (left("train"), left("val")) == ([1, 3, 5, 7, 8, 9], [0, 5, 10])
    trim_records(tmp_path, 0.0)
    assert (left("train"), left("val")) == ([1, 9], [0, 10])
    assert (tmp_path / "records" / "notes.txt").exists()
