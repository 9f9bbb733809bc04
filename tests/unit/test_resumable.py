"""Files that appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research_plugin.resumable import replacing, write_json


def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"em": 0.5})
    with pytest.raises(KeyboardInterrupt), replacing(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert json.loads(path.read_text()) == {"em": 0.5}
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_readable_and_takes_any_text(tmp_path: Path) -> None:
    values = {"dataset": "问答", "override": "path=\udce9"}
    write_json(tmp_path / "run.json", values)
    text = (tmp_path / "run.json").read_text(encoding="utf-8")
    assert "问答" in text and json.loads(text) == values
