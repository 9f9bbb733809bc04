"""Which veRL is taken, refused or warned about."""

from __future__ import annotations

import importlib.metadata
import re

import pytest
from composing import ROOT
from versions import COMBINATIONS

from research_plugin.errors import VersionError
from research_plugin.versions import check_verl


@pytest.mark.parametrize("version", ["0.9.0", "0.9.1", "0.9rc1", "0.9.2.dev1+local"])
def test_known_minor_version_is_taken(version: str) -> None:
    assert check_verl(version) is None


@pytest.mark.parametrize("version", ["0.3.0.post1", "0.8.0", "0.8.9"])
def test_older_version_is_refused_with_what_fits(version: str) -> None:
    with pytest.raises(VersionError) as caught:
        check_verl(version)
    assert f"needs veRL 0.9 or newer, but verl is {version}" in str(caught.value)
    assert "pip install 'verl==0.9.1'" in str(caught.value)


@pytest.mark.parametrize("version", ["0.10.0", "0.10.0.dev0", "1.0"])
def test_newer_version_draws_a_warning(version: str) -> None:
    warning = check_verl(version)
    assert warning is not None
    assert version in warning


def test_missing_verl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(VersionError, match="verl is not installed"):
        check_verl()


def test_docs_have_a_row_for_each_combination_that_the_script_tries() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| (?:run|refused)", (ROOT / "docs" / "versions.md").read_text(), re.M)
    assert rows == list(COMBINATIONS)
