"""``research-plugin serve``: recipe and arguments, socket, signals, ready file. The application itself is in `app`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from research_plugin.errors import ConfigError, ResearchPluginError
from research_plugin.retriever.describe import describe
from research_plugin.retriever.engine import Engine
from research_plugin.retriever.engines import make_engine
from research_plugin.retriever.memory import check_memory
from research_plugin.retriever.recipe import load_config, recipe_names, show_config
from research_plugin.retriever.settings import RetrieverConfig
from research_plugin.retriever.validate import file_faults

_log = logging.getLogger(__name__)
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}

# Flags that stand for a setting: name, key, metavar, help.
_FLAGS = (
    ("--corpus", "corpus", "FILE", 'JSONL corpus, one {"id", "contents"} a line'),
    ("--host", "server.host", "ADDRESS", "address to bind (default: 127.0.0.1)"),
    ("--port", "server.port", "N", "port, 0 for a free one (default: 8000)"),
    ("--topk", "topk", "N", "documents when a request names no number (default: the route's own)"),
    ("--token-env", "server.token_env", "NAME", "environment variable that holds the bearer token to ask for"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``serve``."""
    add = parser.add_argument
    add("overrides", nargs="*", metavar="key=value", help="settings over the recipe's (docs/retriever.md)")
    add("--recipe", metavar="NAME", help=f"YAML file of ours or FlashRAG's, or one of {', '.join(recipe_names())}")
    for flag, key, metavar, text in _FLAGS:
        add(flag, dest=key, metavar=metavar, help=f"{text}; the same as {key}={metavar}")
    add("--ray", action="store_true", help="replicas under Ray Serve, set by ray.* (docs/retriever.md)")
    add("--ray-address", metavar="ADDRESS", help="--ray in this cluster, or auto (default: Ray is started here)")
    add("--print-config", action="store_true", help="show the resolved settings as YAML and end")
    add("--ready-file", type=Path, metavar="PATH", help='write {"url", "pid"} here once queries are answered')
    add(
        "--exit-with-parent",
        type=int,
        nargs="?",
        const=0,
        metavar="PID",
        help="end when the process that started this one is gone (PID: its id, if known)",
    )
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"], help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0 after a clean end, 1 after an error that is printed to stderr."""
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # At INFO it reports each of its builds that this machine's CPU cannot run.
    logging.getLogger("faiss.loader").setLevel(logging.WARNING)
    flags = [f"{key}={value}" for _, key, _, _ in _FLAGS if (value := getattr(args, key)) is not None]
    try:
        config = load_config(args.recipe, [*flags, *args.overrides])
        if args.print_config:
            print(show_config(config), end="")
            return 0
        if args.ready_file is not None and not args.ready_file.absolute().parent.is_dir():
            raise ConfigError(f"--ready-file {args.ready_file}: no such folder: {args.ready_file.absolute().parent}")
        # The files of replicas elsewhere are looked for there.
        faults = list(file_faults(config)) if args.ray_address is None else []
        if faults:
            told = f"; recipe {args.recipe} begins with where to get them" if args.recipe in recipe_names() else ""
            raise ConfigError("; ".join(faults) + told)
        if config.server.host not in _LOOPBACK and config.server.token_env is None:
            _log.warning("%s is reachable from other machines and server.token_env is not set", config.server.host)
        if args.ray or args.ray_address is not None:
            from research_plugin.retriever import ray_serve

            return ray_serve.run(config, args)
        return _serve(config, args)
    except ResearchPluginError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _serve(config: RetrieverConfig, args: argparse.Namespace) -> int:
    from research_plugin.retriever.app import create_app
    from research_plugin.retriever.http_server import http_server

    settings = config.server
    token = read_token(settings.token_env)
    check_memory(config)
    listener = _listen(settings.host, settings.port)
    url = base_url(settings.host, listener.getsockname()[1])
    failed = False

    def on_loaded(outcome: Engine | Exception) -> None:
        nonlocal failed
        if isinstance(outcome, Exception):
            failed = True
            server.should_exit = True
            print(f"error: {outcome}", file=sys.stderr)
        else:
            write_ready_file(args.ready_file, url)

    app = create_app(
        lambda: make_engine(config),
        settings=settings,
        token=token,
        description=describe(config),
        on_loaded=on_loaded,
    )
    server = http_server(app)
    # Until the server has its own handlers.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    if args.exit_with_parent is not None:
        exit_with_parent(args.exit_with_parent or os.getppid(), settings.drain)
    _log.info("listening on %s", url)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        if args.ready_file is not None:
            args.ready_file.unlink(missing_ok=True)
    return 1 if failed else 0


def read_token(name: str | None) -> str | None:
    """Return the bearer token that ``server.token_env`` names, or None.

    Raises:
        ConfigError: the variable is unset or empty.
    """
    if name is None:
        return None
    token = os.environ.get(name, "")
    if not token:
        raise ConfigError(f"server.token_env: {name}: that environment variable is unset or empty; export it first")
    return token


def _listen(host: str, port: int) -> socket.socket:
    """Bind and listen at once, so that early clients wait in the backlog instead of being refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}; server.port=0 takes a free one") from error


def base_url(host: str, port: int) -> str:
    """The address a client on this machine uses; a wildcard is reached through loopback."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def write_ready_file(path: Path | None, url: str) -> None:
    """Write ``{"url", "pid"}`` in one step, if there is a path."""
    if path is not None:
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        partial.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="utf-8")
        partial.replace(path)


def exit_with_parent(parent: int, drain: float) -> None:
    """End this process soon after the parent has gone.

    prctl(PR_SET_PDEATHSIG) is not used: the kernel sends it when the parent's *thread* that forked us ends, and a
    trainer may well start its retriever from a worker thread.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        _log.warning("the parent process %d is gone; shutting down", parent)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(drain + 5)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
