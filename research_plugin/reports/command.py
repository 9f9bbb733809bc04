"""``research-plugin report``: its actions."""

from __future__ import annotations

import argparse

from research_plugin.actions import add_actions, run_action

ACTIONS = {
    "card": ("research_plugin.reports.run_card", "what a training ran, cost and reached, as one page"),
    "curves": ("research_plugin.reports.curves", "how trainings went, step by step, as PNG, SVG and interactive HTML"),
    "table": ("research_plugin.reports.table", "evaluations beside the published table, as Markdown, CSV and LaTeX"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions with their options."""
    add_actions(parser, ACTIONS)


def run(args: argparse.Namespace) -> int:
    """Run one action and return its exit code."""
    return run_action(args, ACTIONS)
