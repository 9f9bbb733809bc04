"""The tiny model in another method's words.

The shipped model has one token for each of ReSearch's tags. Under other names in its tokenizer the same weights search
in another dialect, so that its stop strings, prefill, observations and notices are met in the real stack.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from research_plugin.data.tiny_files import TinyFiles, tiny_dir
from research_plugin.protocol import RESEARCH, Dialect

# What the chat template makes of a question, less its last line break, as a base prompt.
BASE_PROMPT = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant"


def write_speaker(dialect: Dialect, folder: Path) -> list[str]:
    """Write ``model/`` and ``prompt.txt`` into ``folder``; return the overrides of a run in there."""
    shutil.copytree(TinyFiles(tiny_dir()).model, folder / "model")
    (folder / "prompt.txt").write_text(BASE_PROMPT)
    path = folder / "model" / "tokenizer.json"
    text = path.read_text()
    for tag in ("search_open", "search_close", "result_open", "result_close"):
        text = text.replace(json.dumps(getattr(RESEARCH, tag)), json.dumps(getattr(dialect, tag)))
    path.write_text(text)
    custom = "actor_rollout_ref.rollout.custom"
    prompt = f"{custom}.prompt={{style:base,file:prompt.txt}}"
    return ["actor_rollout_ref.model.path=model", f"{custom}.protocol={dialect.name}", prompt]
