"""Fixtures of several integration tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dense_world import DenseWorld, make_dense_world


@pytest.fixture(scope="session")
def dense_world(tmp_path_factory: pytest.TempPathFactory) -> DenseWorld:
    """Built once a session, or once for all if ``RESEARCH_PLUGIN_TEST_CACHE`` names a folder to keep it in."""
    cache = os.environ.get("RESEARCH_PLUGIN_TEST_CACHE")
    return make_dense_world(Path(cache) if cache else tmp_path_factory.mktemp("dense"))
