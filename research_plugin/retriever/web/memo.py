"""Everything that was paid or waited for, kept: in a SQLite file that outlives the server, or in memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from research_plugin.errors import ConfigError

_log = logging.getLogger(__name__)
_MOST_IN_MEMORY = 2_000
_MEMORY = ":memory:"


class Memo:
    """Answers by request. Used in one thread at a time; several servers of a machine may share a folder.

    A request under way is shared. A file that breaks in use is replaced by memory.

    Args:
        folder: created if absent, on a local disk (SQLite's write-ahead log does not work over NFS); None: memory.
        days: age at which an answer is asked for again.

    Raises:
        ConfigError: no file can be kept in the folder.
    """

    def __init__(self, folder: str | None, days: float) -> None:
        self._seconds = days * 86_400
        self._running: dict[bytes, asyncio.Task[Any]] = {}
        self._path = str(Path(folder) / "web.sqlite3") if folder is not None else _MEMORY
        try:
            if folder is not None:
                Path(folder).mkdir(parents=True, exist_ok=True)
            self._database = self._open()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"web.cache_dir: {self._path} cannot be used: {error}; name a writable folder") from error

    async def get(self, request: object, answer: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer to ``request``, from ``answer()`` if it is not known.

        Args:
            request: everything that the answer depends on, as JSON; only its hash is kept.
            answer: returns what JSON can hold.

        Raises:
            Exception: whatever ``answer`` raised; the next call tries again.
        """
        key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).digest()
        if key in self._running:
            return await self._running[key]
        known = self._read(key)
        if known is not None:
            return json.loads(known)
        task = self._running[key] = asyncio.ensure_future(answer())
        try:
            found = await task
        finally:
            del self._running[key]
        self._write(key, json.dumps(found))
        return found

    def close(self) -> None:
        self._database.close()

    def _open(self) -> sqlite3.Connection:
        # Made by the thread that loads the engine, used by the one that computes.
        database = sqlite3.connect(self._path, timeout=10.0, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        with database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS answers (id INTEGER PRIMARY KEY, key BLOB UNIQUE, time REAL, answer TEXT)"
            )
            database.execute("DELETE FROM answers WHERE time < ?", (time.time() - self._seconds,))
        return database

    def _read(self, key: bytes) -> str | None:
        query = "SELECT answer FROM answers WHERE key = ? AND time >= ?"
        try:
            row = self._database.execute(query, (key, time.time() - self._seconds)).fetchone()
        except sqlite3.Error as error:
            self._use_memory(error)
            return None
        return None if row is None else str(row[0])

    def _write(self, key: bytes, answer: str) -> None:
        try:
            self._insert(key, answer)
        except sqlite3.Error as error:
            self._use_memory(error)
            self._insert(key, answer)

    def _insert(self, key: bytes, answer: str) -> None:
        with self._database as database:
            new = database.execute(
                "INSERT OR REPLACE INTO answers (key, time, answer) VALUES (?, ?, ?)", (key, time.time(), answer)
            )
            if self._path == _MEMORY:
                database.execute("DELETE FROM answers WHERE id <= ?", ((new.lastrowid or 0) - _MOST_IN_MEMORY,))

    def _use_memory(self, error: sqlite3.Error) -> None:
        _log.warning("web cache %s is not used any more, memory is: %s", self._path, error)
        self._database.close()
        self._path = _MEMORY
        self._database = self._open()
