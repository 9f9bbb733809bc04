"""The ``research-plugin`` command. Each subcommand imports its own code when it runs."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from research_plugin import __version__
from research_plugin.errors import ResearchPluginError

# name -> (module with add_arguments(parser) and run(args) -> exit code, extra that it needs, one line of help)
COMMANDS = {
    "serve": ("research_plugin.retriever.command", "retriever", "serve a retriever over HTTP"),
    "index": ("research_plugin.retriever.build.command", "dense", "build, check and convert the index of a corpus"),
    "doctor": ("research_plugin.doctor.command", "cpu", "check installation and recipe before a training"),
    "data": ("research_plugin.data.command", "data", "prepare what a training reads"),
    "eval": ("research_plugin.evaluation.command", "eval", "answer a dataset's questions with a served model"),
    "report": ("research_plugin.reports.command", "report", "curves, tables and cards of trainings and evaluations"),
    "view": ("research_plugin.viewer.command", "report", "look at the rollouts of a run: in a browser or a terminal"),
    "judge": ("research_plugin.evaluation.judge_command", "eval", "let an LLM judge the answers of an evaluation"),
    "chat": ("research_plugin.chat.command", "eval", "ask a served model and watch it search"),
    "tiny": ("research_plugin.data.build_tiny", "cpu", "rebuild the embedded tiny world, its tokenizer and its model"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="research-plugin", description="Search while reasoning, for stock veRL.")
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, (module, _, help_text) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=help_text, description=help_text)
        if name == chosen:
            importlib.import_module(module).add_arguments(subparser)
    args, rest = parser.parse_known_args(arguments)
    if rest and hasattr(args, "overrides") and not any(word.startswith("-") for word in rest):
        args.overrides += rest  # argparse takes them in one place only, before or after the options
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    module, extra, _ = COMMANDS[args.command]
    try:
        return int(importlib.import_module(module).run(args))
    except ImportError as error:
        print(f"research-plugin {args.command}: {error}; pip install 'research-plugin[{extra}]'", file=sys.stderr)
        return 1
    except (ResearchPluginError, OSError) as error:  # OSError: a full disk, a folder that may not be written
        print(f"research-plugin {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
