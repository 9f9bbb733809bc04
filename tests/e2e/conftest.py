"""Fixtures of several end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from research_plugin.data.tiny_files import TinyFiles, tiny_dir


@pytest.fixture(scope="session")
def tiny_model_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL (without ``/v1``) of vLLM's OpenAI-compatible server over the tiny model, one for the session."""
    pytest.importorskip("vllm")
    from model_server import serve_model

    with serve_model(TinyFiles(tiny_dir()).model, tmp_path_factory.mktemp("model_server") / "log") as url:
        yield url


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a short training run of the tiny model, one for the session."""
    pytest.importorskip("verl")
    pytest.importorskip("vllm")
    from tiny_training import short_run

    return short_run(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="session")
def tiny_retriever_url() -> Iterator[str]:
    """URL of the retriever server over the tiny world's corpus, one for the session."""
    from research_plugin.retriever.process import RetrieverProcess

    with RetrieverProcess(TinyFiles(tiny_dir()).corpus, timeout=60) as process:
        yield process.url
