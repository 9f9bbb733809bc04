"""A stand-in for FlashRAG: its signatures and its faults, over a few words. Nothing here is FlashRAG's code."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_LARGEST = 3.4028234663852886e38
CORPUS = [
    {"id": 7, "contents": "Mills\nThe mill stands beside the river."},
    {"id": "00012", "contents": "Beyonc\u00e9\nBeyonc\u00e9 sings about the villages."},
    {"id": 8, "contents": "Bridges\nSeveral bridges cross the river near the lighthouse."},
    {"id": 9, "contents": "Whales\nBlue whales live in every ocean."},
]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


class Dense:
    """A flat inner-product or L2 index that scores shared words; ``reach`` is how many rows an ANN index looks at."""

    def __init__(self, corpus: list[dict[str, Any]] = CORPUS, metric: int = 0, reach: int | None = None) -> None:
        self.corpus, self.texts = corpus, [str(row.get("contents", row.get("text"))) for row in corpus]
        self.index = SimpleNamespace(ntotal=len(corpus), metric_type=metric)
        self.reach = len(corpus) if reach is None else reach
        self.asked: list[tuple[int, int]] = []

    def search(self, query: str, num: int | None = None, return_score: bool = False) -> Any:
        """Takes a string for a list of characters, 64 to a batch, and uses the first batch alone."""
        found = self.batch_search([query[:64]], num, True)
        return (found[0][0], found[1][0]) if return_score else found[0][0]

    def batch_search(self, query: Any, num: int | None = None, return_score: bool = False) -> Any:
        print("queries:", query)
        count = num or 5
        self.asked.append((len(query), count))
        found, scores = [], []
        for text in query:
            scored = ((self._score(text, row), row) for row in range(self.reach))
            ranked = sorted(scored, key=lambda pair: (-pair[0], pair[1]))[:count]
            ranked += [(-_LARGEST, -1)] * (count - len(ranked))
            found.append([self.corpus[row] for _, row in ranked])
            scores.append([-score if self.index.metric_type else score for score, _ in ranked])
        return (found, scores) if return_score else found

    def _score(self, query: str, row: int) -> float:
        shared = len(words(query) & words(self.texts[row]))
        return shared - 100.0 if self.index.metric_type else float(shared)


class OldDense(Dense):
    """The first argument is called query_list, as in 0.1.2."""

    def batch_search(self, query_list: Any, num: int | None = None, return_score: bool = False) -> Any:  # type: ignore[override]
        return super().batch_search(query_list, num, return_score)


class BM25:
    """bm25s: fills up with rows that score 0, and raises where more rows are asked for than there are.

    The index is stemmed (a final "s" is cut); queries only with ``stems_queries``.
    """

    def __init__(self, corpus: list[dict[str, Any]] = CORPUS, stems_queries: bool = True) -> None:
        self.searcher = SimpleNamespace(corpus=corpus, scores={"num_docs": len(corpus)})
        self.stems_queries = stems_queries

    def batch_search(self, query: Any, num: int | None = None, return_score: bool = False) -> Any:
        import numpy as np

        corpus, count = self.searcher.corpus, num or 5
        if count > len(corpus):
            raise ValueError(f"k of {count} is larger than the number of available scores")
        found, scores = np.empty((len(query), count), object), np.zeros((len(query), count), np.float32)
        for place, text in enumerate(query):
            asked = {word.rstrip("s") for word in words(text)} if self.stems_queries else words(text)
            values = [len(asked & {word.rstrip("s") for word in words(row["contents"])}) for row in corpus]
            for rank, row in enumerate(sorted(range(len(corpus)), key=lambda row: -values[row])[:count]):
                found[place, rank], scores[place, rank] = corpus[row], values[row]
        return found, scores


class Config:
    """Chooses GPUs, sets seeds and writes a folder while it is made."""

    def __init__(self, config_file_path: str, config_dict: Mapping[str, Any]) -> None:
        import numpy as np
        import torch
        import yaml

        values = {"gpu_id": "0,1,2,3", "save_dir": "output/"}
        values |= yaml.safe_load(Path(config_file_path).read_text(encoding="utf-8"))
        self.values = {**values, **config_dict}
        if self.values["gpu_id"] is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(self.values["gpu_id"])
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        torch.backends.cudnn.deterministic = True
        os.makedirs(os.path.join(self.values["save_dir"], "run"), exist_ok=True)

    def __getitem__(self, key: str) -> Any:
        return self.values.get(key)


made: list[dict[str, Any]] = []
"""Every configuration that `get_retriever` was given, with the GPUs it would have seen."""


def get_retriever(config: Config) -> Any:
    print("Use `query: ` as instruction")
    made.append({**config.values, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")})
    if config["fails_with"] is not None:
        raise {"cuda": AssertionError("Torch not compiled with CUDA enabled"), "index": Warning("no index")}[
            config["fails_with"]
        ]
    if config["retrieval_method"] == "clip":
        return SimpleNamespace(index_dict={}, corpus=CORPUS)
    return Dense()


def install(folder: Path) -> Path:
    """Write an importable ``flashrag`` that leads here; return the folder to put on the path."""
    for name, line in (("config", "Config"), ("utils", "get_retriever"), ("", "")):
        package = folder / "flashrag" / name
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(f"from flashrag_fake import {line}\n" if line else "", encoding="utf-8")
    (folder / "flashrag" / "config" / "basic_config.yaml").write_text("", encoding="utf-8")
    return folder
