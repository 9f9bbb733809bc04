"""``research-plugin view RUN``: the rollouts of a run in the browser (a file, or live) or in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from research_plugin.errors import DataError
from research_plugin.reports.read_records import RunRecords
from research_plugin.resumable import replacing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or one .jsonl file of records")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--out", type=Path, metavar="FILE", help="write one HTML file (default: RUN/viewer.html)")
    ways.add_argument("--serve", action="store_true", help="serve it on this machine and follow a running training")
    ways.add_argument("--tty", action="store_true", help="show it in this terminal")
    parser.add_argument("--port", type=int, default=8111, help="port of --serve; 0 takes a free one (default: 8111)")


def run(args: argparse.Namespace) -> int:
    """Build, serve or show."""
    title = args.run.resolve().stem if args.run.is_file() else args.run.resolve().name
    title = title.encode("utf-8", "replace").decode()  # a folder's name may be no valid Unicode
    if args.serve:
        return _serve(args.run, title, args.port)
    records = RunRecords(args.run)
    records.require()
    if args.tty:
        from research_plugin.viewer.tty import browse

        return browse(records)
    return _write(records, title, args.out or (args.run if args.run.is_dir() else args.run.parent) / "viewer.html")


def _write(records: RunRecords, title: str, path: Path) -> int:
    from research_plugin.viewer.html_file import write_html

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            with part.open("w", encoding="utf-8") as out:
                count = write_html((record for _, record in records.new_with_progress()), title, out)
            if not count:
                why = records.unreadable[0] if records.unreadable else "its files are empty"
                raise DataError(f"{records.run} holds no rollout: {why}")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}; choose another place with --out") from error
    _report_unreadable(records)
    print(f"{count} rollouts, {path.stat().st_size / 1e6:.1f} MB: {path}")
    return 0


def _report_unreadable(records: RunRecords) -> None:
    if records.unreadable:
        print(f"{len(records.unreadable)} lines left out; the first: {records.unreadable[0]}", file=sys.stderr)


def _serve(run: Path, title: str, port: int) -> int:
    from research_plugin.viewer.serve import make_server

    with make_server(run, title, port) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/ follows {run}; Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0
