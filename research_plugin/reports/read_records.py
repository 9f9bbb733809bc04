"""The rollouts that a run folder holds: found, read, and followed while the run still writes.

Records of this package (``records/*.jsonl``, ``records.jsonl``) come first; a run that has none is read from veRL's own
dumps (``rollouts/``, ``validation/``). A line that is being written shows up when it is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from research_plugin.errors import DataError
from research_plugin.records import RolloutRecord, parse_record
from research_plugin.reports.verl_dumps import record_of_dump

__all__ = ["Place", "RunRecords"]

_DUMPS = {"rollouts": "train", "validation": "val"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record's line stands: bytes of a file."""

    path: Path
    offset: int
    length: int


@dataclass(slots=True)
class RunRecords:
    """The rollouts of one run.

    Attributes:
        run: A run's folder, or one file of records.
        unreadable: One message for each line that is no record (a writer was killed in the middle of it).
    """

    run: Path
    unreadable: list[str] = field(default_factory=list)
    _read_up_to: dict[Path, int] = field(default_factory=dict)
    _inodes: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a run that is not there."""
        if not self.run.exists():
            raise DataError(f"run {self.run} does not exist; give the folder of a run, or a file of records")

    def files(self) -> list[Path]:
        """Return what there is to read now, in order."""
        if self.run.is_file():
            return [self.run]
        own = [*self.run.glob("records/*.jsonl"), *self.run.glob("records.jsonl")]
        dumps = (path for folder in _DUMPS for path in self.run.glob(f"{folder}/*.jsonl"))
        return sorted(own or dumps, key=_by_step)

    def new(self) -> Iterator[tuple[Place, RolloutRecord]]:
        """Yield the records written since the last call; stopping early loses none."""
        for path in self.files():
            start = self._read_up_to.get(path, 0)
            with suppress(FileNotFoundError), path.open("rb") as file:  # old steps may be deleted at any time
                self._inodes.setdefault(path, os.fstat(file.fileno()).st_ino)
                file.seek(start)
                for line in file:
                    place = Place(path, start, len(line))
                    start += len(line)
                    record: RolloutRecord | None = None
                    try:
                        record = _parse(line, path) if line.strip() else None
                    except DataError as error:
                        if not line.endswith(b"\n"):  # still being written, or torn
                            break
                        self.unreadable.append(str(error))
                    self._read_up_to[path] = start
                    if record is not None:
                        yield place, record

    def is_outdated(self) -> bool:
        """Whether a file that was read has been replaced since, as a resumed training does with its last steps."""
        return any(path.exists() and path.stat().st_ino != inode for path, inode in self._inodes.items())

    def new_with_progress(self) -> Iterator[tuple[Place, RolloutRecord]]:
        """Yield what `new` yields; a terminal sees how far it is."""
        from tqdm import tqdm

        size = sum(path.stat().st_size for path in self.files())
        with tqdm(total=size, unit="B", unit_scale=True, desc=f"reading {self.run.name}", disable=None) as bar:
            for place, record in self.new():
                bar.update(place.length)
                yield place, record

    def read(self, place: Place) -> RolloutRecord:
        """Read one record again.

        Raises:
            DataError: its file is gone, or holds something else there by now.
        """
        try:
            with place.path.open("rb") as file:
                file.seek(place.offset)
                return _parse(file.read(place.length), place.path)
        except OSError as error:
            raise DataError(f"{place.path} cannot be read any more: {error}") from error

    def require(self) -> None:
        """Raise a `DataError` where there is nothing to read."""
        if not self.files():
            raise DataError(
                f"{self.run} holds no rollouts: looked for records/*.jsonl, records.jsonl, rollouts/*.jsonl and "
                "validation/*.jsonl in it"
            )


def _by_step(path: Path) -> tuple[int, str]:
    """``train_000012.jsonl`` and ``12.jsonl`` are step 12."""
    step = path.stem.rpartition("_")[2]
    return (int(step) if step.isdecimal() else 0, str(path))


def _parse(line: bytes, path: Path) -> RolloutRecord:
    split = _DUMPS.get(path.parent.name)
    if split is None:
        return parse_record(line, str(path))
    try:
        return record_of_dump(json.loads(line), split)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(f"{path}: not a line of veRL's rollout dumps: {error!r}") from error
