"""The worker processes of ``index build``, seen from the parent: start them, hand out blocks, end them."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from research_plugin.errors import ResearchPluginError
from research_plugin.retriever.build.worker import Ready, Task, work

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

_GRACE_SECONDS = 2.0


class Workers:
    """One process per entry of ``devices``; a context manager that ends them, in the middle of a block if need be."""

    def __init__(self, devices: list[str], task: Task) -> None:
        # fork would carry the parent's threads and CUDA state over; spawn also leaves each pipe with one writer only.
        context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, SpawnProcess] = {}
        try:
            for device in devices:
                ours, theirs = context.Pipe()
                own = replace(task, encoder=replace(task.encoder, device=device))
                process = context.Process(target=work, args=(theirs, own), name=f"worker on {device}", daemon=True)
                self._processes[ours] = process
                process.start()
                theirs.close()
        except BaseException:
            self.close()
            raise

    def ready(self) -> list[Ready]:
        """Wait until every encoder is loaded."""
        return [self._receive(connection) for connection in self._processes]

    def encode(self, blocks: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Hand out ``(first row, last row + 1)`` and yield each one when its vectors are written, in any order."""
        waiting = deque(blocks)
        busy: dict[Connection, tuple[int, int]] = {}

        def hand_out(connection: Connection) -> None:
            if waiting:
                busy[connection] = waiting.popleft()
                connection.send(busy[connection])

        for connection in self._processes:
            hand_out(connection)
        while busy:
            for connection in cast("list[Connection]", wait(list(busy))):
                self._receive(connection)
                finished = busy.pop(connection)
                hand_out(connection)
                yield finished

    def close(self) -> None:
        """End the processes: idle ones see the end of their pipe, the others are killed. May be called twice."""
        for connection in self._processes:
            connection.close()
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in self._processes.values():
            if process.pid is not None:
                process.join(max(0.0, deadline - time.monotonic()))
                process.kill()
                process.join()
        self._processes.clear()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self, connection: Connection) -> Any:
        """One message of a worker; raises what the worker could not do."""
        try:
            message = connection.recv()
        except (EOFError, ConnectionError):
            process = self._processes[connection]
            process.join()
            raise ResearchPluginError(
                f"{process.name}: ended with exit code {process.exitcode} (its own message is above; -9 means killed, "
                "mostly for memory: fewer --workers or a smaller encoder.batch_tokens). Finished blocks are kept"
            ) from None
        if isinstance(message, Exception):
            raise message
        return message
