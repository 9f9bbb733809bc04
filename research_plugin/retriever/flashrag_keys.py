"""FlashRAG's names for the settings of a retriever, so that its YAML files can be served as they are.

Names and meaning: FlashRAG 0.3.0dev0 (git 1ee5249), config/basic_config.yaml and retriever/{utils,encoder,reranker}.py,
and the serving file of ReSearch, which has the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from research_plugin.errors import ConfigError

# Same meaning, another name.
RENAMED = {
    "corpus_path": "corpus",
    "index_path": "index.path",
    "retrieval_model_path": "encoder.model_path",
    "retrieval_topk": "topk",
    "retrieval_query_max_length": "encoder.query_max_length",
    "retrieval_pooling_method": "encoder.pooling",
    "retrieval_batch_size": "server.max_batch",
    "rerank_max_length": "rerank.max_length",
}
# Converted one by one in `translate`.
CONVERTED = {
    "retrieval_method",
    "retrieval_use_fp16",
    "instruction",
    "use_sentence_transformer",
    "faiss_gpu",
    "use_reranker",
    "rerank_model_path",
    "rerank_model_name",
    "rerank_topk",
    "rerank_use_fp16",
    "model2path",
    "model2pooling",
    "method2index",
}
# A true value asks for something that another setting of ours does.
REFUSED = {
    "use_multi_retriever": "set engine=hybrid and its keys instead",
    "use_remote_retriever": "give the training recipe that server's URL (search.url) instead",
}
# What a whole FlashRAG configuration holds besides: caches (the server has its own), generators, metrics, folders.
_IGNORED = {
    "bm25_backend", "data_dir", "dataset_name", "dataset_path", "disable_save", "framework", "generation_params",
    "gpu_id", "gpu_memory_utilization", "gpu_num", "metric_setting", "metrics", "multi_retriever_setting",
    "openai_setting", "random_sample", "remote_retriever_url", "rerank_batch_size", "rerank_pooling_method",
    "retrieval_cache_path", "retrieval_return_score", "seed", "silent_retrieval", "split", "test_sample_num",
    "use_fid", "use_retrieval_cache",
}  # fmt: skip
_IGNORED_BEGINNINGS = ("generator_", "index_", "multimodal_", "refiner_", "save_", "seismic_", "sgl_")


def is_flashrag_key(name: str) -> bool:
    """Tell whether a top-level key is FlashRAG's; none of ours is."""
    known = name in RENAMED or name in CONVERTED or name in REFUSED or name in _IGNORED
    return known or name.startswith(_IGNORED_BEGINNINGS)


def translate(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Say FlashRAG's keys in our words.

    Args:
        values: FlashRAG keys only; one that is null counts as not given.

    Returns:
        Values by our dotted keys, and the given keys that mean nothing here.

    Raises:
        ConfigError: a key asks for what is set in another way here.
    """
    given = {key: value for key, value in values.items() if value is not None}
    for key, advice in REFUSED.items():
        if given.get(key):
            raise ConfigError(f"{key}: {given[key]!r} is not served from a FlashRAG file; {advice}")
    ours = {RENAMED[key]: value for key, value in given.items() if key in RENAMED}
    ours |= _method(given)
    if "instruction" in given:
        # FlashRAG puts exactly one blank behind it; behind an empty one that blank changes nothing for a tokenizer.
        text = str(given["instruction"]).strip()
        ours["encoder.query_instruction"] = f"{text} " if text else ""
        # What passages got is in no FlashRAG file: E5's two belong together, other models have one for queries at most.
        ours["encoder.passage_instruction"] = "passage: " if text == "query:" else ""
    if "retrieval_use_fp16" in given:
        ours["encoder.dtype"] = "auto" if given["retrieval_use_fp16"] else "float32"
    if given.get("use_sentence_transformer"):
        ours["encoder.backend"] = "sentence_transformers"
    if given.get("faiss_gpu"):
        ours["index.backend"] = "torch"
    if given.get("use_reranker"):
        ours |= _reranker(given)
    unused = [key for key in given if key not in RENAMED and key not in CONVERTED and key not in REFUSED]
    return ours, unused


def _method(given: Mapping[str, Any]) -> dict[str, Any]:
    """What ``retrieval_method`` decides; a model, pooling or index not given by itself is in the three tables."""
    method = given.get("retrieval_method")
    if method is None:
        return {}
    if method == "bm25":
        # FlashRAG's own BM25 index answers wrongly (stemmed, asked without stemming): ours is made from the corpus.
        return {"engine": "bm25", "index.path": None}
    if method == "splade":
        raise ConfigError(
            "retrieval_method: 'splade' is not read by engine dense; set engine=flashrag and flashrag_config"
        )
    found: dict[str, Any] = {"engine": "dense"}
    tables = (
        ("retrieval_model_path", "encoder.model_path", "model2path"),
        ("index_path", "index.path", "method2index"),
        ("retrieval_pooling_method", "encoder.pooling", "model2pooling"),
    )
    for name, key, table in tables:
        listed = (given.get(table) or {}).get(method)
        if name not in given and listed is not None:
            found[key] = listed
    if "retrieval_model_path" not in given and "encoder.model_path" not in found:
        found["encoder.model_path"] = method
    return found


def _reranker(given: Mapping[str, Any]) -> dict[str, Any]:
    """FlashRAG reranks all ``retrieval_topk`` documents and keeps ``rerank_topk`` of them."""
    name = given.get("rerank_model_name")
    path = given.get("rerank_model_path") or (given.get("model2path") or {}).get(name) or name
    if path is None:
        raise ConfigError("use_reranker: true, but rerank_model_path is not set; give a cross-encoder's folder")
    kept = {"rerank.model_path": path, "rerank.candidates": given.get("retrieval_topk", 5)}
    kept["topk"] = given.get("rerank_topk", 5)
    if "rerank_use_fp16" in given:
        kept["rerank.dtype"] = "auto" if given["rerank_use_fp16"] else "float32"
    return kept
