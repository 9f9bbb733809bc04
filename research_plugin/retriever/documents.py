"""A corpus too large for memory: the JSONL file mapped, and a table of where each document starts.

The table is made once, while every line is checked (about 3 us a line), and kept in ``<corpus>.offsets``: 4,096 bytes
of JSON (which file it belongs to, the corpus' fingerprint), then one little-endian uint64 per document and one for
the end. It is mapped too, so any number of processes share one copy of both files.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import tempfile
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from research_plugin.document import Document
from research_plugin.errors import DataError
from research_plugin.retriever.corpus import line_parser, no_documents, unreadable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_log = logging.getLogger(__name__)
_HEADER_BYTES = 4_096
_VERSION = 1
_SHOW_PROGRESS_BYTES = 256 * 2**20


class DocumentStore:
    """Random access to the documents of a JSONL corpus (the line rules are `corpus.read_corpus`'s).

    Args:
        path: the corpus. It must not change while it is open.
        offsets: file of the table; None: ``<path>.offsets``. Made if it is missing or belongs to another size or
            modification time; kept in memory alone if it cannot be written.

    Raises:
        DataError: the corpus is missing, empty, or a line is not a usable document; names the file and the line.
    """

    def __init__(self, path: str | Path, offsets: str | Path | None = None) -> None:
        import numpy as np

        self.path = Path(path)
        self._parse = line_parser()
        table = Path(offsets) if offsets is not None else self.path.with_name(f"{self.path.name}.offsets")
        try:
            with self.path.open("rb") as file:
                header = _read_header(table, _identity(file))
                if header is not None:
                    self._offsets = np.memmap(table, dtype="<u8", mode="r", offset=_HEADER_BYTES)
                else:
                    header, starts = _scan(file, self.path)
                    self._offsets = np.frombuffer(starts, dtype=np.uint64)
                    _write(table, header, starts)
                self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self._fingerprint: dict[str, Any] = {key: header[key] for key in ("rows", "documents", "order")}

    _offsets: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def documents(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> list[Document]:
        """Return the documents of these rows, in this order (about 1 us each).

        Raises:
            IndexError: a row is negative or not below ``len(store)``.
        """
        import numpy as np

        places = np.asarray(rows, dtype=np.int64)
        if places.size and (places.min() < 0 or places.max() >= len(self)):
            raise IndexError(f"corpus {self.path}: rows run from 0 to {len(self) - 1}, got {places.tolist()}")
        starts, ends = self._offsets[places].tolist(), self._offsets[places + 1].tolist()
        spans = zip(places.tolist(), starts, ends, strict=True)
        return [self._parse(self._file[start:end], self.path, row + 1) for row, start, end in spans]

    def fingerprint(self) -> dict[str, Any]:
        """What tells this corpus from another: ``rows``; a hash of ids and texts that ignores their order
        (``documents``) and one that does not (``order``). Other columns and the file's layout play no part."""
        return dict(self._fingerprint)

    def close(self) -> None:
        self._file.close()


def _identity(file: BinaryIO) -> dict[str, int]:
    status = os.fstat(file.fileno())
    return {"version": _VERSION, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _read_header(table: Path, identity: dict[str, int]) -> dict[str, Any] | None:
    """The table's header, or None unless it is whole and was made from this very file."""
    try:
        with table.open("rb") as file:
            header = json.loads(file.read(_HEADER_BYTES))
            size = os.fstat(file.fileno()).st_size
        same = {key: header[key] for key in identity} == identity
        return header if same and size == _HEADER_BYTES + 8 * (header["rows"] + 1) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _scan(file: BinaryIO, path: Path) -> tuple[dict[str, Any], array[int]]:
    """Check every line; return the header and the offsets of all documents, then of the end."""
    from tqdm import tqdm

    parse, identity = line_parser(), _identity(file)
    starts, position, total, order = array("Q"), 0, 0, blake2b(digest_size=8)
    hidden = identity["bytes"] < _SHOW_PROGRESS_BYTES
    with tqdm(total=identity["bytes"], unit="B", unit_scale=True, desc=f"checking {path.name}", disable=hidden) as bar:
        for number, line in enumerate(file, start=1):
            if line.strip():
                document = parse(line, path, number)
                # The length keeps the border between the two: ids can hold any character.
                text = f"{len(document.id)}:{document.id}{document.contents}"
                digest = blake2b(text.encode(), digest_size=8).digest()
                order.update(digest)
                total += int.from_bytes(digest, "little")
                starts.append(position)
            position += len(line)
            if number % 10_000 == 0:
                bar.update(position - bar.n)
        bar.update(position - bar.n)
    if not starts:
        raise no_documents(path)
    if _identity(file) != identity or position != identity["bytes"]:
        raise DataError(f"corpus {path}: it changed while it was being read; wait until it is complete")
    starts.append(position)
    hashes = {"documents": f"{total % 2**64:016x}", "order": order.hexdigest()}
    return {**identity, "rows": len(starts) - 1, **hashes}, starts


def _write(table: Path, header: dict[str, Any], starts: array[int]) -> None:
    """Write the table in one step; a folder that cannot be written costs the next start a scan, nothing else."""
    import numpy as np

    try:
        descriptor, partial = tempfile.mkstemp(prefix=f"{table.name}.", suffix=".part", dir=table.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(header).encode().ljust(_HEADER_BYTES))
                np.frombuffer(starts, dtype=np.uint64).astype("<u8").tofile(file)
            os.chmod(partial, 0o644)
            os.replace(partial, table)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        _log.warning("%s cannot be written (%s): the corpus will be checked again at the next start", table, error)
