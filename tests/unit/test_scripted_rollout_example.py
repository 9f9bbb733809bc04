"""The example rollout runs and prints the masks and log-probabilities it promises."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/scripted_rollout.py"


def test_scripted_rollout_prints_every_token(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    title, *rows, total = capsys.readouterr().out.splitlines()
    assert title == "mask  log-prob  token"
    assert "".join(row[:4].strip() for row in rows) == "1" * 9 + "0" * 16 + "1" * 9
    assert [row for row in rows if row[3] == "0" and "0.0" not in row] == []
    assert (rows[0], rows[9], rows[-1]) == (
        "   1      -0.1  '<search>'",
        "   0       0.0  ' '",
        "   1      -0.4  '<end>'",
    )
    assert total == "answered: 18 tokens of the policy, 16 retrieved"
