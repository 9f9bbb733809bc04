"""``research-plugin data prepare NAME``: JSONL questions as veRL's Parquet, with a manifest of what came from where.

Everything is read and checked before anything is written, and files get their names when they are whole.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research_plugin import __version__
from research_plugin.data.published_sets import PUBLISHED_SETS, REPOSITORY, count_problem
from research_plugin.data.questions import read_rows
from research_plugin.data.rows import Row, file_sha256, write_parquet
from research_plugin.errors import ConfigError, DataError
from research_plugin.rewards import normalise

VALIDATION = "val"
_VALIDATION_ROWS, _SEED = 100, 42  # ReSearch's (arXiv 2503.19470)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("name", metavar="NAME", help=f"{', '.join(PUBLISHED_SETS)}, a JSONL file, or any name with --from")
    add(
        "--from",
        dest="source",
        type=Path,
        metavar="PATH",
        help="folder that holds NAME/SPLIT.jsonl, or one JSONL file (default: download them from the hub)",
    )
    add("--split", action="append", metavar="SPLIT", help="what to prepare; may be repeated (default: the published)")
    add("--out", type=Path, metavar="DIR", help="folder to write to (default: data/NAME)")
    add(
        "--val",
        type=int,
        default=_VALIDATION_ROWS,
        metavar="N",
        help="rows of val.parquet, drawn from dev when train is prepared, too; 0: none (default: %(default)s)",
    )
    add("--seed", type=int, default=_SEED, help="of that draw (default: %(default)s)")
    add("--any-count", action="store_true", help="go on where the number of rows is not the published one")


def run(args: argparse.Namespace) -> int:
    """Read, check, write, and say what was written."""
    name, files = _inputs(args.name, args.source, args.split)
    splits = {split: read_rows(path, name, split) for split, path in files.items()}
    problems = [text for split, rows in splits.items() if (text := count_problem(name, split, len(rows)))]
    if problems and not args.any_count:
        raise DataError("\n".join(problems) + "\nfetch the file again, or go on with --any-count")
    notes = problems + _overlaps(splits)
    if args.val and {"train", "dev"} <= splits.keys() and VALIDATION not in splits:
        splits[VALIDATION] = draw(splits["dev"], args.val, args.seed)
    folder = args.out or Path("data", name)
    manifest = {
        "name": name,
        "seed": args.seed,
        "notes": notes,
        "sources": {split: _facts(path, len(splits[split])) for split, path in files.items()},
        "versions": {"research-plugin": __version__, "pyarrow": importlib.metadata.version("pyarrow")},
    }
    _write(folder, splits, manifest)
    for split, rows in splits.items():
        print(f"{folder / split}.parquet  {len(rows):,} rows")
    print(*(f"note: {note}" for note in notes), sep="\n", end="\n" if notes else "", file=sys.stderr)
    return 0


def draw(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """Draw ``count`` rows: the first ones after a shuffle, as the paper's were drawn.

    Raises:
        ConfigError: there are fewer.
    """
    if not 0 < count <= len(rows):
        raise ConfigError(f"--val {count}: from 1 to the {len(rows)} rows of dev are allowed, and 0 for none")
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:count]


def _inputs(name: str, source: Path | None, splits: Sequence[str] | None) -> tuple[str, dict[str, Path]]:
    """Return the data set's name and the file of each split."""
    if source is None and name not in PUBLISHED_SETS:
        if not Path(name).is_file():
            raise ConfigError(
                f"{name!r} is neither a file nor one of {', '.join(PUBLISHED_SETS)}; for other data give --from PATH"
            )
        name, source = Path(name).stem, Path(name)
    wanted = splits or (PUBLISHED_SETS[name].splits if name in PUBLISHED_SETS else ("test",))
    if source is None:
        return name, _download(name, wanted)
    if source.is_dir():
        return name, {split: source / name / f"{split}.jsonl" for split in wanted}
    if len(wanted) > 1:
        raise ConfigError(f"--from {source} is one file; say with --split which of {', '.join(wanted)} it is")
    return name, {wanted[0]: source}


def _download(name: str, splits: Sequence[str]) -> dict[str, Path]:
    """Return the hub's files of the splits, from its cache if they are there."""
    files = {split: f"{name}/{split}.jsonl" for split in splits}
    try:
        from huggingface_hub import hf_hub_download

        return {split: Path(hf_hub_download(REPOSITORY, file, repo_type="dataset")) for split, file in files.items()}
    except Exception as error:  # whatever stands between this machine and the hub, the way out is the same
        wanted, reason = " ".join(files.values()), next(iter(str(error).splitlines()), "")
        raise DataError(
            f"{wanted} of the hub's data set {REPOSITORY} cannot be downloaded ({type(error).__name__}: {reason}). On "
            "a machine with a connection:\n"
            f"    hf download {REPOSITORY} {wanted} --repo-type dataset --local-dir flashrag\n"
            "then copy that folder here and add --from flashrag"
        ) from error


def _overlaps(splits: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return a note for every two splits that share questions, case and punctuation aside."""
    questions = {split: {normalise(row["extra_info"]["question"]) for row in rows} for split, rows in splits.items()}
    names = list(questions)
    pairs = [(one, other) for at, one in enumerate(names) for other in names[at + 1 :]]
    shared = {(one, other): questions[one] & questions[other] for one, other in pairs}
    return [
        f"{len(found):,} questions are in {one} and in {other}, such as {min(found)!r}"
        for (one, other), found in shared.items()
        if found
    ]


def _facts(path: Path, rows: int) -> dict[str, Any]:
    return {"file": str(path), "sha256": file_sha256(path), "rows": rows}


def _write(folder: Path, splits: Mapping[str, Sequence[Row]], manifest: dict[str, Any]) -> None:
    """Write the files beside their places, then rename them; the manifest, which comes last, holds their hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    finished: dict[Path, Path] = {}
    files: dict[str, dict[str, Any]] = {}
    try:
        for split, rows in splits.items():
            path = folder / f"{split}.parquet"
            finished[path] = path.with_name(f"{path.name}.{os.getpid()}.part")
            write_parquet(rows, finished[path])
            files[path.name] = {"sha256": file_sha256(finished[path]), "rows": len(rows)}
        path = folder / "manifest.json"
        finished[path] = path.with_name(f"{path.name}.{os.getpid()}.part")
        finished[path].write_text(json.dumps({**manifest, "files": files}, indent=2) + "\n", encoding="utf-8")
        for path, partial in finished.items():
            os.replace(partial, path)
    finally:
        for partial in finished.values():
            partial.unlink(missing_ok=True)
