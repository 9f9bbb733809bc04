"""``python -m research_plugin.retriever``: the same as ``research-plugin serve``."""

from __future__ import annotations

import sys

from research_plugin.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
