"""The little of HTTP that the server needs over bare ASGI: read a body, send an answer, give up a wait.

A web framework costs about as much per request as everything else in the front together.
ASGI messages: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_DISCARDED_BODIES = 16


class Refused(Exception):
    """The request is not served; carries the HTTP status and the code of the error body."""

    def __init__(self, message: str, code: str = "invalid_request", status: int = 400) -> None:
        super().__init__(message)
        self.message, self.code, self.status = message, code, status


class Disconnected(Exception):
    """The client went away; there is nobody to answer."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send) -> None:
        fixed = [
            (b"content-type", self.content_type.encode("latin-1")),
            (b"content-length", str(len(self.body)).encode("latin-1")),
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": [*fixed, *self.headers]})
        await send({"type": "http.response.body", "body": self.body})


def error_response(error: Refused, *headers: tuple[bytes, bytes]) -> Response:
    """``{"error": {"code", "message"}}``; what may pass (429, 503) says when to come again."""
    body = json.dumps({"error": {"code": error.code, "message": error.message}}).encode()
    retry = ((b"retry-after", b"1"),) if error.status in (429, 503) else ()
    # The client's next request should not be on its way when the connection is closed.
    close = ((b"connection", b"close"),) if error.code == "draining" else ()
    return Response(body, error.status, headers=(*retry, *close, *headers))


async def read_body(receive: Receive, limit: int) -> bytes:
    """Read at most ``limit`` bytes. An oversized body is read on and thrown away, so that the client sees the 413.

    Raises:
        Refused: the body is too large.
        Disconnected: the client left before its body was complete.
    """
    kept, total, more = bytearray(), 0, True
    while more and total <= _DISCARDED_BODIES * limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        more = message.get("more_body", False)
        total += len(chunk)
        if total <= limit:
            kept += chunk
    if total > limit:
        raise Refused(f"the body is larger than {limit} bytes", "body_too_large", 413)
    return bytes(kept)


class Patience:
    """Ends the wait of the task that made it - when its time is up, or when somebody calls `give_up` - and says why.

    The task sees `asyncio.CancelledError` and then finds ``reason`` set: "deadline", "disconnected" or what
    `give_up` was told. After `close` nothing happens to it any more.
    """

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.reason: str | None = None
        self._task = asyncio.current_task(loop)
        self._timer = loop.call_later(seconds, self.give_up, "deadline")
        self._watch: asyncio.Task[Any] | None = None

    def watch_client(self, receive: Receive) -> None:
        """Give up when the client disconnects: the only message that can follow a whole body."""
        self._watch = asyncio.ensure_future(receive())
        self._watch.add_done_callback(self._disconnected)

    def give_up(self, reason: str) -> None:
        if self.reason is None and self._task is not None:
            self.reason = reason
            self._task.cancel()

    def close(self) -> None:
        self._task = None
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def _disconnected(self, watch: asyncio.Task[Any]) -> None:
        if not watch.cancelled():
            self.give_up("disconnected")
