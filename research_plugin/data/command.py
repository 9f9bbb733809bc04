"""``research-plugin data``: its actions, each in a module of its own with ``add_arguments`` and ``run``."""

from __future__ import annotations

import argparse
import importlib

ACTIONS = {
    "prepare": ("research_plugin.data.prepare", "turn JSONL questions into the Parquet that veRL reads"),
    "difficulty": ("research_plugin.data.difficulty", "sort questions by how many rollouts a served model needs"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions with their options."""
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    for name, (module, text) in ACTIONS.items():
        importlib.import_module(module).add_arguments(actions.add_parser(name, help=text, description=text))


def run(args: argparse.Namespace) -> int:
    """Run one action and return its exit code."""
    return int(importlib.import_module(ACTIONS[args.action][0]).run(args))
