"""Where a run keeps its rollout records: ``RUN/records/train_000012.jsonl`` and ``val_000010.jsonl``, a file per step.

A file appears whole, by renaming, so that a kill leaves none half written and a viewer may follow a running training.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from research_plugin.errors import DataError
from research_plugin.records import RolloutRecord, parse_record

__all__ = ["find_records", "read_records", "record_file", "trim_records", "write_records"]

FOLDER = "records"
_NAME = re.compile(r"^(?P<split>train|val|eval)_(?P<step>\d+)\.jsonl$")


def record_file(run_dir: Path, split: str, step: int) -> Path:
    """Return the file for the records of one step; ``split`` is "train", "val" or "eval"."""
    return run_dir / FOLDER / f"{split}_{step:06d}.jsonl"


def find_records(run: Path) -> list[Path]:
    """Return the files of a run in the order of their steps, training before validation.

    Args:
        run: A run's folder, its ``records`` folder, or one file of records.

    Raises:
        DataError: there are none.
    """
    if run.is_file():
        return [run]
    found = [path for folder in (run / FOLDER, run) for path in folder.glob("*.jsonl") if _NAME.match(path.name)]
    if not found:
        raise DataError(
            f"{run} holds no rollout records: neither {FOLDER}/train_STEP.jsonl nor {FOLDER}/val_STEP.jsonl (training "
            "writes them unless actor_rollout_ref.rollout.custom.records.groups_per_step=0)"
        )
    return sorted(found, key=_order)


def read_records(paths: Iterable[Path]) -> Iterator[RolloutRecord]:
    """Read the records one by one; a last line without its end, cut by a kill, is left out.

    Raises:
        DataError: a line that is no record, with its file and number.
    """
    for path in paths:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip() and line.endswith(b"\n"):
                    yield parse_record(line, f"{path}:{number}")


def write_records(path: Path, records: Iterable[RolloutRecord]) -> None:
    """Write the file whole, or not at all; one of the same step, from before a resume, is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    with partial.open("w", encoding="utf-8") as out:
        out.writelines(f"{record.to_line()}\n" for record in records)
    os.replace(partial, path)


def trim_records(run_dir: Path, max_mb: float) -> list[Path]:
    """Delete steps until the run's files are within ``max_mb``; return what was deleted.

    The first and the last file of a split stay, and of those between the one whose neighbours are closest goes first:
    what is left covers the whole run. Training goes before validation.
    """
    files = sorted(path for path in (run_dir / FOLDER).glob("*.jsonl") if _NAME.match(path.name))
    sizes = {path: path.stat().st_size for path in files}
    deleted: list[Path] = []
    for split in ("train", "val"):
        kept = [path for path in files if path.name.startswith(split)]
        while len(kept) > 2 and sum(sizes.values()) > max_mb * 1e6:
            path = kept.pop(_most_covered([_order(path)[0] for path in kept]))
            path.unlink(missing_ok=True)
            del sizes[path]
            deleted.append(path)
    return deleted


def _most_covered(steps: Sequence[int]) -> int:
    """Return the inner index whose neighbours are closest to each other, the first of several."""
    return min(range(1, len(steps) - 1), key=lambda index: steps[index + 1] - steps[index - 1])


def _order(path: Path) -> tuple[int, str]:
    match = _NAME.match(path.name)
    assert match is not None
    return int(match["step"]), match["split"]
