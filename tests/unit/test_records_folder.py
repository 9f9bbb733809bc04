"""A run's folder of records: whole files, a bounded size, readable after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from research_plugin.errors import DataError
from research_plugin.records import RolloutRecord
from research_plugin.reports.records_folder import (
    find_records,
    read_records,
    record_file,
    trim_records,
    write_records,
)


def record(question: str, step: int = 0) -> RolloutRecord:
    return RolloutRecord(question, ["a"], [("x", True)], step=step)


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_records_come_back_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for split, step in (("train", 12), ("val", 2), ("train", 2), ("val", 0)):
        write_records(record_file(tmp_path, split, step), [record(f"{split}{step}", step), record("second")])
    (tmp_path / "records" / "notes.jsonl").write_text("no record\n")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    found = find_records(tmp_path)
    assert names(found) == ["val_000000.jsonl", "train_000002.jsonl", "val_000002.jsonl", "train_000012.jsonl"]
    assert find_records(tmp_path / "records") == found
    assert find_records(found[0]) == found[:1]
    assert [r.question for r in read_records(found)][::2] == ["val0", "train2", "val2", "train12"]


def test_a_step_that_is_written_again_replaces_the_first(tmp_path: Path) -> None:
    path = record_file(tmp_path, "train", 3)
    for question in ("before the resume", "after it"):
        write_records(path, [record(question)])
    assert [r.question for r in read_records([path])] == ["after it"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = record_file(tmp_path, "train", 3)
    write_records(path, [record("good")])

    def broken() -> object:
        yield record("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(path, broken())  # type: ignore[arg-type]
    assert [r.question for r in read_records(find_records(tmp_path))] == ["good"]


def test_a_torn_last_line_is_left_out_and_a_broken_one_named(tmp_path: Path) -> None:
    path = record_file(tmp_path, "train", 1)
    write_records(path, [record("whole")])
    with path.open("a") as out:
        out.write(record("torn").to_line()[:40])
    assert [r.question for r in read_records([path])] == ["whole"]
    path.write_text("{}\n")
    with pytest.raises(DataError, match=r"train_000001\.jsonl:1 is no rollout record"):
        list(read_records([path]))


def test_a_folder_without_records_says_what_writes_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="groups_per_step"):
        find_records(tmp_path)


def test_trimming_keeps_the_ends_and_an_even_spread(tmp_path: Path) -> None:
    for split, step in [*(("train", step) for step in range(1, 10)), *(("val", step) for step in (0, 5, 10))]:
        path = record_file(tmp_path, split, step)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
    assert trim_records(tmp_path, 1.0) == []
    trim_records(tmp_path, 0.009)
    left = names(find_records(tmp_path))
    assert [name for name in left if name.startswith("train")] == [f"train_{s:06d}.jsonl" for s in (1, 3, 5, 7, 8, 9)]
    trim_records(tmp_path, 0.0)
    assert names(find_records(tmp_path)) == [
        "val_000000.jsonl",
        "train_000001.jsonl",
        "train_000009.jsonl",
        "val_000010.jsonl",
    ]
