"""Which blocks of an embeddings file are finished: a small text file beside it that is only ever appended to.

The first line says as JSON what the embeddings are made from, every further line the number of a finished block. A
kill can only tear the last line; without its newline it does not count.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from research_plugin.errors import ConfigError
from research_plugin.retriever.manifest import Manifest, compare


class Progress:
    """Opens or starts the progress file of a job and keeps it locked; a context manager.

    Args:
        path: the file; its folder exists.
        manifest: what the embeddings are made from.
        block_rows: passages in a block.

    Raises:
        ConfigError: another process works on it, or it belongs to a different job; the message lists what differs.
    """

    def __init__(self, path: Path, manifest: Manifest, block_rows: int) -> None:
        self.block_rows = block_rows
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.done = self._read(path, manifest, block_rows)
        except BlockingIOError:
            self._file.close()
            raise ConfigError(f"{path}: another process is building this index; wait for it or end it") from None
        except BaseException:
            self._file.close()
            raise

    def finish(self, block: int) -> None:
        """Record one block whose vectors are on the disk."""
        self._file.write(b"%d\n" % block)
        self._file.flush()
        self.done.add(block)

    def close(self) -> None:
        """Close the file, which unlocks it."""
        self._file.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, path: Path, manifest: Manifest, block_rows: int) -> set[int]:
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        if not whole:
            self._file.write(json.dumps({"block_rows": block_rows, **asdict(manifest)}).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            return set()
        first, *blocks = whole.splitlines()
        try:
            job: dict[str, Any] = json.loads(first)
            begun, done = job.pop("block_rows"), {int(block) for block in blocks}
            faults = compare(Manifest(**job), corpus=manifest.corpus, encoder=manifest.encoder)
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{path}: not a progress file of this command ({error!r}); delete it") from error
        if begun != block_rows:
            faults.append(f"--block {block_rows}: it was begun with {begun}")
        if faults:
            raise ConfigError(
                f"{path}: the embeddings begun here are of another job: {'; '.join(faults)}. "
                "Go on with the old settings, choose another folder, or delete this file to start over"
            )
        return done
