"""``research-plugin serve --ray``: replicas of the server under Ray Serve. The only module in here that imports ray.

Ray Serve's proxies, one on each node that holds a replica, take the HTTP requests and hand each to a replica; inside a
replica the application of `app` queues, batches and answers as it does without Ray. Replicas on one node map the same
index file, so that the node holds one copy of it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from research_plugin.errors import ConfigError, SearchError
from research_plugin.retriever.engine import Engine
from research_plugin.retriever.settings import RetrieverConfig, ServerSettings

if TYPE_CHECKING:
    from ray.serve import Application

_log = logging.getLogger(__name__)
_NAME = "retriever"
_QUIET = {"enable_access_log": False}
_REMOVAL_SECONDS = 30


class Replica:
    """One copy of the server's application; `ray.serve.ingress` adds ``app`` and the rest."""

    app: Any

    async def check_health(self) -> None:
        """Called by Ray Serve, for the first time before the replica gets requests: that call waits for the engine.

        Raises:
            SearchError: the engine could not be loaded, or has failed.
        """
        import httpx

        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://replica") as http:
            while (health := (await http.get("/health")).json())["status"] == "loading":
                await asyncio.sleep(0.2)
        if health["status"] != "ready":
            raise SearchError(str(health.get("error", health["status"])))


def application(config: RetrieverConfig, token: str | None) -> Application:
    """What is deployed: each replica is a process that loads the engine of ``config`` for itself."""
    from ray import serve

    def build() -> Any:  # runs in the replica
        from research_plugin.retriever.app import create_app
        from research_plugin.retriever.describe import describe
        from research_plugin.retriever.engines import make_engine
        from research_plugin.retriever.memory import check_memory

        def load() -> Engine:
            check_memory(config)
            return make_engine(config)

        return create_app(load, settings=config.server, token=token, description=describe(config))

    deployment = serve.deployment(
        name="Replica",
        ray_actor_options={"num_cpus": config.threads, "num_gpus": gpus(config)},
        autoscaling_config={
            "min_replicas": config.ray.min_replicas,
            "max_replicas": config.ray.max_replicas,
            "target_ongoing_requests": config.ray.target_ongoing,
        },
        # Batches form in the replica, from what waits there. At Ray Serve's default of 5 requests in a replica the rest
        # would wait in the proxies, and a batch would never hold more than 5 single queries.
        max_ongoing_requests=config.server.max_queue,
        # The same bound for what waits in a proxy; beyond it the proxy answers 503.
        max_queued_requests=config.server.max_queue,
        graceful_shutdown_timeout_s=config.server.drain,
        logging_config=_QUIET,
    )
    return deployment(serve.ingress(build)(Replica)).bind()


def gpus(config: RetrieverConfig) -> float:
    """GPUs of one replica: as set, or as many as the engine's devices need."""
    if config.ray.gpus is not None:
        return config.ray.gpus
    shards = len({device for device in config.index.devices if device.startswith("cuda")})
    return shards or float(any("cuda" in device for device in (config.encoder.device, config.rerank.device)))


def run(config: RetrieverConfig, args: argparse.Namespace) -> int:
    """Deploy and serve until SIGTERM or SIGINT; then remove the application, and stop Ray if it was started here.

    Args:
        config: a checked configuration.
        args: ``ray_address`` (None: Ray is started here), ``ready_file`` and ``exit_with_parent`` of the command line.

    Raises:
        ConfigError: Ray Serve is not installed, or the application cannot be deployed as configured.
    """
    from research_plugin.retriever.command import exit_with_parent, read_token, write_ready_file

    if config.server.port == 0:
        raise ConfigError("server.port: got 0; Ray Serve listens on one port on every node: name a free one")
    token = read_token(config.server.token_env)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.exit_with_parent is not None:
        exit_with_parent(args.exit_with_parent or os.getppid(), config.server.drain + _REMOVAL_SECONDS)
    try:
        with _ray(config, args.ray_address), _deployed(config, token) as urls:
            _log.info("ready: search.urls=[%s]", ",".join(urls))
            write_ready_file(args.ready_file, urls[0])
            signal.pause()
    except KeyboardInterrupt:
        _log.info("stopped")
    finally:
        if args.ready_file is not None:
            args.ready_file.unlink(missing_ok=True)
    return 0


