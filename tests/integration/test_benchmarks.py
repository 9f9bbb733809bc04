"""The benchmarks run and write what their tables print; no time is asserted, only counts and keys."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(script: str, tmp_path: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Run a benchmark; return what it printed and the JSON it wrote."""
    target = tmp_path / "numbers.json"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(BENCHMARKS.parent), os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--json", str(target), *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, json.loads(target.read_text(encoding="utf-8"))


def test_reward_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("reward_benchmark", BENCHMARKS / "reward.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Full sizes take a minute.
    monkeypatch.setattr(module, "SMALL", 500)
    monkeypatch.setattr(module, "LARGE", 4000)
    monkeypatch.setattr(module, "ADVERSARIAL", {"many <search>": module.repeated("<search>")})
    target = tmp_path / "numbers.json"
    monkeypatch.setattr(sys, "argv", ["reward.py", "--json", str(target), "--seconds", "0.01"])
    module.main()
    numbers = json.loads(target.read_text(encoding="utf-8"))
    assert [(row["rules"], row["input"]) for row in numbers["throughput"]] == [
        ("paper", "text alone"),
        ("paper", "with segments"),
        ("released", "text alone"),
        ("released", "with segments"),
    ]
    assert [(row["case"], row["rules"]) for row in numbers["growth"]] == [
        ("many <search>", "paper"),
        ("many <search>", "released"),
    ]
    assert {"small_ms", "large_ms", "growth"} <= set(numbers["growth"][0])
    assert (numbers["target_per_second"], numbers["target_growth"]) == (2000, 3.0)
    assert "scores/s" in capsys.readouterr().out


def test_uneven_rollouts_benchmark(tmp_path: Path) -> None:
    printed, numbers = run("uneven_rollouts.py", tmp_path, "--rollouts", "12", "--scale", "0.002", "--slots", "4")
    assert set(numbers) == {
        "rollouts",
        "slots",
        "searches",
        "tokens",
        "ours_s",
        "lock_step_s",
        "longest_rollout_s",
        "engine_s",
        "retriever_s",
        "speedup",
        "over_limit",
        "target_speedup",
        "target_over_limit",
    }
    assert (numbers["rollouts"], numbers["slots"]) == (12, 4)
    # 0.02 s a token, 4 at once.
    assert numbers["engine_s"] == pytest.approx(numbers["tokens"] * 0.02 / 4)
    # Neither side can beat the limits.
    assert min(numbers["ours_s"], numbers["lock_step_s"]) >= max(numbers["engine_s"], numbers["longest_rollout_s"])
    assert "times faster than lock-step" in printed


@pytest.mark.verl
def test_turn_loop_benchmark(tmp_path: Path) -> None:
    pytest.importorskip("verl")
    printed, numbers = run("turn_loop.py", tmp_path, "--rollouts", "2", "--repeat", "1", "--searches", "2")
    rows = numbers["rows"]
    assert [(row["observations"], row["loop"], row["turns"]) for row in rows] == [
        ("two sentences", "research_search", 3),
        ("two sentences", "tool_agent", 3),
        ("five passages", "research_search", 3),
        ("five passages", "tool_agent", 3),
    ]
    for row in rows:
        assert row["generated_tokens"] > 0
        assert row["observation_tokens"] > 0
        assert {"turns_per_second", "turns_cpu_ms", "in_worker_per_second", "in_worker_cpu_ms"} <= set(row)
    assert [ratio["observations"] for ratio in numbers["ratios"]] == ["two sentences", "five passages"]
    assert {"turns_per_second", "turns_cpu", "in_worker_per_second", "in_worker_cpu"} <= set(numbers["ratios"][0])
    assert numbers["target_ratio"] == 5.0
    assert "rollouts/s" in printed


@pytest.mark.verl
def test_records_benchmark(tmp_path: Path) -> None:
    pytest.importorskip("verl")
    printed, rows = run("records.py", tmp_path, "--groups", "2", "--tokens", "400")
    assert [(row["groups"], row["tokens"]) for row in rows] == [(16, True), (2, True), (16, False)]
    assert rows[0]["mb"] > 2 * rows[2]["mb"] > 0
    assert all(0 < row["step"] < row["step"] + row["write"] for row in rows)
    assert "write s" in printed


def test_mask_ablation_from_numbers(tmp_path: Path) -> None:
    def curve(*rewards: float) -> dict[str, Any]:
        validation = {"f1": 0.5, "em": 0.25, "format_ok": 1.0, "num_searches": 2.0}
        return {
            "training": [
                {"step": step, "reward": reward, "grad_norm": 1.0 + step, "kl_loss": 0.0}
                for step, reward in enumerate(rewards, start=1)
            ],
            "validation": [{"step": 0, "reward": 0.0, **validation}, {"step": 6, "reward": 1.0, **validation}],
        }

    numbers = {
        "steps": 6,
        "runs": {"masked": curve(0.1, 0.2, 0.3, 0.4, 0.5, 0.9), "unmasked": curve(0, 0, 0, 0, 0, 0)},
    }
    source = tmp_path / "source.json"
    source.write_text(json.dumps(numbers), encoding="utf-8")
    plot = tmp_path / "img" / "curves.svg"
    printed, written = run("mask_ablation.py", tmp_path, "--reuse", str(source), "--plot", str(plot))
    assert written == numbers
    masked, unmasked = printed.split("unmasked ")
    assert "means of 5 steps: 0.300 0.900\n" in masked
    assert "0.000@0 1.000@6\n" in masked
    assert "EM 0.250, format 1.000, 2.00 searches; gradient norm median 4.50, max 7.00" in masked
    assert "means of 5 steps: 0.000 0.000\n" in unmasked
    # Held-out, masked: from (step 0, reward 0) at the lower left to (step 6, reward 1) at the upper right.
    lines = [element.attrib["points"] for element in ElementTree.parse(plot).iter() if "points" in element.attrib]
    assert len(lines) == 4
    assert lines[2] == "420.0,250.0 720.0,40.0"


def test_retriever_soak(tmp_path: Path) -> None:
    printed, numbers = run("retriever_soak.py", tmp_path, "--minutes", "0.05")
    assert numbers["wrong_answers"] == []
    assert numbers["answers"]["good 200"] > 0
    assert numbers["memory_mb"]["end"] > 0
    assert "at the end" in printed


def test_retriever_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import retriever

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(retriever, "FILES", {"exact": "minilm_Flat.index", "ann": "minilm_IVF8,Flat.index"})
    monkeypatch.setattr(retriever, "NPROBE", 4)
    monkeypatch.setattr(retriever, "CLIENTS", (4,))
    monkeypatch.setattr(retriever, "ROUNDS", {4: 2})
    monkeypatch.setattr(retriever, "BATCHES", (8,))
    monkeypatch.setattr(retriever, "QUERIES", 4_000)
    monkeypatch.setattr(retriever, "LIMIT_QUERIES", 16)
    retriever.make_data(tmp_path, 400)
    limits = retriever.limits_here(tmp_path)
    assert limits["exact"]["recall_at_5"] == 1.0 >= limits["ann"]["recall_at_5"] > 0
    cells = retriever.measure_servers(tmp_path, "ann", 0.5)
    assert {name: sorted(servers) for name, servers in cells.items()} == {
        name: ["baseline", "baseline bf16", "flat baseline", "ours"] for name in ("4 clients", "batch 8")
    }
    assert all(server["failed"] == 0 < server["qps"] for servers in cells.values() for server in servers.values())

    # The ratios, from cells that a clock did not write.
    figures = {"qps": 10.0, "p99_ms": 50.0, "server_cpu_ms": 20.0, "health_p99_ms": 5.0}
    better = {"qps": 60.0, "p99_ms": 5.0, "server_cpu_ms": 4.0, "health_p99_ms": 2.0}
    cell = {"baseline": figures, "baseline bf16": figures, "ours": better}
    made_up = dict.fromkeys(("64 clients", "256 clients", "batch 8"), cell)
    found = retriever.ratios(made_up, limit_qps=80.0, own_qps=100.0)
    assert (found["qps_ratio_64"], found["p99_ratio_256"], found["cpu_ms_ratio_64"]) == (6.0, 10.0, 5.0)
    assert (found["fraction_of_limit"], found["fraction_of_own_limit"], found["health_p99_ms"]) == (0.75, 0.6, 2.0)
    assert retriever.mean_of([figures, better])["qps"] == 35.0
    for cell_of_ann in made_up.values():
        cell_of_ann["flat baseline"] = {**figures, "qps": 5.0}
    over_flat = retriever.ann_over_flat(made_up)
    assert (over_flat["qps_ratio_over_flat_baseline_64"], over_flat["cpu_ms_ratio_over_flat_baseline_256"]) == (
        12.0,
        5.0,
    )
