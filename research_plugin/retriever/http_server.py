"""uvicorn around the application: event loop, timeouts, and a drain before it closes any connection."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING

from research_plugin.retriever.app import RetrieverApp

if TYPE_CHECKING:
    import uvicorn

_FLUSH_SECONDS = 2


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

    config = uvicorn.Config(
        app,
        loop="auto",
        http="auto",  # uvloop and httptools where they are installed
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
