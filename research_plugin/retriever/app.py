"""The HTTP front (Starlette): routes, limits, token, health, metrics. It never computes in the event loop.

Every error is ``{"error": {"code", "message"}}`` with a 4xx or 5xx status; no stack trace leaves the server.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from research_plugin.errors import ResearchPluginError
from research_plugin.retriever.batcher import Batcher, QueueFull
from research_plugin.retriever.engine import Engine
from research_plugin.retriever.metrics import Metrics
from research_plugin.retriever.routes import ROUTES, BadRequest, RequestLimits, SearchRoute
from research_plugin.retriever.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_log = logging.getLogger(__name__)


class _Service:
    """What the routes share: the engine once it is loaded, its batcher, the counters."""

    def __init__(self, limits: RequestLimits, max_waiting: int, max_batch: int) -> None:
        self.limits, self._max_waiting, self._max_batch = limits, max_waiting, max_batch
        self.engine: Engine | None = None
        self.batcher: Batcher | None = None
        self.failure: str | None = None
        self.metrics = Metrics(lambda: self.batcher.waiting if self.batcher else 0)

    def load(self, make_engine: Callable[[], Engine], done: Callable[[Engine | Exception], None]) -> None:
        """Load in a daemon thread, so that /health answers at once and Ctrl-C need not wait for a 60 GB index."""
        loop = asyncio.get_running_loop()

        def finish(outcome: Engine | Exception) -> None:
            if isinstance(outcome, Exception):
                known = isinstance(outcome, ResearchPluginError)
                self.failure = str(outcome) if known else "the engine could not be loaded; see the server's log"
                _log.error("engine not loaded: %s", outcome, exc_info=None if known else outcome)
            else:
                self.engine = outcome
                self.batcher = Batcher(outcome, self._max_waiting, self._max_batch, self.metrics.observe_batch)
                _log.info("ready: engine %s, %s documents", outcome.name, outcome.size)
            done(outcome)

        def work() -> None:
            outcome: Engine | Exception
            try:
                outcome = make_engine()
            except Exception as error:
                outcome = error
            try:
                loop.call_soon_threadsafe(finish, outcome)
            except RuntimeError:
                _log.info("the server ended before its engine was loaded")

        threading.Thread(target=work, name="load", daemon=True).start()

    async def answer(self, route: SearchRoute, body: bytes) -> Any:
        if self.engine is None or self.batcher is None:
            raise BadRequest(self.failure or "the engine is still loading", "not_ready", 503)
        request = route.parse(body, self.limits, self.engine.size)
        asked = [query for query in request.queries if query.strip()]
        self.metrics.queries.inc(len(asked))
        try:
            found = iter(await self.batcher.search(asked, request.topk))
        except QueueFull:
            raise BadRequest("too many queries are waiting; try again later", "busy", 429) from None
        return route.render(request, [next(found) if query.strip() else [] for query in request.queries])


def create_app(
    make_engine: Callable[[], Engine],
    *,
    settings: ServerSettings,
    token: str | None = None,
    description: dict[str, Any] | None = None,
    on_loaded: Callable[[Engine | Exception], None] | None = None,
) -> Starlette:
    """Make the ASGI application; the engine is loaded in a thread when the application starts.

    Args:
        make_engine: builds the engine; may take minutes.
        settings: limits, queue, deadline.
        token: if given, every route but /health wants ``Authorization: Bearer <token>``.
        description: ``engine``, ``size``, ``topk`` and ``corpus`` as /health shows them; what is left out or None comes
            from the engine. ``topk`` is also what a request gets that names no number.
        on_loaded: called in the event loop with the engine, or with the error that kept it from loading.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.routing import Route

    described = {key: value for key, value in (description or {}).items() if value is not None}
    limits = RequestLimits(
        settings.max_body_mb * 2**20,
        settings.max_query_chars,
        settings.max_queries,
        settings.max_topk,
        described.get("topk"),
    )
    service = _Service(limits, max(settings.max_queue, settings.max_queries), settings.max_batch)

    def error(status: int, code: str, message: str) -> Response:
        retry = {"Retry-After": "1"} if status in (429, 503) else None
        return JSONResponse({"error": {"code": code, "message": message}}, status, headers=retry)

    def authorized(request: Request) -> bool:
        # Starlette decodes headers as Latin-1; this gives the bytes back.
        given = request.headers.get("authorization", "").encode("latin-1", "replace")
        return token is None or hmac.compare_digest(given, f"Bearer {token}".encode())

    def search_route(path: str, route: SearchRoute) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                if not authorized(request):
                    raise BadRequest("a valid bearer token is required", "unauthorized", 401)
                answer = await service.answer(route, await _read_body(request, service.limits.max_body_bytes))
                response: Response = JSONResponse(answer)
            except BadRequest as refusal:
                response = error(refusal.status, refusal.code, refusal.message)
            except Exception:
                _log.exception("%s failed", path)
                response = error(500, "engine_failed", "the engine failed on this request; see the server's log")
            service.metrics.requests.labels(path, str(response.status_code)).inc()
            return response

        return Route(path, endpoint, methods=["POST"])

    async def health(request: Request) -> Response:
        if service.engine is not None:
            ready = {"status": "ready", "engine": service.engine.name, "size": service.engine.size}
            return JSONResponse({**ready, "topk": None, "corpus": None, **described})
        state = {"status": "failed", "error": service.failure} if service.failure else {"status": "loading"}
        return JSONResponse(state, 503, headers={"Retry-After": "1"})

    async def metrics(request: Request) -> Response:
        if not authorized(request):
            return error(401, "unauthorized", "a valid bearer token is required")
        return PlainTextResponse(service.metrics.render(), headers={"content-type": service.metrics.content_type})

    async def http_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        return error(exc.status_code, "http_error", f"{request.method} {request.url.path}: {exc.detail}")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.load(make_engine, on_loaded or (lambda outcome: None))
        yield
        if service.batcher is not None:
            service.batcher.close()

    routes = [search_route(path, route) for path, route in ROUTES.items()]
    routes += [Route("/health", health), Route("/metrics", metrics)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: http_error})


async def _read_body(request: Request, limit: int) -> bytes:
    """Read at most ``limit`` bytes. An oversized body is read on and thrown away, so that the client sees the 413."""
    kept, total = bytearray(), 0
    async for chunk in request.stream():
        total += len(chunk)
        if total <= limit:
            kept += chunk
        elif total > 16 * limit:
            break
    if total > limit:
        raise BadRequest(f"the body is larger than {limit} bytes", "body_too_large", 413)
    return bytes(kept)
