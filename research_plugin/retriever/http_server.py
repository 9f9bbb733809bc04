"""uvicorn around the application: event loop, timeouts, bounded headers, a drain before any connection is closed."""

from __future__ import annotations

import logging
import resource
from types import FrameType
from typing import TYPE_CHECKING, Any

from research_plugin.retriever.app import RetrieverApp

if TYPE_CHECKING:
    import uvicorn

_FLUSH_SECONDS = 2
_HEAD_BYTES = 512 * 1024


def http_server(app: RetrieverApp) -> uvicorn.Server:
    """Return a server whose ``run(sockets=[listener])`` ends after SIGTERM or SIGINT; a second signal ends it at once.

    uvicorn alone stops listening as soon as the signal comes, so nobody could see that the server is draining.
    """
    import uvicorn

    class Server(uvicorn.Server):
        asked_to_end = False

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # Not handed on to uvicorn's own handler: it would raise the signal again after a clean end.
            if self.asked_to_end:
                self.should_exit = self.force_exit = True
            self.asked_to_end = True
            app.drain(self.end)

        def end(self) -> None:
            self.should_exit = True

    # What it says at start and end, we say, and its warnings tell of each odd request.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    _take_all_file_descriptors()
    config = uvicorn.Config(
        app,
        loop="auto",  # uvloop where it is installed
        http=_http_protocol(),
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        # Longer than the clients' own expiry, so that a client never writes into a connection just being closed.
        timeout_keep_alive=75,
        # After the drain only clients are left that do not read their answers.
        timeout_graceful_shutdown=_FLUSH_SECONDS,
    )
    return Server(config)


def _http_protocol() -> Any:
    """httptools where it is installed, with what it lacks: an end to the headers of a request.

    It keeps what it has of them, and 200 MB in one header keep the event loop busy for a minute. h11 has a limit.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class Protocol(HttpToolsProtocol):
        _in_head, _head = False, 0

        def on_message_begin(self) -> None:
            self._in_head, self._head = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_head:
                self._head += len(data)  # the end of an earlier request may be in there, which is a small part
                if self._head > _HEAD_BYTES:
                    self.send_400_response("The headers are too large.")

    return Protocol


def _take_all_file_descriptors() -> None:
    """A connection takes one, and 1,024, the usual limit, may be fewer than a large training opens."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
