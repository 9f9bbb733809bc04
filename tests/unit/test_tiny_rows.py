"""Rows as veRL's dataset reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from research_plugin.data.rows import make_row, write_parquet
from research_plugin.errors import DataError


def test_make_row_holds_exactly_what_verl_reads() -> None:
    assert make_row("tiny_world", "val", 7, "Who?", ["Balvak"]) == {
        "data_source": "tiny_world",
        "prompt": [{"role": "user", "content": "Who?"}],
        "ability": "qa",
        "reward_model": {"style": "rule", "ground_truth": ["Balvak"]},
        "extra_info": {"id": "tiny_world-val-00007", "split": "val", "index": 7, "question": "Who?"},
    }


@pytest.mark.parametrize(
    ("question", "golds"),
    [(" ", ["a"]), ("Who?", []), ("Who?", [" "]), ("Who?", "Balvak")],
    ids=["blank question", "no gold", "blank gold", "bare string"],
)
def test_make_row_unusable_input_names_the_row(question: str, golds: list[str]) -> None:
    with pytest.raises(DataError, match="tiny_world-val-00003"):
        make_row("tiny_world", "val", 3, question, golds)


def test_write_parquet_round_trip(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [make_row("tiny_world", "train", at, f"Q{at}?", ["a", "b"][: at + 1]) for at in range(2)]
    write_parquet(rows, tmp_path / "x.parquet")
    assert parquet.read_table(tmp_path / "x.parquet").to_pylist() == rows
