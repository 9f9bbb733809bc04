"""Reads a corpus in FlashRAG's JSONL form: one ``{"id": ..., "contents": ...}`` a line.

Every line is checked, because a half-downloaded corpus otherwise shows only as odd answers during training.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from research_plugin.document import Document
from research_plugin.errors import DataError

_SURROGATES = re.compile("[\ud800-\udfff]")


def read_corpus(path: str | Path) -> list[Document]:
    """Read a whole JSONL corpus.

    ``contents`` may also be called ``text``; a number as id becomes its string; blank lines are skipped; lone
    surrogates become U+FFFD.

    Raises:
        DataError: the file is missing, empty, or a line is not a usable document; names the file and the line.
    """
    path = Path(path)
    try:
        documents = list(_documents(path))
    except OSError as error:
        raise DataError(f"corpus {path}: cannot be read ({error.strerror or error}); give a JSONL file") from error
    if not documents:
        raise DataError(f"corpus {path}: no documents; expected one JSON object a line with id and contents")
    return documents


def _documents(path: Path) -> Iterator[Document]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _document(line, f"corpus {path}, line {number}")


def _document(line: bytes, where: str) -> Document:
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        cut = "" if line.endswith(b"\n") else "; the file ends inside this line: is it half-downloaded?"
        raise DataError(f"{where}: not valid JSON in UTF-8 ({error}){cut}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object with id and contents, got {type(row).__name__}")
    identity, contents = row.get("id"), row.get("contents", row.get("text"))
    if isinstance(identity, bool) or not isinstance(identity, (str, int)):
        raise DataError(f'{where}: "id" must be a string or an integer, got {identity!r}')
    if not isinstance(contents, str):
        raise DataError(f'{where}: "contents" (or "text") must be a string, got {contents!r}')
    return Document(_SURROGATES.sub("\ufffd", str(identity)), _SURROGATES.sub("\ufffd", contents))
