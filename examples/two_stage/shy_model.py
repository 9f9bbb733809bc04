"""Writes shy_model/, the tiny model with a weakened <search> token: it seldom searches and often breaks the format."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from research_plugin.data.tiny_files import tiny_dir

SCALE = 0.35
"""Of the token's embedding, which is its output row, too: the smaller, the less likely the token."""


def main(scale: float = SCALE) -> None:
    """Copy the shipped model into this folder and scale one row of it."""
    source, target = tiny_dir() / "model", Path("shy_model")
    shutil.copytree(source, target, dirs_exist_ok=True)
    weights = load_file(source / "model.safetensors")
    row = AutoTokenizer.from_pretrained(source).convert_tokens_to_ids("<search>")
    weights["model.embed_tokens.weight"][row] *= scale
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    print(f"{target} written")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
