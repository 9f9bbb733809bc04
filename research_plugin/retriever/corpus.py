"""Reads a corpus in FlashRAG's JSONL form: one ``{"id": ..., "contents": ...}`` a line.

Every line is checked, because a half-downloaded corpus otherwise shows only as odd answers during training. `documents`
keeps a large corpus on disk; `read_corpus` takes a small one into memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from research_plugin.document import Document, without_surrogates
from research_plugin.errors import DataError


def read_corpus(path: str | Path) -> list[Document]:
    """Read a whole JSONL corpus.

    ``contents`` may also be called ``text``; a number as id becomes its string; blank lines are skipped; lone
    surrogates become U+FFFD; other columns are ignored.

    Raises:
        DataError: the file is missing, empty, or a line is not a usable document; names the file and the line.
    """
    path, parse = Path(path), line_parser()
    documents = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    documents.append(parse(line, path, number))
    except OSError as error:
        raise unreadable(path, error) from error
    if not documents:
        raise no_documents(path)
    return documents


def line_parser() -> Callable[[bytes, Path, int], Document]:
    """Return ``parse(line, path, line number)``, which reads one line by the rules of `read_corpus`.

    orjson reads most lines where it is installed (a third of the time); what it refuses (lone surrogates, faults)
    goes to the standard library, so both give the same documents and the same errors.
    """
    try:
        import orjson
    except ImportError:
        return _parse
    loads = orjson.loads

    def parse(line: bytes, path: Path, number: int) -> Document:
        try:
            row = loads(line)
            identity, contents = row["id"], row["contents"]
        except (ValueError, LookupError, TypeError):
            return _parse(line, path, number)
        if type(identity) is str and type(contents) is str:
            return Document(identity, contents)
        return _parse(line, path, number)

    return parse


def unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"corpus {path}: cannot be read ({error.strerror or error}); give a JSONL file")


def no_documents(path: Path) -> DataError:
    return DataError(f"corpus {path}: no documents; expected one JSON object a line with id and contents")


def _parse(line: bytes, path: Path, number: int) -> Document:
    where = f"corpus {path}, line {number}"
    try:
        row: Any = json.loads(line.decode("utf-8"))
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
    return Document(without_surrogates(str(identity)), without_surrogates(contents))
