"""Where a training keeps its rollout records: ``RUN/records/train_000012.jsonl`` and ``val_000010.jsonl``.

A file appears whole, by renaming, so that a kill leaves none half written and a viewer may follow a running training.
`read_records` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from research_plugin.records import RolloutRecord
from research_plugin.resumable import replacing

__all__ = ["record_file", "trim_records", "write_records"]

FOLDER = "records"
_NAME = re.compile(r"^(train|val)_(?P<step>\d+)\.jsonl$")


def record_file(run_dir: Path, split: str, step: int) -> Path:
    """Return the file for the records of one step; ``split`` is "train" or "val"."""
    return run_dir / FOLDER / f"{split}_{step:06d}.jsonl"


def write_records(path: Path, records: Iterable[RolloutRecord]) -> None:
    """Write the file whole, or not at all; one of the same step, from before a resume, is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as out:
        out.writelines(f"{record.to_line()}\n" for record in records)


def trim_records(run_dir: Path, max_mb: float) -> list[Path]:
    """Delete steps until the run's files are within ``max_mb``; return what was deleted.

    The first and the last file of a split stay, and of those between the one whose neighbours are closest goes first:
    what is left covers the whole run. Training goes before validation.
    """
    steps = {path: int(match["step"]) for path in (run_dir / FOLDER).iterdir() if (match := _NAME.match(path.name))}
    sizes = {path: path.stat().st_size for path in steps}
    deleted: list[Path] = []
    for split in ("train", "val"):
        kept = sorted((path for path in steps if path.name.startswith(split)), key=lambda path: steps[path])
        while len(kept) > 2 and sum(sizes.values()) > max_mb * 1e6:
            path = kept.pop(_most_covered([steps[path] for path in kept]))
            path.unlink(missing_ok=True)
            del sizes[path]
            deleted.append(path)
    return deleted


def _most_covered(steps: Sequence[int]) -> int:
    """Return the inner index whose neighbours are closest to each other, the first of several."""
    return min(range(1, len(steps) - 1), key=lambda index: steps[index + 1] - steps[index - 1])