@contextmanager
def _ray(config: RetrieverConfig, address: str | None) -> Iterator[None]:
    """A connection to the cluster at ``address``, or to a Ray of our own on this machine that ends with the block."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.serve
    except ImportError as error:
        raise ConfigError(f"--ray: {error}; pip install 'research-plugin[ray]'") from error

    # Named, because Ray starts an idle worker for every CPU it finds.
    replicas = max(config.ray.min_replicas, min(config.ray.max_replicas, (os.cpu_count() or 1) // config.threads))
    own: dict[str, Any] = {"num_cpus": replicas * config.threads, "include_dashboard": False}
    try:
        ray.init(address or "local", **(own if address is None else {}))
    except Exception as error:  # Ray raises the bare class for a node that does not come up
        where = f"no connection to Ray at {address}" if address else "Ray did not start"
        raise ConfigError(f"--ray: {where}: {error}") from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray has put a handler of its own there
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _deployed(config: RetrieverConfig, token: str | None) -> Iterator[list[str]]:
    """The running application; gives its base URLs, one for each node that answers HTTP."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    before = serve.status()
    if _NAME in before.applications:
        raise ConfigError(f"--ray: an application {_NAME!r} runs in this cluster; stop the command that deployed it")
    server = config.server
    try:
        serve.start(
            proxy_location="EveryNode",
            http_options={
                "host": server.host,
                "port": server.port,
                "keep_alive_timeout_s": 75,
                # For a replica that hangs; one that works answers 503 at the deadline itself.
                "request_timeout_s": server.deadline + server.drain,
            },
            logging_config=_QUIET,
        )
        serve.run(application(config, token), name=_NAME, route_prefix="/")
        urls = _urls(server)
        _wait_until_served(urls[0])
        yield urls
    except (RayServeException, RuntimeError) as error:
        raise ConfigError(f"--ray: the application was not deployed: {_reason(error)}") from error
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing but Ctrl-C and SIGKILL cuts the drain short
        if before.proxies or set(serve.status().applications) - {_NAME}:
            serve.delete(_NAME)
        else:
            serve.shutdown()  # type: ignore[no-untyped-call]


def _reason(error: Exception) -> str:
    """The last line of what went wrong: the traceback that Ray Serve keeps of a failed replica, or else the error."""
    from ray import serve

    application = serve.status().applications.get(_NAME)
    messages = [deployment.message for deployment in application.deployments.values()] if application else []
    return "\n".join([type(error).__name__, str(error), *messages]).strip().splitlines()[-1]


def _urls(server: ServerSettings) -> list[str]:
    """Base URLs: the address that was set, or for a wildcard that of each node with a proxy."""
    import ray
    from ray import serve

    from research_plugin.retriever.command import base_url

    hosts = [server.host]
    if server.host in ("0.0.0.0", "::"):
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        addresses = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in nodes}
        hosts = [addresses[node] for node in serve.status().proxies]
    return [base_url(host, server.port) for host in hosts]


def _wait_until_served(url: str, seconds: float = 30.0) -> None:
    """The proxies learn of a deployed application a moment later; until then they answer 404."""
    deadline = time.monotonic() + seconds
    while (found := _health(url)) != "HTTP 200":
        if time.monotonic() > deadline:
            advice = "was Ray Serve started before, with another host or port? `serve shutdown` stops it"
            raise ConfigError(f"--ray: the application runs, but {url}/health gives {found}; {advice}")
        time.sleep(0.1)


def _health(url: str) -> str:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", "/health")
        return f"HTTP {connection.getresponse().status}"
    except (OSError, HTTPException) as error:
        return str(error)
    finally:
        connection.close()
