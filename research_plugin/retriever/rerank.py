"""A cross-encoder that reads query and document together and puts an engine's best documents in a new order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from research_plugin.document import Document
from research_plugin.errors import ConfigError, SearchError
from research_plugin.retriever.engine import SILENT, Engine, Stages
from research_plugin.retriever.settings import RerankSettings, RetrieverConfig

_CHARS_PER_TOKEN = 20


class RerankEngine:
    """An `Engine` around another one.

    Args:
        engine: finds the documents.
        scorer: scores them.
        candidates: documents per query that are scored, whatever a request asks for: its answer must not depend on the
            larger request that it was batched with. The server lets no request ask for more.
    """

    def __init__(self, engine: Engine, scorer: CrossEncoder, candidates: int) -> None:
        self._engine, self._scorer, self._candidates = engine, scorer, candidates
        self.name, self.size = engine.name, engine.size

    def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
        """Return the best documents by the cross-encoder's score; equal scores stay in the engine's order."""
        found = self._engine.search(queries, self._candidates, stages)
        with stages("rerank"):
            return [self._rerank(query, row)[:topk] for query, row in zip(queries, found, strict=True)]

    def close(self) -> None:
        self._engine.close()

    def _rerank(self, query: str, documents: list[Document]) -> list[Document]:
        scores = self._scorer.scores(query, [document.contents for document in documents])
        scored = [dataclasses.replace(one, score=score) for one, score in zip(documents, scores, strict=True)]
        return sorted(scored, key=lambda document: -(document.score or 0.0))


class CrossEncoder:
    """A Hugging Face sequence-classification model with one label. Called from one thread at a time.

    Raises:
        ConfigError: the model cannot be loaded, is no such model, or does not take ``max_length`` tokens.
        SearchError: see `scores`.
    """

    def __init__(self, settings: RerankSettings, threads: int = 1) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from research_plugin.retriever.encoder import CPU_BATCH_TOKENS
        from research_plugin.retriever.torch_device import pick_device, pick_dtype
        from research_plugin.retriever.unpadded import speed_up

        path = str(settings.model_path)
        self._settings, self._threads = settings, threads
        self._device = pick_device(settings.device)
        dtype = pick_dtype(settings.dtype, self._device)
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
            self._model, info = AutoModelForSequenceClassification.from_pretrained(
                path, dtype=dtype, output_loading_info=True
            )
        except Exception as error:  # OSError, ValueError, SafetensorError, ...: whatever the files provoke
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"rerank.model_path={path}: cannot be loaded ({reason}); give a model's folder or, online, its hub name"
            ) from error
        # A layer that the files do not hold was just filled with random numbers.
        if info["missing_keys"] or self._model.config.num_labels != 1:
            raise ConfigError(
                f"rerank.model_path={path}: {self._model.config.num_labels} labels, weights missing for"
                f" {sorted(info['missing_keys'])}; give a cross-encoder, whole and with one label"
            )
        positions = getattr(self._model.config, "max_position_embeddings", math.inf)
        longest = min(self._tokenizer.model_max_length, positions)
        if settings.max_length > longest:
            raise ConfigError(f"rerank.max_length={settings.max_length}: {path} takes at most {longest} tokens")
        on_cpu = self._device.type == "cpu"
        self._batch_tokens = min(settings.batch_tokens, CPU_BATCH_TOKENS) if on_cpu else settings.batch_tokens
        self._model.to(self._device).eval()
        speed_up(self._model)
        # A tokenizer that cannot pad or a format that overflows shows now rather than in the first request.
        self.scores("a", ["b", "b c"])

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score texts for a query: the model's logits, higher is better.

        What is longer than ``max_length`` tokens together loses the end of the text; only a query of more than half of
        that loses its own. A query's texts share sub-batches with nothing else.

        Raises:
            SearchError: the model gave infinities or NaN.
        """
        import torch

        from research_plugin.retriever.encoder import token_batches
        from research_plugin.retriever.torch_device import use_threads

        use_threads(self._threads)
        rows = self._tokenize(query, texts) if texts else []
        lengths = [len(row["input_ids"]) for row in rows]
        order = sorted(range(len(rows)), key=lengths.__getitem__)
        found = [0.0] * len(rows)
        with torch.inference_mode():
            for chosen in token_batches(order, lengths, self._batch_tokens):
                inputs = self._tokenizer.pad([rows[i] for i in chosen], return_tensors="pt").to(self._device)
                for i, score in zip(chosen, self._model(**inputs).logits[:, 0].tolist(), strict=True):
                    found[i] = score
        if not all(map(math.isfinite, found)):
            raise SearchError(
                f"reranker {self._settings.model_path}: scores hold infinities or NaN in {self._model.dtype};"
                " set rerank.dtype=float32 or bfloat16"
            )
        return found

    def _tokenize(self, query: str, texts: Sequence[str]) -> list[dict[str, list[int]]]:
        """Ids and their masks, a row per text."""
        longest = self._settings.max_length
        # Not more text is tokenized than can count: a page may be a megabyte long.
        pairs = [(query[: _CHARS_PER_TOKEN * longest], text[: _CHARS_PER_TOKEN * longest]) for text in texts]
        columns = self._tokenizer(pairs, truncation="longest_first", max_length=longest)
        return [{name: column[i] for name, column in columns.items()} for i in range(len(pairs))]


def rerank(engine: Engine, config: RetrieverConfig) -> RerankEngine:
    """Put the reranker of ``config.rerank`` around ``engine``.

    Raises:
        ConfigError: see `CrossEncoder`.
    """
    return RerankEngine(engine, CrossEncoder(config.rerank, config.threads), config.rerank.candidates)
