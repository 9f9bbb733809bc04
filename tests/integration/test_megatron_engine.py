"""The mask on veRL's Megatron engine: our rollouts, veRL's `ppo_loss`, Megatron's own gradients and optimizer step.

On a CPU, by way of `megatron_shims`: bfloat16, padded batches, Megatron's plain PyTorch layers. Packed batches, context
and sequence parallelism and TransformerEngine's kernels need a GPU (docs/engines.md).
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from composing import ROOT, clean_environment
from exported_model import assert_exported

pytestmark = pytest.mark.verl
pytest.importorskip("verl")
pytest.importorskip("megatron.core")
pytest.importorskip("mbridge")

# (tensor parallel, pipeline parallel); one process each.
LAYOUTS = [(1, 1), (2, 1), (1, 2)]


@pytest.fixture(scope="module", params=LAYOUTS, ids=["one process", "tensor parallel", "pipeline parallel"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process of one engine wrote (tests/megatron_worker.py)."""
    folder = tmp_path_factory.mktemp("megatron")
    tensor, pipeline = request.param
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**clean_environment(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(tensor * pipeline):
        numbers = [str(number) for number in (rank, tensor * pipeline, port, tensor, pipeline)]
        command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "megatron_worker.py"), *numbers]
        with (folder / f"{rank}.log").open("wb") as log:
            processes.append(
                subprocess.Popen([*command, str(folder / f"{rank}.json")], env=env, stdout=log, stderr=log)
            )
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * len(processes), (folder / f"{codes.index(max(codes))}.log").read_text()[-4000:]
    read = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(processes))]
    return [{"folder": folder, **one} for one in read]


def test_rollouts_are_what_the_proof_needs(ranks: list[dict[str, Any]]) -> None:
    """Row 0: policy, passage, policy; a row without a search; two searches in one row; a row that was cut short."""
    masks = ranks[0]["masks"]
    borders = [sum(a != b for a, b in itertools.pairwise(mask)) for mask in masks]
    assert borders == [2, 0, 4, 2]
    assert all(mask[0] == mask[-1] == 1 for mask in masks)


def test_log_probs_are_those_of_transformers(ranks: list[dict[str, Any]]) -> None:
    """Up to bfloat16, on text the model finds unlikely; a wrong mask or rotation is off by more than 1."""
    (error,) = [rank["log_prob_error"] for rank in ranks if "log_prob_error" in rank]
    assert error < 0.1


def test_gradient_ignores_values_under_retrieved_tokens(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["norm"] > 0.0
        assert rank["repeatable"]
        assert len(rank["same_under_retrieved"]) == 6
        assert all(rank["same_under_retrieved"].values()), rank["same_under_retrieved"]


def test_gradient_follows_values_under_each_kind_of_policy_token(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert len(rank["same_under_policy"]) == 12
        assert not any(rank["same_under_policy"].values()), rank["same_under_policy"]


def test_without_the_mask_the_same_change_is_felt(ranks: list[dict[str, Any]]) -> None:
    assert not any(rank["same_without_mask"] for rank in ranks)


def test_step_changes_the_weights_that_are_sent_to_the_engine(ranks: list[dict[str, Any]]) -> None:
    """Names and shapes as in the model's own file, all layers among what changed."""
    from safetensors import safe_open

    from research_plugin.plugin import data_file

    with safe_open(os.path.join(data_file("tiny/model"), "model.safetensors"), "pt") as file:
        stored = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    for rank in ranks:
        assert rank["shapes"] == stored
        weights = {name for name in stored if name.endswith("proj.weight") or "embed" in name}
        assert weights <= set(rank["updated"])
    (norm,) = [rank["grad_norm"] for rank in ranks if "grad_norm" in rank]
    assert norm > 0.0


def test_exported_checkpoint_is_the_model_that_was_saved(ranks: list[dict[str, Any]], tmp_path: Path) -> None:
    # Case 48: keys, shapes, values and logits, out of each layout. veRL writes no shards of the model to merge here.
    folder, target = ranks[0]["folder"], tmp_path / "exported"
    export = ["bash", str(ROOT / "examples" / "multi_node" / "export.sh"), str(folder / "global_step_1"), str(target)]
    done = subprocess.run(export, env=clean_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    from safetensors.torch import load_file

    assert_exported(target, load_file(folder / "after.safetensors"))
