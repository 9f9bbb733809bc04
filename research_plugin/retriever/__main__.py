"""``python -m research_plugin.retriever``: the same as ``research-plugin serve``."""

from __future__ import annotations

import argparse
import sys

from research_plugin.retriever.command import add_arguments, run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m research_plugin.retriever", description="Serve a corpus over HTTP.")
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
