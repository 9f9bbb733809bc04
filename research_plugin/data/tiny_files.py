"""Where the built tiny world lies: the shipped copy, or a folder that the build command wrote.

Standard library only, so that a preflight may ask without loading anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from research_plugin.errors import DataError

BUILD_COMMAND = "python -m research_plugin.data.build_tiny --out DIR"


@dataclass(frozen=True, slots=True)
class TinyFiles:
    """The paths inside one built folder."""

    root: Path

    @property
    def corpus(self) -> Path:
        """FlashRAG JSONL: ``{"id": str, "contents": str}`` a line."""
        return self.root / "corpus.jsonl"

    @property
    def train(self) -> Path:
        """Questions to train on (`rows.make_row`)."""
        return self.root / "train.parquet"

    @property
    def val(self) -> Path:
        """Held-out questions."""
        return self.root / "val.parquet"

    @property
    def model(self) -> Path:
        """Hugging Face folder: weights, configs, tokenizer."""
        return self.root / "model"

    def missing(self) -> list[Path]:
        """The files that a run needs and that are not there."""
        needed = [self.corpus, self.train, self.val]
        needed += [self.model / name for name in ("config.json", "model.safetensors", "tokenizer.json")]
        return [path for path in needed if not path.is_file()]


def tiny_dir() -> Path:
    """The folder of the tiny world that ships with the package.

    Raises:
        DataError: the installation lacks some of its files.
    """
    files = TinyFiles(Path(__file__).resolve().parent / "tiny")
    missing = files.missing()
    if missing:
        names = ", ".join(str(path.relative_to(files.root)) for path in missing)
        raise DataError(
            f"tiny world: {files.root} lacks {names}; reinstall the package, or build the files with: {BUILD_COMMAND}"
        )
    return files.root
