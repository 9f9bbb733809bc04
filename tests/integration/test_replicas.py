"""Several retriever servers and one client under load: one hangs, is killed, ends, comes back, and no query fails."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from research_plugin.document import Document
from research_plugin.errors import SearchError
from research_plugin.retriever.bm25 import BM25Engine
from research_plugin.retriever.corpus import read_corpus
from research_plugin.retriever.process import RetrieverProcess
from research_plugin.retriever.ray_serve import gpus
from research_plugin.retriever.settings import (
    EncoderSettings,
    IndexSettings,
    RayServeSettings,
    RerankSettings,
    RetrieverConfig,
)
from research_plugin.search.client import SearchClient
from research_plugin.search.settings import SearchConfig
from research_plugin.search.transport import SearchStats

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "research_plugin" / "data" / "tiny" / "corpus.jsonl"
TOPK = 3
PATIENCE = 120.0
"""Seconds that anything here may take; a hang fails the test."""


@pytest.fixture(autouse=True, scope="module")
def child_finds_the_package() -> Iterator[None]:
    """The servers are started with ``python -m``; from a source tree they need the root on their path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        yield


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[Document, ...]]:
    """Question -> what BM25 answers, asked directly."""
    documents = read_corpus(CORPUS)
    questions = [document.contents for document in documents[::8]]
    rows = BM25Engine(documents).search(questions, TOPK)
    return {question: tuple(row) for question, row in zip(questions, rows, strict=True)}


