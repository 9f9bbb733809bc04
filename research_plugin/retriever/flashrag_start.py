"""Builds a FlashRAG retriever inside this process: checks its file first, undoes its side effects afterwards."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from research_plugin.errors import ConfigError, ResearchPluginError, VersionError
from research_plugin.retriever.settings import RetrieverConfig

_INSTALL = (
    "Install FlashRAG from its repository (pip install git+https://github.com/RUC-NLPIR/FlashRAG), or set engine=dense"
    " or engine=bm25: they serve the same corpus without FlashRAG"
)
_PYPI = (
    "FlashRAG's release on PyPI (flashrag-dev 0.1.2) cannot answer a dense query on any machine: it lacks"
    " config/basic_config.yaml, moves its encoder to CUDA unasked and calls its parse_query with an argument too few"
)
# Messages that the faults in _PYPI end in.
_PYPI_SIGNS = ("not compiled with CUDA", "Found no NVIDIA driver", "parse_query()", "basic_config.yaml")
# FlashRAG's keys that make answers wrong, or depend on other requests or on timing.
_REFUSED = {
    "use_multi_retriever": "it passes over members that fail and orders them by which thread ends first; set"
    " engine=hybrid",
    "use_reranker": "it is given only as many documents as a request asks for; set rerank.model_path",
    "use_retrieval_cache": "a cached query keeps the number of documents it was first asked for; server.cache_size is"
    " this server's cache",
    "save_retrieval_cache": "that cache grows without bound; server.cache_size is this server's cache",
}
_CHANGED_VARIABLES = ("CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM")


def build_retriever(config: RetrieverConfig) -> Any:
    """Return ``flashrag.utils.get_retriever(flashrag.config.Config(file))``.

    GPUs: CUDA_VISIBLE_DEVICES if it is set, else the file's own gpu_id, never FlashRAG's default of "0,1,2,3".

    Raises:
        ConfigError, VersionError: as `flashrag_engine.make` says.
    """
    settings = _read(config)
    _check_installation()
    overrides = {
        "gpu_id": os.environ.get("CUDA_VISIBLE_DEVICES", settings.get("gpu_id")),
        "silent_retrieval": True,
    }
    with _undone(), tempfile.TemporaryDirectory(prefix="flashrag-") as folder:
        try:
            from flashrag.config import Config
            from flashrag.utils import get_retriever

            # Config writes itself into a new folder of save_dir; not every version knows disable_save.
            retriever = get_retriever(Config(config.flashrag_config, {**overrides, "save_dir": folder}))
        except Exception as error:
            raise failure(f"build a retriever from {config.flashrag_config}", error) from error
    if hasattr(retriever, "index_dict"):
        raise ConfigError(
            f"{config.flashrag_config}: retrieval_method={settings.get('retrieval_method')!r} makes an image retriever,"
            " which downloads queries that look like a URL; give a text retriever"
        )
    return retriever


def failure(action: str, error: Exception) -> ResearchPluginError:
    """Return the error to raise when FlashRAG cannot do ``action``: what it said, and what that means."""
    said = f"FlashRAG ({_version()}) cannot {action}: {type(error).__name__}: {error}"
    if any(sign in str(error) for sign in _PYPI_SIGNS):
        return VersionError(f"{said}. {_PYPI}. {_INSTALL}")
    if isinstance(error, ModuleNotFoundError):
        return ConfigError(
            f"{said}; FlashRAG does not declare all it needs: install it (faiss is faiss-cpu or faiss-gpu)"
        )
    if isinstance(error, AssertionError) and not str(error):
        return ConfigError(f"{said}(no message). FAISS does so when the model's dimension is not the index's")
    return ConfigError(said)


def _read(config: RetrieverConfig) -> dict[str, Any]:
    """Read FlashRAG's file and refuse what cannot be served rightly."""
    import yaml

    path = config.flashrag_config
    if path is None:
        raise ConfigError("engine=flashrag: flashrag_config is not set; give FlashRAG's own YAML file of the retriever")
    try:
        settings = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"flashrag_config {path}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"flashrag_config {path}: got {type(settings).__name__}; a mapping of settings is allowed")
    for key, reason in _REFUSED.items():
        if settings.get(key):
            raise ConfigError(f"flashrag_config {path}: {key}={settings[key]!r} is not served: {reason}")
    if settings.get("retrieval_method") not in ("bm25", "splade") and settings.get("instruction") is None:
        raise ConfigError(
            f"flashrag_config {path}: instruction is not set. FlashRAG would guess it from the model's path and"
            " the language of the query that comes first in a batch; write what the index was made for, such as"
            ' "query: " for E5 or "" for none'
        )
    corpus = settings.get("corpus_path")
    if corpus and config.corpus and Path(corpus).resolve() != Path(config.corpus).resolve():
        raise ConfigError(f"flashrag_config {path}: corpus_path={corpus}, but corpus={config.corpus}; give one corpus")
    return settings


def _check_installation() -> None:
    spec = importlib.util.find_spec("flashrag")
    if spec is None:
        raise ConfigError(f"engine=flashrag: FlashRAG is not installed. {_INSTALL}")
    folders = spec.submodule_search_locations or ()
    if not any((Path(folder) / "config" / "basic_config.yaml").is_file() for folder in folders):
        raise VersionError(f"FlashRAG ({_version()}) in {', '.join(folders)} is not usable. {_PYPI}. {_INSTALL}")


def _version() -> str:
    try:
        return importlib.metadata.version("flashrag-dev")
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


@contextlib.contextmanager
def _undone() -> Iterator[None]:
    """Undo what FlashRAG's Config does to the process: GPU selection, random seeds, cuDNN flags, prints."""
    import numpy as np
    import torch

    variables = {name: os.environ.get(name) for name in _CHANGED_VARIABLES}
    seeds = random.getstate(), np.random.get_state()
    cudnn = torch.backends.cudnn
    flags = cudnn.benchmark, cudnn.deterministic
    try:
        with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(seeds[0])
        np.random.set_state(seeds[1])
        cudnn.benchmark, cudnn.deterministic = flags
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
