"""``research-plugin data``: its actions."""

from __future__ import annotations

import argparse

from research_plugin.actions import add_actions, run_action

ACTIONS = {
    "prepare": ("research_plugin.data.prepare", "turn JSONL questions into the Parquet that veRL reads"),
    "difficulty": ("research_plugin.data.difficulty", "sort questions by how many rollouts a served model needs"),
    "sft": ("research_plugin.data.sft", "export good rollouts for veRL's SFT trainer"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions with their options."""
    add_actions(parser, ACTIONS)


def run(args: argparse.Namespace) -> int:
    """Run one action and return its exit code."""
    return run_action(args, ACTIONS)
