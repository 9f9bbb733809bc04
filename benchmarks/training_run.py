"""Real training runs for benchmarks: one ``main_ppo`` process over the tiny recipe, and what it logged.

Not a benchmark itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from research_plugin.reports.summary import read_metrics


def train(folder: Path, overrides: Sequence[str], timeout_s: float) -> list[tuple[int, dict[str, Any]]]:
    """Train with ``+recipe=research_tiny`` and ``overrides`` into ``folder``; return (step, metrics) in order.

    The whole output is in ``folder/log``.

    Raises:
        SystemExit: the run failed or took longer than ``timeout_s``; with the end of the log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Without a handler SIGTERM, which `timeout` sends, would end this process and leave the training behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # A variable meant for another run would reach this one.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "VLLM_", "RAY_", "OMP_"))
    }
    command = [sys.executable, "-u", "-m", "verl.trainer.main_ppo", "+recipe=research_tiny"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"trainer.default_local_dir={folder}", *overrides],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            if process.poll() is None:
                _stop(process)
    if code != 0:
        reason = f"took longer than {timeout_s:g} s" if code == -1 else f"ended with exit status {code}"
        tail = (folder / "log").read_text(encoding="utf-8", errors="replace")[-3000:]
        raise SystemExit(f"{tail}\n\nthe training run {reason}; its whole output: {folder / 'log'}")
    return read_metrics(folder / "metrics.jsonl")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt first, so that Ray and the retriever are shut down by the run itself."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
