"""vLLM's own OpenAI-compatible server over a tiny model, on the CPU: what a user serves, in small."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from composing import clean_environment

MODEL_NAME = "tiny"
MAX_MODEL_LEN = 1024


@contextmanager
def serve_model(model: Path, log: Path) -> Iterator[str]:
    """Start the server, which takes half a minute; yield its URL without ``/v1``; end all of its processes."""
    from research_plugin.verl_ext.cpu.platform import ROLLOUT_ENV

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
        "--model", str(model), "--served-model-name", MODEL_NAME,
        "--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN), "--enforce-eager", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    env = {**clean_environment(), **ROLLOUT_ENV, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=log.parent, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 300
            while not _ready(url):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
                time.sleep(0.5)
            yield url
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
