"""``research-plugin serve``: arguments, socket, signals, ready file. The application itself is in `app`."""

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
from research_plugin.retriever.engine import Engine

_log = logging.getLogger(__name__)
_DRAIN_SECONDS = 10
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``serve``."""
    add = parser.add_argument
    add("--corpus", required=True, metavar="FILE", help='JSONL corpus, one {"id", "contents"} a line')
    add("--host", default="127.0.0.1", help="address to bind (default: %(default)s)")
    add("--port", type=int, default=8000, help="port, 0 for a free one (default: %(default)s)")
    add("--stemmer", metavar="LANGUAGE", help="Snowball stemmer for BM25, such as english (default: none)")
    add("--topk", type=int, metavar="N", help="documents when a request names no number (default: the route's own)")
    add("--max-topk", type=int, default=100, metavar="N", help="most documents per query (default: %(default)s)")
    add("--max-queries", type=int, default=1024, metavar="N", help="most queries per request (default: %(default)s)")
    add("--max-query-chars", type=int, default=32768, metavar="N", help="longest query (default: %(default)s)")
    add("--max-body-mb", type=int, default=8, metavar="N", help="largest request body (default: %(default)s)")
    add("--max-queue", type=int, default=4096, metavar="N", help="waiting queries before 429 (default: %(default)s)")
    add("--max-batch", type=int, default=256, metavar="N", help="queries per engine call (default: %(default)s)")
    add("--token-env", metavar="NAME", help="environment variable that holds the bearer token to ask for")
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
    try:
        return _serve(args)
    except ResearchPluginError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _serve(args: argparse.Namespace) -> int:
    import uvicorn

    from research_plugin.retriever.app import create_app
    from research_plugin.retriever.settings import ServerSettings

    _check_positive(args)
    token = _token(args.token_env)
    if args.host not in _LOOPBACK and token is None:
        _log.warning("%s is reachable from other machines and no --token-env is set", args.host)
    if not Path(args.corpus).is_file():
        raise ConfigError(f"--corpus {args.corpus}: no such file; give a JSONL file with id and contents per line")
    listener = _listen(args.host, args.port)
    url = _url(args.host, listener.getsockname()[1])
    failed = False

    def on_loaded(outcome: Engine | Exception) -> None:
        nonlocal failed
        if isinstance(outcome, Exception):
            failed = True
            server.should_exit = True
            print(f"error: {outcome}", file=sys.stderr)
        elif args.ready_file is not None:
            _write_atomically(args.ready_file, {"url": url, "pid": os.getpid()})

    settings = ServerSettings(
        max_topk=args.max_topk,
        max_queries=args.max_queries,
        max_query_chars=args.max_query_chars,
        max_body_mb=args.max_body_mb,
        max_queue=args.max_queue,
        max_batch=args.max_batch,
    )
    app = create_app(
        lambda: _load(args.corpus, args.stemmer),
        settings=settings,
        token=token,
        description={"topk": args.topk, "corpus": Path(args.corpus).name},
        on_loaded=on_loaded,
    )
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        # Longer than the clients' own expiry, so that a client never writes into a connection just being closed.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    server = uvicorn.Server(config)
    # uvicorn raises the signal again after its own clean-up (uvicorn/server.py, capture_signals); handlers of ours
    # underneath turn that into a normal return, so a SIGTERM ends with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    if args.exit_with_parent is not None:
        _exit_with_parent(args.exit_with_parent or os.getppid())
    _log.info("listening on %s", url)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        if args.ready_file is not None:
            args.ready_file.unlink(missing_ok=True)
    return 1 if failed else 0


def _load(corpus: str, stemmer: str | None) -> Engine:
    from research_plugin.retriever.bm25 import BM25Engine
    from research_plugin.retriever.corpus import read_corpus

    _log.info("loading %s (%.1f MB)", corpus, Path(corpus).stat().st_size / 1e6)
    return BM25Engine(read_corpus(corpus), stemmer)


def _check_positive(args: argparse.Namespace) -> None:
    for name in ("topk", "max_topk", "max_queries", "max_query_chars", "max_body_mb", "max_queue", "max_batch"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: must be at least 1")


def _token(name: str | None) -> str | None:
    if name is None:
        return None
    token = os.environ.get(name, "")
    if not token:
        raise ConfigError(f"--token-env {name}: that environment variable is unset or empty; export it first")
    return token


def _listen(host: str, port: int) -> socket.socket:
    """Bind and listen at once, so that early clients wait in the backlog instead of being refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}; --port 0 takes a free one") from error


def _url(host: str, port: int) -> str:
    """The address a client on this machine uses; a wildcard is reached through loopback."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _write_atomically(path: Path, value: dict[str, object]) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(path)


def _exit_with_parent(parent: int) -> None:
    """End this process soon after the parent has gone.

    prctl(PR_SET_PDEATHSIG) is not used: the kernel sends it when the parent's *thread* that forked us ends, and a
    trainer may well start its retriever from a worker thread.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        _log.warning("the parent process %d is gone; shutting down", parent)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_DRAIN_SECONDS + 5)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
