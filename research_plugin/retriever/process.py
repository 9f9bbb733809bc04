"""A retriever server as a child process, for the quickstart, the preflight, examples and tests.

Only the standard library is imported here; the server's packages are imported in the child.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from research_plugin.errors import SearchError


class RetrieverProcess:
    """Starts ``python -m research_plugin.retriever`` and waits until it answers; a context manager.

    The child ends with this process, even if this one is killed.

    Args:
        corpus: JSONL file to serve; None if ``arguments`` say what to serve.
        port: 0 takes a free one.
        timeout: seconds to wait for the index to be ready.
        arguments: further arguments of ``serve``, such as ``["--recipe", "tiny", "topk=3"]``.
        log: file for the server's output; None keeps it in a temporary folder that `close` removes.

    Raises:
        SearchError: the server ended or was not ready in time; the message holds the tail of its log.
    """

    url: str

    def __init__(
        self,
        corpus: str | Path | None = None,
        *,
        port: int = 0,
        timeout: float = 120.0,
        arguments: Sequence[str] = (),
        log: str | Path | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="retriever-"))
        self._log = Path(log) if log is not None else self._folder / "server.log"
        ready = self._folder / "ready.json"
        command = [sys.executable, "-m", "research_plugin.retriever", "--port", str(port)]
        command += ["--ready-file", str(ready), "--exit-with-parent", str(os.getpid())]
        command += [*(["--corpus", str(corpus)] if corpus is not None else []), *arguments]
        try:
            with self._log.open("ab") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    # Ctrl-C in the trainer's terminal must reach the trainer first; it closes us when it is done.
                    start_new_session=True,
                )
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        try:
            self.url = self._wait(ready, timeout)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the server: SIGTERM, then SIGKILL after 15 s. May be called twice."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> RetrieverProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, ready: Path, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while not ready.exists():
            status = self._process.poll()
            if status is not None:
                raise SearchError(f"retriever server: ended with status {status} before it was ready:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise SearchError(f"retriever server: not ready after {timeout:.0f} s:\n{self._tail()}")
            time.sleep(0.05)
        return str(json.loads(ready.read_text(encoding="utf-8"))["url"])

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
