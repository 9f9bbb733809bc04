"""The viewer as a small server on this machine, which follows a run that is still being written.

``/`` is the page, ``/rows?from=N&edition=E`` the rows from number N on, ``/chunk?n=K`` the rollouts of block K. It
answers to its own loopback names only, so that no web page elsewhere can read a run through somebody's browser.
"""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from research_plugin.errors import ConfigError, DataError
from research_plugin.reports.read_records import Place, RunRecords
from research_plugin.viewer.html_file import CHUNK, group_number, html_around, pack
from research_plugin.viewer.pages import page_of, row_of

__all__ = ["LiveRun", "make_server"]

_READ_SECONDS = 1.0
"""How long one request may read new records before it answers with those it has."""
_MOST_ROWS = 5000


class LiveRun:
    """A run's rows as far as they have been read, and its pages on demand."""

    def __init__(self, run: Path) -> None:
        """Read nothing yet."""
        self._run = run
        self._lock = threading.Lock()
        self._edition = -1
        self._start()

    def _start(self) -> None:
        self._edition += 1
        self._records = RunRecords(self._run)
        self._rows: list[list[Any]] = []
        self._places: list[Place] = []
        self._groups: dict[tuple[str, int, str], int] = {}

    def rows(self, start: int, edition: int) -> dict[str, Any]:
        """Return rows from ``start`` on, after reading what is new.

        ``more`` says whether to ask again at once. Another ``edition`` than the one asked for begins with row 0: files
        were replaced, and the rows before are no longer true.
        """
        with self._lock:
            if self._records.is_outdated():
                self._start()
            start = start if edition == self._edition else 0
            done = self._read_new() if start >= len(self._rows) else False
            return {
                "edition": self._edition,
                "rows": self._rows[start : start + _MOST_ROWS],
                "more": not done or start + _MOST_ROWS < len(self._rows),
                "unreadable": len(self._records.unreadable),
            }

    def chunk(self, number: int) -> list[dict[str, Any]]:
        """Return the pages of one block; a page that cannot be read any more says so."""
        with self._lock:
            places = self._places[number * CHUNK : (number + 1) * CHUNK]
        return [self._page(place) for place in places]

    def _read_new(self) -> bool:
        until = time.monotonic() + _READ_SECONDS
        for place, record in self._records.new():
            self._places.append(place)
            self._rows.append([*row_of(record), group_number(self._groups, record)])
            if time.monotonic() > until:
                return False
        return True

    def _page(self, place: Place) -> dict[str, Any]:
        try:
            return page_of(self._records.read(place))
        except DataError as error:
            return {"gone": str(error)}


def make_server(run: Path, title: str, port: int) -> ThreadingHTTPServer:
    """Return a server bound to ``port`` of the loopback address (0: a free one).

    Raises:
        DataError: there is no such run.
        ConfigError: the port is taken or not allowed.
    """
    handler = partial(_Handler, LiveRun(run), title)
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port {port} cannot be listened on: {error}; --port 0 takes a free one") from error
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, run: LiveRun, title: str, *args: Any) -> None:
        self._run, self._title = run, title
        super().__init__(*args)

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in ("127.0.0.1", "localhost"):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this server answers to localhost only")
            return
        url = urlsplit(self.path)
        query = {key: int(values[0]) for key, values in parse_qs(url.query).items() if values[0].isdecimal()}
        if url.path == "/":
            page = "".join(html_around(self._title, live=True))
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())
        elif url.path == "/rows":
            self._send_json(self._run.rows(query.get("from", 0), query.get("edition", 0)))
        elif url.path == "/chunk":
            self._send_json(self._run.chunk(query.get("n", 0)))
        else:
            self._send(
                HTTPStatus.NOT_FOUND, "text/plain", b"no such page; known: /, /rows?from=N&edition=E, /chunk?n=K"
            )

    def _send_json(self, value: Any) -> None:
        if "gzip" in (self.headers.get("Accept-Encoding") or ""):
            self._send(HTTPStatus.OK, "application/json", pack(value), {"Content-Encoding": "gzip"})
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(value).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        fixed = {"Content-Type": kind, "Content-Length": str(len(body)), "X-Content-Type-Options": "nosniff"}
        for name, value in {**fixed, "Cache-Control": "no-store", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the browser asks every other second."""
