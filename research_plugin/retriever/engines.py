"""Makes the engine that a configuration names. Each engine's module is imported only when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.engine import Engine
from research_plugin.retriever.settings import RetrieverConfig

# name -> (module:function of the configuration, extra of the package that brings what it imports)
ENGINES = {
    "bm25": ("research_plugin.retriever.bm25:make", "retriever"),
    "dense": ("research_plugin.retriever.dense:make", "dense"),
    "flashrag": ("research_plugin.retriever.flashrag_engine:make", "dense"),
    "hybrid": ("research_plugin.retriever.fusion:make", "dense"),
    "web": ("research_plugin.retriever.web.engine:make", "retriever-web"),
}
_RERANK = ("research_plugin.retriever.rerank:rerank", "dense")


def make_engine(config: RetrieverConfig) -> Engine:
    """Load ``config.engine``, with the reranker around it if there is one; may take minutes.

    Raises:
        ConfigError: a package is missing, or whatever the engine says of its settings.
        DataError: the corpus cannot be used, or does not have ``corpus_rows`` documents.
    """
    engine: Engine = _call(ENGINES[config.engine], f"engine {config.engine}", config)
    if config.corpus_rows is not None and engine.size != config.corpus_rows:
        engine.close()
        raise DataError(
            f"corpus {config.corpus}: has {engine.size} documents, corpus_rows={config.corpus_rows}; is it whole?"
        )
    if config.rerank.model_path is not None:
        engine = _call(_RERANK, "reranker", engine, config)
    return engine


def _call(target: tuple[str, str], what: str, *arguments: object) -> Any:
    where, extra = target
    module, _, name = where.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function(*arguments)
    except ImportError as error:
        if error.name is None or error.name.startswith("research_plugin"):
            raise
        advice = f"pip install 'research-plugin[{extra}]'"
        raise ConfigError(f"{what}: package {error.name} is not installed; {advice}") from error
