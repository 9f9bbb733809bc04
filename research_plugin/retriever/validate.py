"""What the settings of a retriever may hold, and which files they need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from research_plugin.retriever.engines import ENGINES
from research_plugin.retriever.settings import RetrieverConfig

CHOICES = {
    "engine": tuple(ENGINES),
    "encoder.backend": ("transformers", "sentence_transformers"),
    "encoder.pooling": ("mean", "cls", "last", "pooler"),
    "encoder.dtype": ("auto", "float32", "float16", "bfloat16"),
    "index.backend": ("faiss", "torch"),
    "index.dtype": ("auto", "float32", "float16", "bfloat16"),
    "rerank.dtype": ("auto", "float32", "float16", "bfloat16"),
}
LEAST = {
    "corpus_rows": 1,
    "topk": 1,
    "hybrid_candidates": 1,
    "threads": 1,
    "encoder.query_max_length": 1,
    "encoder.passage_max_length": 1,
    "encoder.batch_tokens": 1,
    "index.nprobe": 1,
    "index.ef_search": 1,
    "index.blas_threshold": 1,
    "rerank.candidates": 1,
    "rerank.max_length": 1,
    "rerank.batch_tokens": 1,
    "web.page_chars": 1,
    "web.retries": 0,
    "web.max_concurrency": 1,
    "web.summarize_chars": 1,
    "server.port": 0,
    "server.max_topk": 1,
    "server.max_queries": 1,
    "server.max_query_chars": 1,
    "server.max_body_mb": 1,
    "server.max_queue": 1,
    "server.max_batch": 1,
    "server.max_batch_tokens": 1,
    "server.cache_size": 0,
    "server.drain": 0,
    "ray.min_replicas": 1,
    "ray.target_ongoing": 1,
    "ray.gpus": 0,
}
FILES = ("corpus", "index.path", "flashrag_config")
NEEDED: dict[str, tuple[str, ...]] = {
    "bm25": ("corpus",),
    "dense": ("corpus", "index.path", "encoder.model_path"),
    "flashrag": ("flashrag_config",),
    "web": (),
}
ABOVE_ZERO = ("index.memory_gb", "web.timeout", "web.requests_per_second", "web.cache_days", "server.deadline")


def get(config: RetrieverConfig, key: str) -> object:
    """Return the value of a dotted key."""
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def value_faults(config: RetrieverConfig) -> Iterator[str]:
    """Every value outside what is allowed, by key; None stands for "not set" and passes."""
    for key, allowed in CHOICES.items():
        if get(config, key) not in allowed:
            yield f"{key}: got {get(config, key)!r}; allowed: {', '.join(allowed)}"
    for key, least in LEAST.items():
        value = get(config, key)
        if isinstance(value, int | float) and not value >= least:
            yield f"{key}: got {value}; must be at least {least}"
    for key in ABOVE_ZERO:
        value = get(config, key)
        if isinstance(value, int | float) and not value > 0:
            yield f"{key}: got {value}; must be above 0"
    for key, most in topk_limits(config).items():
        if config.topk is not None and config.topk > most:
            yield f"topk: got {config.topk}; {key}={most} is the most a request may ask for"
    if config.engine == "bm25" and config.index.path:
        yield f"index.path: got {config.index.path!r}, but engine bm25 makes its own index; is engine=dense missing?"
    if config.ray.max_replicas < config.ray.min_replicas:
        wanted = f"ray.min_replicas={config.ray.min_replicas}"
        yield f"ray.max_replicas: got {config.ray.max_replicas}; must be at least {wanted}"
    for name in config.hybrid if config.engine == "hybrid" else ():
        if name not in NEEDED:
            yield f"hybrid: got {name!r}; allowed: {', '.join(NEEDED)}"


def file_faults(config: RetrieverConfig) -> Iterator[str]:
    """Every setting that the engine needs and that is not set, or names a file that is not there."""
    for key in sorted({key for name in engine_names(config) for key in NEEDED[name]}):
        value = get(config, key)
        if value is None:
            yield f"{key}: not set; engine {config.engine} needs it ({key}=..., or a recipe that says it)"
        elif key in FILES and not Path(str(value)).is_file():
            yield f"{key}: {value}: no such file"


def topk_limits(config: RetrieverConfig) -> dict[str, int]:
    """The settings that bound how many documents a request may ask for; the smallest counts."""
    keys = ["server.max_topk"]
    keys += ["hybrid_candidates"] if config.engine == "hybrid" else []
    keys += ["rerank.candidates"] if config.rerank.model_path else []
    return {key: int(str(get(config, key))) for key in keys}


def engine_names(config: RetrieverConfig) -> list[str]:
    """The engines that will be loaded: one, or those of ``hybrid``."""
    return config.hybrid if config.engine == "hybrid" else [config.engine]
