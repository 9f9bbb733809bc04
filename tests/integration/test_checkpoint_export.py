"""examples/multi_node/export.sh on checkpoints that veRL's engines really wrote: the model comes back as it went in."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from composing import ROOT, clean_environment
from exported_model import assert_exported

from research_plugin.plugin import data_file

pytestmark = pytest.mark.verl
pytest.importorskip("verl")

RANKS = 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model sharded over two processes of the FSDP2 engine and saved by them, ``global_step_N``."""
    folder = tmp_path_factory.mktemp("fsdp") / "global_step_1"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**clean_environment(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "fsdp_worker.py")]
    log = folder.parent / "log"
    with log.open("wb") as output:
        processes = [
            subprocess.Popen(
                [*command, str(rank), str(RANKS), str(port), str(folder / "actor")],
                env=env,
                stdout=output,
                stderr=output,
            )
            for rank in range(RANKS)
        ]
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * RANKS, log.read_text(errors="replace")[-4000:]
    return folder


def test_merged_fsdp_checkpoint_is_the_model_it_came_from(checkpoint: Path, tmp_path: Path) -> None:
    # Case 48: keys, shapes, values and logits.
    from safetensors.torch import load_file

    shards = sorted(path.name for path in (checkpoint / "actor").glob("model_*.pt"))
    assert shards == [f"model_world_size_{RANKS}_rank_{rank}.pt" for rank in range(RANKS)]
    target = tmp_path / "merged"
    done = subprocess.run(
        ["bash", str(ROOT / "examples" / "multi_node" / "export.sh"), str(checkpoint), str(target)],
        env={**clean_environment(), "PYTHON": sys.executable}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "warning" not in done.stderr.splitlines()[-1]

    # The merger rounds to bfloat16 (model_merger/fsdp_model_merger.py, 0.9.1).
    weights = load_file(Path(data_file("tiny/model")) / "model.safetensors")
    assert_exported(target, {name: tensor.bfloat16() for name, tensor in weights.items()})
