"""Real HTTP servers on loopback that stand in for the search API, the web's pages and a chat model."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from research_plugin.document import Document
from research_plugin.retriever.settings import RetrieverConfig, WebSettings
from research_plugin.retriever.web.engine import WebEngine, make

KEY = "k3y-0f-the-search-api"


@dataclass
class Reply:
    """What a fake answers; ``seconds`` is waited before, ``drip`` between the bytes of the body."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    drip: float = 0.0

    def payload(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class Asked:
    """A request as it came in: JSON body if there was one, time of arrival."""

    path: str
    headers: dict[str, str]
    body: Any
    time: float


class FakeServer:
    """Answers every path with what ``answer`` returns for it; a context manager. ``most_at_once``: peak of requests."""

    def __init__(self, answer: Callable[[Asked], Reply], address: str = "127.0.0.1") -> None:
        self.asked: list[Asked] = []
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                fake._serve(self, answer)

            do_GET = do_POST = handle_any

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                pass  # a client that hung up

        self._server = Server((address, 0), Handler)
        self.address, self.port = address, self._server.server_address[1]
        self.url = f"http://{address}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def use_tls(self, certificate: str, key: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _serve(self, handler: BaseHTTPRequestHandler, answer: Callable[[Asked], Reply]) -> None:
        content = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        asked = Asked(handler.path, headers, json.loads(content) if content else None, time.monotonic())
        with self._lock:
            self.asked.append(asked)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            reply = answer(asked)
            time.sleep(reply.seconds)
        finally:
            with self._lock:
                self._at_once -= 1
        payload = reply.payload()
        handler.send_response(reply.status)
        for name, value in {"Content-Length": str(len(payload)), **reply.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if not reply.drip:
            handler.wfile.write(payload)
        else:
            for byte in payload:
                handler.wfile.write(bytes([byte]))
                time.sleep(reply.drip)


class Results:
    """An ``answer`` for a Serper-shaped API: ten hits a page out of ``links``, or of made-up pages for every query."""

    def __init__(self, links: list[str] | None = None, total: int = 100) -> None:
        self.links, self.total = links, total
        self.replies: list[Reply] = []
        """Given out first, one a request."""
        self.down: set[str] = set()
        """Queries that get 503."""

    def __call__(self, asked: Asked) -> Reply:
        if self.replies:
            return self.replies.pop(0)
        query, page = asked.body["q"].split(" site:")[0], asked.body["page"]
        if query in self.down:
            return Reply(b"overloaded", 503)
        links = self.links or [f"https://{n}.pages.test/{query}" for n in range(1, self.total + 1)]
        numbered = list(enumerate(links, start=1))[(page - 1) * 10 : page * 10]
        organic = [
            {"title": f"Title {n}", "link": link, "snippet": f"Snippet {n} of {query}", "position": n}
            for n, link in numbered
        ]
        return Reply({"searchParameters": asked.body, "organic": organic, "answerBox": {"answer": "42"}})


def html(text: str, menu: str = "") -> Reply:
    page = f"<html><head><title>T</title></head><body>{menu}<article><p>{text}</p></article></body></html>"
    return Reply(page.encode(), headers={"Content-Type": "text/html; charset=utf-8"})


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@contextmanager
def engine(api: FakeServer, **settings: Any) -> Iterator[WebEngine]:
    """The web engine over a fake search API, with a key, no pace to speak of and short pauses between tries."""
    options = {"endpoint": f"{api.url}/search", "requests_per_second": 1000.0, **settings}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERPER_API_KEY", KEY)
        patch.setattr("research_plugin.retriever.web.api._BACKOFF", 0.01)
        made = make(RetrieverConfig(engine="web", web=WebSettings(**options)))
        try:
            yield made
        finally:
            made.close()


def texts(documents: list[Document]) -> list[str]:
    """Contents without their title lines."""
    return [document.contents.partition("\n")[2] for document in documents]
