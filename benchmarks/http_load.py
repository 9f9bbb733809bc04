"""Load for a retriever server: keep-alive clients in one process, each with one request in flight.

Not a benchmark itself.

Runs as a process of its own, so that the server under test shares neither its interpreter nor its event loop:

    python benchmarks/http_load.py '{"port": 8000, "path": "/search", "clients": 64, "seconds": 5, ...}'

prints one JSON line: queries, seconds, latencies' percentiles, statuses.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass
class Load:
    """One measurement. ``queries`` is a file with one query a line, none used twice (clients start at ``first``)."""

    port: int
    path: str
    queries: str
    first: int
    clients: int
    batch: int = 1
    topk: int = 5
    seconds: float = 5.0
    warmup: float = 1.0


@dataclass
class Measured:
    """``p50_ms`` and ``p99_ms`` are of whole requests; ``used`` counts queries taken from the file, with warm-up."""

    qps: float
    p50_ms: float
    p99_ms: float
    requests: int
    queries: int
    used: int
    failed: int
    server_cpu_ms: float
    """CPU of the server's process per query."""
    health_p99_ms: float


def run(load: Load, server_pid: int, timeout_s: float = 300.0) -> Measured:
    """Run the load in a fresh process."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), json.dumps({**asdict(load), "pid": server_pid})],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode:
        raise SystemExit(f"load {load} failed:\n{done.stderr}")
    return Measured(**json.loads(done.stdout))


class _Connection:
    """One keep-alive HTTP/1.1 connection that reads just enough of the answer."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)

    async def ask(self, head: bytes, body: bytes) -> int:
        self._writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        header = await self._reader.readuntil(b"\r\n\r\n")
        lower = header.lower()
        start = lower.index(b"content-length:") + 15
        await self._reader.readexactly(int(lower[start : lower.index(b"\r\n", start)]))
        return int(header[9:12])


async def _measure(load: Load, pid: int) -> Measured:
    import psutil

    queries = Path(load.queries).read_text(encoding="utf-8").splitlines()
    process = psutil.Process(pid)
    position, failed, finished = load.first, 0, 0
    latencies: list[float] = []
    measuring = stopping = False
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % load.path.encode()

    async def client() -> None:
        nonlocal position, failed, finished
        connection = _Connection(load.port)
        await connection.open()
        while not stopping:
            asked = [queries[(position + i) % len(queries)] for i in range(load.batch)]
            position += load.batch
            body = {"query": asked[0] if load.path == "/search" else asked, "top_n": load.topk}
            started = time.perf_counter()
            status = await connection.ask(head, json.dumps(body).encode())
            if measuring and not stopping:
                latencies.append(time.perf_counter() - started)
                finished += load.batch
                failed += status != 200

    tasks = [asyncio.create_task(client()) for _ in range(load.clients)]
    await asyncio.sleep(load.warmup)
    prober = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--health", str(load.port), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    measuring, started, cpu = True, time.perf_counter(), sum(process.cpu_times()[:2])
    await asyncio.sleep(load.seconds)
    # A slow server has answered little by then; wait for some answers so that a percentile means something.
    while len(latencies) < 2 * load.clients and time.perf_counter() - started < 20 * load.seconds:
        await asyncio.sleep(0.1)
    stopping = True
    seconds, cpu = time.perf_counter() - started, sum(process.cpu_times()[:2]) - cpu
    health, _ = await prober.communicate(b"")  # closes its stdin
    await asyncio.wait(tasks, timeout=60)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    return Measured(
        qps=finished / seconds,
        p50_ms=1000 * _percentile(latencies, 0.5),
        p99_ms=1000 * _percentile(latencies, 0.99),
        requests=len(latencies),
        queries=finished,
        used=position - load.first,
        failed=failed,
        server_cpu_ms=1000 * cpu / max(1, finished),
        health_p99_ms=float(health),
    )


async def _probe(port: int) -> float:
    """Ask /health every 50 ms until stdin closes; return the p99 in ms. In a process of its own: a busy client that
    reads its answers late would count as a slow server."""
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    connection, taken = _Connection(port), []
    await connection.open()
    while not ended.done():
        started = time.perf_counter()
        await connection.ask(b"GET /health HTTP/1.1\r\nhost: x\r\n", b"")
        taken.append(time.perf_counter() - started)
        await asyncio.sleep(0.05)
    return 1000 * _percentile(taken, 0.99)


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values) or [float("nan")]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    if sys.argv[1] == "--health":
        print(asyncio.run(_probe(int(sys.argv[2]))))
        return
    given: dict[str, Any] = json.loads(sys.argv[1])
    pid = given.pop("pid")
    print(json.dumps(asdict(asyncio.run(_measure(Load(**given), pid)))))


if __name__ == "__main__":
    main()
