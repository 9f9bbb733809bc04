"""The example that scores responses runs and prints the scores it promises."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/score_response.py"


def test_score_response_prints_both_scores(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()[3:]]
    scores = {row[0]: [float(part) for part in " ".join(row[1:]).split()[:3]] for row in rows}
    assert scores == {
        "right": [1.0, 1.0, 1.0],
        "half right": [0.5, 0.5, 0.5],
        "wrong, good format": [0.1, 0.1, 0.0],
        "LaTeX in the box": [1.0, 0.1, 1.0],
        "no thinking": [1.0, 0.0, 1.0],
        "no box": [0.0, 0.0, 0.0],
        "made-up result": [0.0, 0.1, 0.0],
    }
