"""veRL's own tracker takes every metric of the plugin: console, file, tensorboard and wandb without a network."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from research_plugin.metrics import step_metrics

pytestmark = pytest.mark.verl
pytest.importorskip("verl")
for package in ("tensorboard", "wandb"):  # veRL's own requirements
    pytest.importorskip(package)

ROLLOUT: dict[str, Any] = {
    **dict.fromkeys(("num_searches", "num_repeated_queries", "num_cached_searches"), 1.0),
    **dict.fromkeys(("generated_tokens", "retrieved_tokens", "golden_in_results", "copied_text"), 2.0),
    **dict.fromkeys(("own_results", "repetition"), 0.5),
    "search_latencies": [0.25],
    "reward_extra_info": dict.fromkeys(("em", "f1", "format_ok", "answered", "truncated"), 1.0),
}


def test_every_backend_gets_every_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from verl.utils.tracking import Tracking

    rollouts = [("group", reward, ROLLOUT) for reward in (0.0, 1.0)]
    metrics = {**step_metrics(rollouts), **step_metrics(rollouts, prefix="val-aux/")}
    assert len(metrics) == 2 * 29
    assert all(math.isfinite(value) for value in metrics.values())
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "tensorboard"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracking = Tracking("project", "run", ["console", "file", "tensorboard", "wandb"], config={})
    tracking.log(metrics, step=3)
    tracking.finish()

    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 3, "data": metrics}
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {name: events.Scalars(name)[0].value for name in events.Tags()["scalars"]} == pytest.approx(metrics)
    assert events.Scalars("rollout/num_searches/max")[0].step == 3
    (in_wandb,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = in_wandb.read_bytes()
    assert [name for name in metrics if name.encode() not in content] == []
    console = capsys.readouterr().out
    assert all(f"{name}:{value}" in console for name, value in metrics.items())
