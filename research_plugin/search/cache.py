"""Two caches of search results: the most recent ones in memory, and a SQLite file shared by processes."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path

from research_plugin.document import Document

_log = logging.getLogger(__name__)
Documents = tuple[Document, ...]


class MemoryCache:
    """Least-recently-used results by query; ``size`` 0 keeps nothing."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[str, Documents] = OrderedDict()

    def get(self, query: str) -> Documents | None:
        """Return the result, now the most recent one, or None."""
        documents = self._entries.get(query)
        if documents is not None:
            self._entries.move_to_end(query)
        return documents

    def put(self, query: str, documents: Documents) -> None:
        """Keep a result; the one unused for longest goes when there are too many."""
        if self._size == 0:
            return
        self._entries[query] = documents
        self._entries.move_to_end(query)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)


class DiskCache:
    """Results in ``folder/search.sqlite3``. Used from one thread; several processes may share the file.

    A cache must never cost an answer: after a first SQLite or file error it logs a warning and goes silent.

    Args:
        folder: created if absent; on a local disk, because SQLite's write-ahead log does not work over NFS.
        scope: what else an answer depends on (servers or corpus, topk); entries of another scope are not seen.
    """

    def __init__(self, folder: str, scope: str) -> None:
        self._path, self._scope = Path(folder) / "search.sqlite3", scope
        self._connection: sqlite3.Connection | None = None
        self._broken = False

    def get_many(self, queries: Iterable[str]) -> dict[str, Documents]:
        """Return the known ones among the queries."""
        found: dict[str, Documents] = {}
        try:
            for query in queries:
                row = (
                    self._open().execute("SELECT documents FROM results WHERE key = ?", (self._key(query),)).fetchone()
                )
                if row is not None:
                    found[query] = tuple(Document(*fields) for fields in json.loads(row[0]))
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            self._give_up(error)
        return found

    def put_many(self, results: Mapping[str, Documents]) -> None:
        """Store results, all or none."""
        rows = [
            (self._key(query), json.dumps([(found.id, found.contents, found.score) for found in documents]))
            for query, documents in results.items()
        ]
        try:
            with self._open() as connection:
                connection.executemany("INSERT OR REPLACE INTO results VALUES (?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._broken:
            raise sqlite3.OperationalError("switched off")
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, timeout=10.0, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute("CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, documents TEXT)")
        return self._connection

    def _key(self, query: str) -> bytes:
        return hashlib.sha256(f"{self._scope}\n{query}".encode()).digest()

    def _give_up(self, error: Exception) -> None:
        if not self._broken:
            self._broken = True
            _log.warning("search cache %s is off for this process: %s", self._path, error)
            self.close()