class Load:
    """Callers that ask one question after the other through a client, and compare every answer."""

    def __init__(self, client: SearchClient, answers: dict[str, tuple[Document, ...]]) -> None:
        self._client, self._answers = client, answers
        self._questions = itertools.cycle(answers)
        self.answered = 0

    async def call(self) -> None:
        for question in self._questions:
            found = (await self._client.search(question)).documents
            assert [document.id for document in found] == [document.id for document in self._answers[question]]
            self.answered += 1

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the load run until the condition holds."""
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.02)

    async def more(self, queries: int = 300) -> None:
        """Let the load run for so many answers."""
        goal = self.answered + queries
        await self.until(lambda: self.answered >= goal)


async def run_under_load(
    urls: list[str],
    answers: dict[str, tuple[Document, ...]],
    steps: Callable[[Load], Coroutine[Any, Any, None]],
    callers: int = 24,
    **settings: Any,
) -> SearchStats:
    """Run the steps while callers ask; a wrong answer or an error of theirs is raised, and so is a hang."""
    client = SearchClient(SearchConfig(urls=urls, topk=TOPK, cache_size=0, batch_size=4, cooldown=0.3, **settings))
    load = Load(client, answers)
    tasks = [asyncio.create_task(steps(load)), *(asyncio.create_task(load.call()) for _ in range(callers))]
    done, _ = await asyncio.wait(tasks, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.aclose()
    assert done, f"not done after {PATIENCE} s and {load.answered} answers"
    for task in done:
        task.result()
    return client.stats


def served(url: str) -> int:
    """Queries that the server behind the URL has taken, 0 while it is not up."""
    try:
        text = httpx.get(f"{url}/metrics", trust_env=False, timeout=5).text
    except httpx.TransportError:
        return 0
    found = re.search(r"^retriever_queries_total (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


async def test_client_loses_no_query_when_a_server_hangs_or_is_killed(
    answers: dict[str, tuple[Document, ...]],
) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(RetrieverProcess(CORPUS, timeout=PATIENCE)) for _ in range(2)]
        urls = [server.url for server in servers]

        async def hurt_one_and_bring_it_back(load: Load) -> None:
            await load.more()
            await load.until(lambda: all(served(url) > 50 for url in urls))
            os.kill(servers[1].pid, signal.SIGSTOP)
            await load.more()
            os.kill(servers[1].pid, signal.SIGCONT)
            before = served(urls[1])
            await load.until(lambda: served(urls[1]) > before + 50)
            os.kill(servers[1].pid, signal.SIGKILL)
            await load.more()
            servers[1].close()
            again = await asyncio.to_thread(RetrieverProcess, CORPUS, port=port_of(urls[1]), timeout=PATIENCE)
            stack.enter_context(again)
            await load.until(lambda: served(urls[1]) > 50)

        stats = await run_under_load(urls, answers, hurt_one_and_bring_it_back, read_timeout=2.0)
    assert stats.failures == 0
    assert stats.retries > 0


async def test_client_loses_no_query_while_servers_are_restarted_in_turn(
    answers: dict[str, tuple[Document, ...]],
) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(RetrieverProcess(CORPUS, timeout=PATIENCE)) for _ in range(2)]
        urls = [server.url for server in servers]

        async def restart_each(load: Load) -> None:
            for server, url in zip(servers, urls, strict=True):
                await load.more()
                await asyncio.to_thread(server.close)
                again = await asyncio.to_thread(RetrieverProcess, CORPUS, port=port_of(url), timeout=PATIENCE)
                stack.enter_context(again)
                await load.until(lambda url=url: served(url) > 50)

        # One step to the other server is enough for every query.
        stats = await run_under_load(urls, answers, restart_each, retries=1)
    assert stats.failures == 0


def below(pid: int) -> dict[int, str]:
    """Process id -> command line of every process that descends from ``pid``."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        state, parent = stat.rsplit(")", 1)[1].split()[:2]
        if state != "Z":
            parents[int(folder.name)], commands[int(folder.name)] = int(parent), command
    found, generation = {}, {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        found.update({child: commands[child] for child in generation})
    return found


class RayServe:
    """``serve --ray`` with a Ray of its own and two replicas."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url, self._log = f"http://127.0.0.1:{port}", folder / "server.log"
        ready = folder / "ready.json"
        command = [sys.executable, "-m", "research_plugin.retriever", "--ray", "--corpus", str(CORPUS)]
        command += ["--port", str(port), "--ready-file", str(ready), "--exit-with-parent", str(os.getpid())]
        command += ["--token-env", "RAY_TEST_TOKEN", "ray.min_replicas=2", "ray.max_replicas=2"]
        environment = {**os.environ, "RAY_TMPDIR": str(folder), "RAY_raylet_start_wait_time_s": "120"}
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            deadline = time.monotonic() + PATIENCE
            while not ready.exists():
                assert self._process.poll() is None and time.monotonic() < deadline, self.log()
                time.sleep(0.1)
        except BaseException:
            self.end()
            raise

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def replicas(self) -> set[int]:
        """Process ids of the replicas."""
        processes = below(self._process.pid)
        return {pid for pid, command in processes.items() if command.startswith("ray::ServeReplica")}

    def end(self) -> int:
        """SIGTERM; returns the exit status. Nothing that it started is left."""
        started = below(self._process.pid)
        self._process.terminate()
        try:
            status = self._process.wait(PATIENCE)
            left = set(started)
            deadline = time.monotonic() + PATIENCE
            while left and time.monotonic() < deadline:
                left = {pid for pid in left if Path(f"/proc/{pid}/cmdline").exists()}
                time.sleep(0.1)
            assert not left
            return status
        finally:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def ray_serve() -> Iterator[RayServe]:
    pytest.importorskip("ray.serve")
    # Not under tmp_path: the paths of Ray's sockets must stay below 108 bytes.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TEST_TOKEN", "s3cret")
        try:
            server = RayServe(folder)
            try:
                yield server
            finally:
                assert server.end() == 0, server.log()
            assert "Traceback" not in server.log()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


async def test_ray_serve_loses_no_query_when_replicas_are_killed(
    ray_serve: RayServe, answers: dict[str, tuple[Document, ...]]
) -> None:
    assert httpx.get(f"{ray_serve.url}/health", trust_env=False).json()["size"] == 1570
    refused = httpx.post(f"{ray_serve.url}/search", json={"query": "city"}, trust_env=False)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
    assert "s3cret" not in ray_serve.log()
    before = ray_serve.replicas()
    assert len(before) == 2
    first, second = before

    async def kill_one_after_the_other(load: Load) -> None:
        await load.more()
        os.kill(first, signal.SIGKILL)
        await load.more()
        await load.until(lambda: len(ray_serve.replicas() - {first}) == 2)
        # From here on only the one that Ray has started is left.
        os.kill(second, signal.SIGKILL)
        await load.more()

    settings = {"token_env": "RAY_TEST_TOKEN", "backoff_max": 2.0, "retries": 20}
    stats = await run_under_load([ray_serve.url], answers, kill_one_after_the_other, callers=8, **settings)
    assert stats.failures == 0
    assert len(ray_serve.replicas() - before) >= 1


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (RetrieverConfig(), 0),
        (RetrieverConfig(encoder=EncoderSettings(device="cuda")), 1),
        (RetrieverConfig(rerank=RerankSettings(device="cuda:0")), 1),
        (RetrieverConfig(index=IndexSettings(devices=["cuda:0", "cuda:1"]), encoder=EncoderSettings(device="cuda")), 2),
        (RetrieverConfig(index=IndexSettings(devices=["cpu"])), 0),
        (RetrieverConfig(encoder=EncoderSettings(device="cuda"), ray=RayServeSettings(gpus=0.5)), 0.5),
    ],
    ids=["cpu", "encoder", "reranker", "shards", "cpu-shard", "as-set"],
)
def test_ray_serve_gpus_of_a_replica(config: RetrieverConfig, wanted: float) -> None:
    assert gpus(config) == wanted


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["server.port=0"], r"server\.port: got 0; Ray Serve .* name a free one"),
        (["ray.max_replicas=1"], r"ray\.max_replicas: got 1; must be at least ray\.min_replicas=2"),
    ],
)
def test_ray_serve_refuses_settings_before_ray_starts(overrides: list[str], message: str) -> None:
    with pytest.raises(SearchError, match=rf"ended with status 1 (?s:.*)error: {message}"):
        RetrieverProcess(CORPUS, port=8000, timeout=PATIENCE, arguments=["--ray", *overrides])
