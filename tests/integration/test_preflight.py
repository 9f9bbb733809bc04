"""The preflight of the recipes, through veRL's real command and, for single faults, through its own callback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from composing import CUSTOM, compose_config

pytestmark = pytest.mark.verl
pytest.importorskip("verl")


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def parquet(tmp_path: Path) -> list[str]:
    """Overrides that give a recipe two data files, which only have to exist."""
    for name in ("train", "val"):
        (tmp_path / f"{name}.parquet").touch()
    return [f"data.{name}_files={tmp_path}/{name}.parquet" for name in ("train", "val")]


def run_command(cwd: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_", "HYDRA_"))}
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "+recipe=research_7b", *overrides]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def stopped_with(*overrides: str) -> str:
    """Run the callback on a composed research_7b in this process and return its message."""
    from research_plugin.verl_ext.preflight import Preflight

    with pytest.raises(SystemExit) as stop:
        Preflight().on_run_start(compose_config("+recipe=research_7b", *overrides))
    assert isinstance(stop.value.code, str)  # Python then exits with 1
    return stop.value.code


def problems(message: str) -> list[str]:
    return [line.partition(". ")[2] for line in message.splitlines() if line.startswith("  ")]


def test_unset_recipe_stops_and_names_every_missing_thing(tmp_path: Path) -> None:
    done = run_command(tmp_path)
    assert done.returncode == 1
    output = done.stdout + done.stderr
    found = problems(output)
    assert "data.train_files=data/musique/train.parquet does not exist" in found[0]
    assert "data.val_files=data/musique/val.parquet does not exist" in found[1]
    assert f"{CUSTOM}.search.url" in found[-1]
    assert "not set" in found[-1]
    assert f": {len(found)} problems." in output
    assert_nothing_was_started(output, tmp_path)


def test_wrong_settings_stop_with_all_faults_at_once(tmp_path: Path, unused_port: int) -> None:
    (tmp_path / "rows.parquet").touch()
    folder = tmp_path / "run"
    folder.mkdir()
    done = run_command(
        folder,
        "data.train_files=../rows.parquet",
        "data.val_files=../rows.parquet",
        "data.train_batch_size=100",
        "data.max_response_length=9000",
        f"{CUSTOM}.search.url=http://localhost:{unused_port}",
    )
    assert done.returncode == 1
    output = done.stdout + done.stderr
    for part in (
        f"data.train_files and data.val_files both hold {tmp_path}/rows.parquet",
        "data.train_batch_size=100 is no multiple of actor_rollout_ref.actor.ppo_mini_batch_size=256",
        "data.max_prompt_length + data.max_response_length = 9512 exceeds actor_rollout_ref.rollout.max_model_len=8704",
        f"{CUSTOM}.search.url=http://localhost:{unused_port} is this machine only, but trainer.nnodes=8",
    ):
        assert [line for line in problems(output) if part in line], part
    assert_nothing_was_started(output, folder)


def assert_nothing_was_started(output: str, cwd: Path) -> None:
    assert "Traceback" not in output
    assert "ray init kwargs" not in output  # what run_ppo prints first
    assert list(cwd.iterdir()) == []


def test_unreachable_retriever_is_named_with_its_key(parquet: list[str], unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}"
    started = time.monotonic()
    message = stopped_with(*parquet, "trainer.nnodes=1", f"{CUSTOM}.search.url={url}")
    assert time.monotonic() - started < 30
    (found,) = [line for line in problems(message) if ".search." in line]
    assert found.startswith(f"{CUSTOM}.search.url={url}")


def test_unreachable_replica_is_named_among_several(parquet: list[str], unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}"
    message = stopped_with(*parquet, "trainer.nnodes=1", f"{CUSTOM}.search.urls=[{url}]")
    (found,) = [line for line in problems(message) if ".search." in line]
    assert found.startswith(f"{CUSTOM}.search.urls={url}")


@pytest.mark.parametrize(
    "url", ["http://RETRIEVER_HOST:8000/<port>", "http://your-retriever:8000", "http://retriever.example.com"]
)
def test_placeholder_url_is_refused(parquet: list[str], url: str) -> None:
    message = stopped_with(*parquet, f'{CUSTOM}.search.url="{url}"')
    (found,) = [line for line in problems(message) if ".search." in line]
    assert f"{CUSTOM}.search.url" in found
    assert "placeholder" in found
    assert url in found


def test_unknown_setting_is_answered_with_the_allowed_names(parquet: list[str]) -> None:
    message = stopped_with(*parquet, f"+{CUSTOM}.search.read_timout=5", f"{CUSTOM}.search.url=http://10.1.2.3:8000")
    (found,) = [line for line in problems(message) if ".search." in line]
    assert f"unknown key {CUSTOM}.search.read_timout" in found
    assert "read_timeout" in found


def test_embedded_retriever_needs_a_corpus(parquet: list[str]) -> None:
    message = stopped_with(*parquet, "trainer.nnodes=1", f"{CUSTOM}.search.url=embedded")
    (found,) = [line for line in problems(message) if ".search." in line]
    assert found == f"{CUSTOM}.search.url=embedded needs search.corpus, a JSONL file"


def test_embedded_retriever_serves_one_node_only(parquet: list[str], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.touch()
    message = stopped_with(*parquet, f"{CUSTOM}.search.url=embedded", f"{CUSTOM}.search.corpus={corpus}")
    (found,) = [line for line in problems(message) if ".search." in line]
    assert found.startswith(f"{CUSTOM}.search.url=embedded is this machine only, but trainer.nnodes=8")


def test_missing_gpus_are_named_with_the_key(parquet: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    message = stopped_with(*parquet, f"{CUSTOM}.search.url=http://10.1.2.3:8000")
    assert [line for line in problems(message) if "has 2 GPUs, trainer.n_gpus_per_node=8" in line]


def test_a_run_that_joins_a_cluster_needs_no_gpus_here(parquet: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
    message = stopped_with(*parquet, "data.train_batch_size=100", f"{CUSTOM}.search.url=embedded")
    assert "GPUs, trainer" not in message


@pytest.mark.parametrize("fault", ["data.train_batch_size=100", "data.train_files=missing.parquet"])
def test_a_faulty_run_leaves_no_trace(
    parquet: list[str], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VERL_FILE_LOGGER_PATH", raising=False)
    folder = tmp_path / "run"
    stopped_with(*parquet, fault, f"trainer.default_local_dir={folder}", f"{CUSTOM}.search.url=embedded")
    assert not folder.exists()
    assert "VERL_FILE_LOGGER_PATH" not in os.environ


def test_an_unforeseen_error_stops_the_run_too(parquet: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Hydra turns a callback's ordinary exceptions into warnings: the run would go on unchecked.
    from research_plugin.verl_ext import preflight

    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(preflight, "check_config", broken)
    assert "surprise" in stopped_with(*parquet)


def test_retriever_is_probed_whatever_the_data_files_are_called(tmp_path: Path, unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}"
    files = [f"data.train_files={tmp_path}/search.parquet", f"data.val_files={tmp_path}/val.parquet"]
    message = stopped_with(*files, "trainer.nnodes=1", f"{CUSTOM}.search.url={url}")
    assert [line for line in problems(message) if line.startswith(f"{CUSTOM}.search.url={url}")]


def test_a_retriever_of_another_recipe_is_named_with_every_difference(parquet: list[str]) -> None:
    from research_plugin.retriever.process import RetrieverProcess

    with RetrieverProcess(timeout=60, arguments=["--recipe", "tiny"]) as server:
        message = stopped_with(*parquet, "trainer.nnodes=1", f"{CUSTOM}.search.url={server.url}")
    (found,) = [line for line in problems(message) if ".search." in line]
    assert found.startswith(f"{CUSTOM}.search.expects=wiki18_e5_gpu: ")
    for part in ("engine is 'bm25', expected 'dense'", "size is 1570, expected 21015324", "topk is None, expected 5"):
        assert f"{server.url}: {part}" in found


def test_users_own_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parquet: list[str]) -> None:
    """A worker may run in another folder; a hub's name is no path and stays."""
    monkeypatch.chdir(tmp_path)
    Path("stage1").mkdir()
    message = stopped_with("actor_rollout_ref.model.path=stage2/no/model", *parquet)
    assert "actor_rollout_ref.model.path=stage2/no/model is no folder" in message
    from research_plugin.verl_ext.preflight import Preflight

    for given, expected in (("stage1", str(tmp_path / "stage1")), ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B")):
        config = compose_config("+recipe=research_7b", f"actor_rollout_ref.model.path={given}", *parquet)
        Preflight().prepare(config)
        assert config.actor_rollout_ref.model.path == expected


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("+a.b_password=x", "+a.b_password=***"),
        ("++token=x", "++token=***"),
        ("+a={api_key: x, n: 5}", "+a={api_key: ***, n: 5}"),
        ("a=[http://me:x@host:1/y,http://z]", "a=[http://host:1/y,http://z]"),
        *((same, same) for same in ("search.token_env=TOKEN", "records.tokens=false", "max_turn_tokens=5")),
    ],
)
def test_overrides_are_kept_without_secrets(override: str, kept: str) -> None:
    from research_plugin.verl_ext.run_file import redact

    assert redact(override) == kept


