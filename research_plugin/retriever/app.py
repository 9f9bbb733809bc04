"""The HTTP front, a bare ASGI application: routes, token, deadline, health, drain. It never computes in the event loop.

Every error is ``{"error": {"code", "message"}}`` with a 4xx or 5xx status; no stack trace leaves the server.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from research_plugin.errors import ResearchPluginError
from research_plugin.retriever.asgi import (
    Disconnected,
    Patience,
    Receive,
    Refused,
    Response,
    Scope,
    Send,
    error_response,
    read_body,
)
from research_plugin.retriever.batcher import Batcher, EngineFailed, QueueFull
from research_plugin.retriever.engine import Engine
from research_plugin.retriever.metrics import Metrics
from research_plugin.retriever.routes import ROUTES, RequestLimits, SearchRoute, json_encoder
from research_plugin.retriever.settings import ServerSettings

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# Above either, JSON takes milliseconds, in which the event loop could not answer /health.
_LARGE_BODY = 64 * 1024
_MANY_DOCUMENTS = 200
_CLOSE_SECONDS = 5.0
_LINGER_SECONDS = 0.3
# How long event loop and compute thread wait for the interpreter lock while the other is in Python; 5 ms unless set. An
# encoder takes it hundreds of times per batch, the loop several times per request: 0.2 ms instead of 1 ms gave 3 to 5 %
# more queries a second with 64 and 256 clients.
_SWITCH_SECONDS = 0.0002
_GIVEN_UP = {
    "deadline": "no answer within the deadline; the server is busy, or the request's deadline is too short",
    "draining": "the server is shutting down; ask another one",
}


class RetrieverApp:
    """The ASGI application; see `create_app`."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        settings: ServerSettings,
        token: str | None,
        description: dict[str, Any],
        on_loaded: Callable[[Engine | Exception], None],
    ) -> None:
        self._make_engine, self._settings, self._on_loaded = make_engine, settings, on_loaded
        self._token = None if token is None else f"Bearer {token}".encode()
        self._description = description
        self._limits = RequestLimits.of(settings, description.get("max_topk"), description.get("topk"))
        self._engine: Engine | None = None
        self._batcher: Batcher | None = None
        self._failure: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._open: set[Patience] = set()
        self._metrics = Metrics(lambda: self._batcher.waiting if self._batcher else 0, lambda: len(self._open))
        self._encode = json_encoder()
        # One thread: each further one that holds the interpreter lock would make the event loop wait longer for it.
        self._json = ThreadPoolExecutor(1, thread_name_prefix="json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["path"] in ROUTES and scope["method"] == "POST":
            await self._search(scope, receive, send)
        else:
            await self._get(scope).send(send)

    def drain(self, done: Callable[[], None]) -> None:
        """Refuse new searches and call ``done`` when those under way are answered, ``settings.drain`` seconds at most.

        May be called from any thread and from a signal handler.
        """
        if self._loop is None:
            done()
        else:
            self._loop.call_soon_threadsafe(self._start_draining, done)

    # Searches.

    async def _search(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        path = scope["path"]
        try:
            response = await self._answer(ROUTES[path], dict(scope["headers"]), receive)
        except Disconnected:
            self._metrics.errors.labels("disconnected").inc()
            return
        except Refused as refusal:
            response = error_response(refusal)
            self._metrics.errors.labels(refusal.code).inc()
        except Exception:
            _log.exception("%s failed", path)
            response = error_response(Refused("the server failed; see its log", "internal", 500))
            self._metrics.errors.labels("internal").inc()
        else:
            self._metrics.request_seconds.observe(time.perf_counter() - started)
        self._metrics.requests.labels(path, response.status).inc()
        await response.send(send)

    async def _answer(self, route: SearchRoute, headers: dict[bytes, bytes], receive: Receive) -> Response:
        self._check_token(headers)
        patience = Patience(self._deadline(headers))
        self._open.add(patience)
        try:
            body = await read_body(receive, self._limits.max_body_bytes)
            patience.watch_client(receive)
            return await self._find(route, body)
        except asyncio.CancelledError:
            if patience.reason is None:
                raise
            if patience.reason == "disconnected":
                raise Disconnected from None
            raise Refused(_GIVEN_UP[patience.reason], patience.reason, 503) from None
        finally:
            self._open.discard(patience)
            patience.close()

    async def _find(self, route: SearchRoute, body: bytes) -> Response:
        if self._draining:
            raise Refused(_GIVEN_UP["draining"], "draining", 503)
        engine, batcher = self._engine, self._batcher
        if engine is None or batcher is None:
            raise Refused(self._failure or "the engine is still loading", "not_ready", 503)
        request = await self._run(len(body) > _LARGE_BODY, lambda: route.parse(body, self._limits, engine.size))
        asked = [query for query in request.queries if query.strip()]
        try:
            found = iter(await batcher.search(asked, request.topk))
        except QueueFull:
            raise Refused("too many queries are waiting; try again later", "busy", 429) from None
        except EngineFailed:
            message = "the engine failed on this request; see the server's log"
            raise Refused(message, "engine_failed", 500) from None
        rows = [next(found) if query.strip() else [] for query in request.queries]
        large = len(asked) * request.topk > _MANY_DOCUMENTS
        try:
            return Response(await self._run(large, lambda: self._encode(route.render(request, rows))))
        except (TypeError, ValueError) as error:  # what the engine returned is no JSON: not finite, or half a character
            _log.error("an answer could not be written: %s", error)
            raise Refused("the engine returned what JSON cannot hold", "engine_failed", 500) from None

    async def _run(self, large: bool, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._json, work) if large else work()

    def _check_token(self, headers: dict[bytes, bytes]) -> None:
        if self._token is not None and not hmac.compare_digest(headers.get(b"authorization", b""), self._token):
            raise Refused("a valid bearer token is required", "unauthorized", 401)

    def _deadline(self, headers: dict[bytes, bytes]) -> float:
        given = headers.get(b"x-deadline-seconds")
        if given is None:
            return self._settings.deadline
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if not seconds > 0:
            raise Refused("X-Deadline-Seconds must be a number above 0", "invalid_deadline")
        return min(seconds, self._settings.deadline)

    # Everything else.

    def _get(self, scope: Scope) -> Response:
        path, method = scope["path"], scope["method"]
        pages = {"/health": self._health, "/live": self._live, "/metrics": self._metrics_page}
        if path not in pages and path not in ROUTES:
            known = ", ".join([*ROUTES, *pages])
            return error_response(Refused(f"{method} {path}: Not Found; there is {known}", "not_found", 404))
        if path in ROUTES or method not in ("GET", "HEAD"):
            allowed = b"POST" if path in ROUTES else b"GET, HEAD"
            refusal = Refused(f"{method} {path}: Method Not Allowed", "method_not_allowed", 405)
            return error_response(refusal, (b"allow", allowed))
        try:
            return pages[path](dict(scope["headers"]))
        except Refused as refusal:
            return error_response(refusal)

    def _health(self, headers: dict[bytes, bytes]) -> Response:
        """Readiness: 200 only when a search would be taken. Never asks for the token."""
        known: dict[str, Any] = {"engine": None, "size": None, "topk": None, "corpus": None}
        if self._engine is not None:
            known |= {"engine": self._engine.name, "size": self._engine.size}
        known |= {key: value for key, value in self._description.items() if value is not None}
        if self._draining:
            status = "draining"
        elif self._failure is not None:
            status, known["error"] = "failed", self._failure
        elif self._batcher is not None and self._batcher.failing:
            status, known["error"] = "failing", self._batcher.failing
        else:
            status = "loading" if self._engine is None else "ready"
        body = self._encode({"status": status, **known})
        return Response(body) if status == "ready" else Response(body, 503, headers=((b"retry-after", b"1"),))

    def _live(self, headers: dict[bytes, bytes]) -> Response:
        return Response(b'{"status":"live"}')

    def _metrics_page(self, headers: dict[bytes, bytes]) -> Response:
        self._check_token(headers)
        return Response(self._metrics.render(), content_type=self._metrics.content_type)

    # Start and end.

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._load, args=(self._loop,), name="load", daemon=True).start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._batcher is not None:
            await self._batcher.close(_CLOSE_SECONDS)
        self._json.shutdown(wait=False, cancel_futures=True)
        gc.unfreeze()  # what no collection finds at the end, libraries of torch report as leaks, in 40 lines
        await send({"type": "lifespan.shutdown.complete"})

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a daemon thread, so that /health answers at once and Ctrl-C need not wait for a 60 GB index."""
        outcome: Engine | Exception
        try:
            outcome = self._make_engine()
        except Exception as error:
            outcome = error
        try:
            loop.call_soon_threadsafe(self._loaded, outcome)
        except RuntimeError:
            _log.info("the server ended before its engine was loaded")

    def _loaded(self, outcome: Engine | Exception) -> None:
        if isinstance(outcome, Exception):
            known = isinstance(outcome, ResearchPluginError)
            self._failure = str(outcome) if known else "the engine could not be loaded; see the server's log"
            _log.error("engine not loaded: %s", outcome, exc_info=None if known else outcome)
        else:
            # Millions of documents live as long as the process; a full collection that visits them takes seconds.
            gc.freeze()
            self._engine = outcome
            self._batcher = Batcher(outcome, self._settings, self._metrics)
            _log.info("ready: engine %s, %s documents", outcome.name, outcome.size)
        self._on_loaded(outcome)

    def _start_draining(self, done: Callable[[], None]) -> None:
        if self._draining is None:
            _log.info("draining: %d requests under way", len(self._open))
            self._draining = asyncio.get_running_loop().create_task(self._drain(done))

    async def _drain(self, done: Callable[[], None]) -> None:
        most = time.monotonic() + self._settings.drain
        # Clients should learn from an answer that they have to go elsewhere, not from a connection that is closed while
        # their next request is on its way.
        least = min(most, time.monotonic() + _LINGER_SECONDS)
        while time.monotonic() < (most if self._open else least):
            await asyncio.sleep(0.02)
        for patience in list(self._open):
            patience.give_up("draining")
        done()


def create_app(
    make_engine: Callable[[], Engine],
    *,
    settings: ServerSettings,
    token: str | None = None,
    description: dict[str, Any] | None = None,
    on_loaded: Callable[[Engine | Exception], None] | None = None,
) -> RetrieverApp:
    """Make the ASGI application; the engine is loaded in a thread when the application starts.

    Args:
        make_engine: builds the engine; may take minutes.
        settings: limits, queue, deadline.
        token: if given, every route but /health and /live wants ``Authorization: Bearer <token>``.
        description: ``engine``, ``size``, ``corpus`` and so on as /health shows them; engine and size come from the
            engine if they are left out or None. ``topk`` is also what a request gets that names no number, ``max_topk``
            the most it may ask for (None: that of ``settings``).
        on_loaded: called in the event loop with the engine, or with the error that kept it from loading.
    """
    return RetrieverApp(make_engine, settings, token, description or {}, on_loaded or (lambda outcome: None))
