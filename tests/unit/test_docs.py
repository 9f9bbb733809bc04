"""Tests, files and links that the documentation names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for folder in ("docs", "examples", "tests") for page in sorted((ROOT / folder).rglob("*.md"))),
]
TESTS = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in [file.stem, *re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), flags=re.MULTILINE)]
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:tests/\w+/)?(test_\w+)(?:\.py)?`", text))
    assert named - TESTS == set()
    links = {link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link}
    assert {link for link in links if not (page.parent / link).exists()} == set()
    paths = set(re.findall(r"`((?:benchmarks|docs|examples|research_plugin|tests)/[\w/.-]+)`", text))
    assert {path for path in paths if not (ROOT / path).exists()} == set()