def test_run_file_says_what_runs_and_keeps_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib
    import json

    from research_plugin.reports.run_card import write_card
    from research_plugin.retriever.process import RetrieverProcess
    from research_plugin.verl_ext.preflight import Preflight

    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")  # no GPUs needed here
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "set by the preflight")
    monkeypatch.delenv("VERL_FILE_LOGGER_PATH")
    for name in ("train", "val"):
        (tmp_path / f"{name}.parquet").write_text(name)
    folder = tmp_path / "run"
    with RetrieverProcess(timeout=60, arguments=["--recipe", "tiny"]) as server:
        overrides = [
            *(f"data.{name}_files={tmp_path}/{name}.parquet" for name in ("train", "val")),
            f"trainer.default_local_dir={folder}",
            f"{CUSTOM}.search.url={server.url}",
            f"{CUSTOM}.search.expects=null",
            "trainer.nnodes=1",
            "+ray_kwargs.ray_init._node_name=http://user:sesame@proxy",
            "+ray_kwargs.ray_init._redis_password=sesame",
        ]
        config = compose_config("+recipe=research_7b", *overrides, with_hydra=True)
        for started in (1, 2):
            preflight = Preflight()
            preflight.on_run_start(compose_config("+recipe=research_7b", *overrides, with_hydra=True))
            assert len(json.loads((folder / "run.json").read_text())["attempts"]) == started
    assert config.trainer.v1.trainer_mode == "sync"
    run = json.loads((folder / "run.json").read_text())
    assert run["recipe"] == "research_7b"
    assert f"data.train_files={tmp_path}/train.parquet" in run["overrides"]
    assert run["data"][f"{tmp_path}/val.parquet"] == f"sha256 {hashlib.sha256(b'val').hexdigest()}, 3 bytes"
    assert (run["prompt"], run["protocol"], run["gpus"]) == ("instruct", "research", 8)
    assert run["reward"].startswith("method=research, rules=paper")
    assert run["retriever"] == {server.url: {"engine": "bm25", "corpus": "corpus.jsonl", "size": 1570}}
    assert {"verl", "torch", "research-plugin"} <= set(run["versions"])
    preflight.on_run_end(config, job_return=None)
    assert json.loads((folder / "run.json").read_text())["state"] == "finished"
    write_card(folder)
    assert "8 GPUs" in (folder / "run_card.md").read_text()
    assert "sesame" not in "".join(path.read_text() for path in folder.iterdir())
