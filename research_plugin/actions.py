"""Subcommands of a subcommand: each action is a module of its own with ``add_arguments(parser)`` and ``run(args)``."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping

Actions = Mapping[str, tuple[str, str]]
"""name -> (module, one line of help)"""


def add_actions(parser: argparse.ArgumentParser, actions: Actions) -> None:
    """Add the actions with their options."""
    subparsers = parser.add_subparsers(dest="action", metavar="action", required=True)
    for name, (module, text) in actions.items():
        importlib.import_module(module).add_arguments(subparsers.add_parser(name, help=text, description=text))


def run_action(args: argparse.Namespace, actions: Actions) -> int:
    """Run the chosen one and return its exit code."""
    return int(importlib.import_module(actions[args.action][0]).run(args))
