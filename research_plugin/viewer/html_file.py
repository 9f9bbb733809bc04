"""The viewer as HTML: the page itself, and the whole run packed into it.

Rollouts lie in the file as blocks of base64 of gzip of JSON, which no text in them can break out of; the page unpacks
a block when one of its rollouts is looked at.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from research_plugin.records import RolloutRecord
from research_plugin.reports.html_page import html_page
from research_plugin.viewer.pages import COLUMNS, page_of, row_of

__all__ = ["CHUNK", "group_number", "html_around", "pack", "write_html"]

CHUNK = 100
"""Rollouts in one block."""
_SCRIPTS = ("store.js", "list.js", "page.js", "main.js")
_DATA = "<!-- data -->"


def html_around(title: str, live: bool = False) -> tuple[str, str]:
    """Return the page's HTML up to the place of the data blocks, and from there on.

    Args:
        title: The run's name.
        live: Ask the server the page came from for rollouts, instead of reading them from the page.
    """
    settings = {"live": live, "chunk": CHUNK, "columns": COLUMNS}
    page = html_page("research_plugin.viewer", "viewer", _SCRIPTS, title, settings, connects=live)
    before, after = page.split(_DATA)
    return before, after


def write_html(records: Iterable[RolloutRecord], title: str, out: TextIO) -> int:
    """Write one self-contained HTML file and return how many rollouts it holds."""
    before, after = html_around(title)
    out.write(before)
    rows: list[list[Any]] = []
    groups: dict[tuple[str, int, str], int] = {}
    for number, chunk in enumerate(_chunks(records)):
        rows += ([*row_of(record), group_number(groups, record)] for record in chunk)
        _write_block(out, f"chunk-{number}", [page_of(record) for record in chunk])
    _write_block(out, "all-rows", rows)
    out.write(after)
    return len(rows)


def group_number(groups: dict[tuple[str, int, str], int], record: RolloutRecord) -> int:
    """Return the number of the record's group in ``groups``, a new one if need be; -1 for a rollout without a group."""
    if not record.uid:
        return -1
    return groups.setdefault((record.split, record.step, record.uid), len(groups))


def pack(value: Any) -> bytes:
    """Return ``value`` as compressed JSON."""
    return gzip.compress(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"), 6)


def _write_block(out: TextIO, name: str, value: Any) -> None:
    out.write(f'<script type="text/plain" id="{name}">{base64.b64encode(pack(value)).decode("ascii")}</script>\n')


def _chunks(records: Iterable[RolloutRecord]) -> Iterator[list[RolloutRecord]]:
    chunk: list[RolloutRecord] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
