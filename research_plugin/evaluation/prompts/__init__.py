"""The texts of the prompted methods, one file each, and how passages stand in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from research_plugin.document import Document


def load(name: str) -> str:
    """Return the text of ``<name>.txt``."""
    return (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8").strip()


def fill(name: str, **parts: str) -> str:
    """Return the text of ``<name>.txt`` with every ``{part}`` filled in; what is filled in may hold braces itself."""
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], load(name))


def list_passages(documents: Iterable[Document]) -> str:
    """Return the documents as numbered passages, title apart from text."""
    split = (document.contents.partition("\n") for document in documents)
    return "\n".join(f"[{number}] {title}: {text}" for number, (title, _, text) in enumerate(split, start=1))
