"""examples/multi_node: two Ray nodes and a retriever on this machine; stand-ins for ssh, Slurm and the trainer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from composing import ROOT

from research_plugin.data.tiny_files import TinyFiles, tiny_dir

FOLDER = ROOT / "examples" / "multi_node"
SSH = '#!/usr/bin/env bash\nshift\nexec bash -c "$*"\n'
# The trainer is written down instead of run; everything else is this interpreter.
PYTHON = (
    '#!/usr/bin/env bash\n[ "$1 $2" = "-m verl.trainer.main_ppo" ] && { echo "trainer $*"; exit 0; }\nexec %s "$@"\n'
)


def free_port() -> int:
    """A free port below those of Ray's workers."""
    for port in range(6400, 9900):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no free port")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(script: str, *arguments: str, env: dict[str, str], timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(FOLDER / script), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Stand-ins first on the path, then this interpreter's tools; Ray's own files in a folder with a short name."""
    tools = tmp_path / "tools"
    tools.mkdir()
    write(tools / "ssh", SSH)
    write(tools / "python", PYTHON % sys.executable)
    ray_files = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    hidden = ("RAY_", "VERL_", "VENV", "VIRTUAL_ENV")
    names = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    yield {
        **names,
        "PATH": path,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "SHARED": str(tmp_path / "shared"),
        "RUN": str(tmp_path / "run"),
        "RAY_PORT": str(free_port()),
        "RAY_ARGS": "--num-cpus=1 --object-store-memory=80000000",
        "RAY_TMPDIR": ray_files,
        "SSH": str(tools / "ssh"),
        "OMP_NUM_THREADS": "1",
        "USER": "user",
    }
    shutil.rmtree(ray_files, ignore_errors=True)


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_nodes_and_a_retriever_start_train_and_end(env: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("verl")
    hosts = {**env, "HOSTS": "127.0.0.1 127.0.0.1"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    served = {**env, "RETRIEVER_ADDRESS": "127.0.0.1", "RETRIEVER_PORT": str(port)}
    corpus = str(TinyFiles(tiny_dir()).corpus)
    retriever = subprocess.Popen(["bash", str(FOLDER / "retriever.sh"), "--corpus", corpus], env=served)
    try:
        started = run("ssh.sh", "start", env=hosts, timeout=30)
        assert started.returncode == 0, started.stderr
        groups = [int((tmp_path / "run" / f"{number}.pid").read_text()) for number in (0, 1)]
        trained = run(
            "train.sh", "+recipe=research_7b", "a=1", env={**env, "HEAD": "127.0.0.1", "NODES": "2", "WAIT": "90"},
            timeout=240,
        )  # fmt: skip
        logs = "".join((tmp_path / "run" / f"{number}.log").read_text()[-1500:] for number in (0, 1))
        assert trained.returncode == 0, trained.stderr[-2000:] + logs
        *nodes, summary, trainer = trained.stdout.splitlines()
        assert [("'verl.plugins': 'research'" in node) for node in nodes] == [True, True]
        assert summary == "2 nodes, all alike"
        url = f"http://127.0.0.1:{port}"
        assert trainer.split() == [
            "trainer", "-m", "verl.trainer.main_ppo", "trainer.nnodes=2",
            f"actor_rollout_ref.rollout.custom.search.url={url}", "+recipe=research_7b", "a=1",
        ]  # fmt: skip
        assert (tmp_path / "shared" / "ray_token").stat().st_mode & 0o077 == 0
    finally:
        retriever.send_signal(signal.SIGTERM)
        stopped = run("ssh.sh", "stop", env=hosts)
        retriever.wait(30)
    assert stopped.returncode == 0, stopped.stderr
    deadline = time.monotonic() + 20
    while any(map(is_alive, groups)):
        assert time.monotonic() < deadline, "Ray processes are left"
        time.sleep(0.2)
    assert not (tmp_path / "shared" / "retriever.json").exists()


def test_slurm_job_starts_a_head_workers_and_the_trainer(env: dict[str, str], tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    write(tmp_path / "tools" / "scontrol", "#!/usr/bin/env bash\nprintf 'n1\\nn2\\nn3\\n'\n")
    # Several run at once, each writes one line.
    srun = 'case "$*" in *hostname*) echo "10.0.0.1 fe80::1";; *) echo "$* RAY=$RAY_ARGS" >>"$CALLS";; esac\n'
    write(tmp_path / "tools" / "srun", "#!/usr/bin/env bash\n" + srun)
    slurm = {"SLURM_SUBMIT_DIR": str(FOLDER), "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_CPUS_PER_TASK": "96"}
    done = run("slurm.sh", "+recipe=research_7b", env={**env, **slurm, "CALLS": str(calls), "RAY_ARGS": ""})
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 10
    while len(lines := sorted(calls.read_text().splitlines() if calls.exists() else [])) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    one = "--overlap --nodes=1 --ntasks=1 --nodelist=n1"
    ray = "RAY=--num-gpus=8 --num-cpus=96 "
    assert lines == [
        f"{one} --gpus=0 bash {FOLDER}/train.sh +recipe=research_7b {ray}",
        f"{one} env NODE_IP=10.0.0.1 bash {FOLDER}/node.sh head {ray}",
        f"--overlap --nodes=2 --ntasks=2 --exclude=n1 bash {FOLDER}/node.sh worker 10.0.0.1 {ray}",
    ]


@pytest.mark.parametrize(("mark", "backend"), [("fsdp_config.json", "fsdp"), ("model/dist_ckpt/x", "megatron")])
def test_checkpoint_is_merged_by_verl_for_its_backend(
    env: dict[str, str], tmp_path: Path, mark: str, backend: str
) -> None:
    actor = tmp_path / "global_step_5" / "actor"
    (actor / mark).parent.mkdir(parents=True)
    (actor / mark).touch()
    merger = write(tmp_path / "merger", '#!/usr/bin/env bash\necho "$*"\n')
    done = run("export.sh", str(actor.parent), "/out", env={**env, "PYTHON": str(merger)})
    merge = f"-m verl.model_merger merge --backend {backend} --local_dir {actor} --target_dir /out"
    assert done.stdout.splitlines() == [merge, "/out"]
    assert "generation_config.json" in done.stderr


def test_checkpoint_with_exported_weights_is_copied_and_another_folder_refused(
    env: dict[str, str], tmp_path: Path
) -> None:
    ready = tmp_path / "global_step_5" / "actor" / "huggingface"
    ready.mkdir(parents=True)
    (ready.parent / "fsdp_config.json").touch()
    for name in ("model.safetensors", "generation_config.json"):
        (ready / name).write_text(json.dumps(name))
    target = tmp_path / "out"
    done = run("export.sh", str(ready.parents[1]), str(target), env={**env, "PYTHON": "false"})
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in target.iterdir()) == ["generation_config.json", "model.safetensors"]
    assert run("export.sh", str(tmp_path), str(target), env=env).returncode == 1


@pytest.mark.parametrize("script", sorted(path.name for path in FOLDER.glob("*.sh")))
def test_scripts_parse_and_stop_at_the_first_error(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(FOLDER / script)], timeout=30).returncode == 0
    assert "set -euo pipefail" in (FOLDER / script).read_text() or script == "env.sh"
