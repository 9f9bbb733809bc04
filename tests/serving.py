"""The retriever's front without a socket: its life cycle, single ASGI calls, and an engine that does as it is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from research_plugin.document import Document
from research_plugin.retriever.app import RetrieverApp, create_app
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.settings import ServerSettings

DOCUMENTS = [Document("00012", "Beyoncé\nsinger", 2.0), Document("1", "b", 1.0), Document("2", "c", 0.5)]


class StubEngine:
    """Returns the first documents for every query but "none"; remembers its batches; can wait and fail."""

    name = "stub"

    def __init__(self, seconds: float = 0.0, gate: threading.Event | None = None, size: int | None = 3) -> None:
        self.batches: list[list[str]] = []
        self.seconds, self.gate, self.size = seconds, gate, size
        self.broken: BaseException | None = None
        self.closed = False

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        self.batches.append(queries)
        with stages("search"):
            if self.gate is not None:
                assert self.gate.wait(10)
            time.sleep(self.seconds)
        if self.broken is not None:
            raise self.broken
        if "poison" in queries:
            raise RuntimeError("secret detail")
        return [[] if query == "none" else DOCUMENTS[:topk] for query in queries]

    def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def running(make_engine: Callable[[], Any], ready: bool = True, **options: Any) -> AsyncIterator[RetrieverApp]:
    """The application between its ASGI start-up and shutdown; ``options`` go to `create_app`."""
    app = create_app(make_engine, **{"settings": ServerSettings(), **options})
    inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    outbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan"}, inbox.get, outbox.put))
    inbox.put_nowait({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    try:
        while ready and (await call(app, "GET", "/health"))[0] != 200:
            await asyncio.sleep(0.002)
        yield app
    finally:
        inbox.put_nowait({"type": "lifespan.shutdown"})
        await life


@asynccontextmanager
async def serving(
    make_engine: Callable[[], Any], ready: bool = True, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of an application in `running`."""
    async with running(make_engine, ready, **options) as app, http_client(app) as client:
        yield client


def http_client(app: RetrieverApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


async def call(
    app: RetrieverApp,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Sequence[tuple[bytes, bytes]] = (),
    receive: Callable[[], Any] | None = None,
) -> tuple[int, dict[bytes, bytes], bytes]:
    """One request as an ASGI server makes it, in a task of its own; status 0 if nothing was answered.

    ``receive`` replaces the messages of a client that sends ``body`` and then waits.
    """
    sent: list[MutableMapping[str, Any]] = []
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    await asyncio.create_task(app(scope, receive or receive_body, send))
    if not sent:
        return 0, {}, b""
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])
