"""The commands of docs/reproduce.md are commands, with options that exist."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest

from research_plugin.cli import COMMANDS

PAGE = Path(__file__).resolve().parents[2] / "docs/reproduce.md"
TEXT = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
LINES = re.findall(r"^ {4,}(research-plugin .+)$", TEXT, flags=re.MULTILINE)


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line.split()[1:4]))
def test_command_is_understood(line: str) -> None:
    _, command, *arguments = shlex.split(line)
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(COMMANDS[command][0]).add_arguments(parser)
    parser.parse_args(arguments)


def test_every_step_has_its_commands() -> None:
    assert {line.split()[1] for line in LINES} == {"data", "index", "serve", "eval", "judge", "report"}
