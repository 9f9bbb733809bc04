"""What a manifest says of an index, and how it is compared with what was loaded."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from research_plugin.errors import DataError
from research_plugin.retriever.manifest import Manifest, compare, manifest_path, read_manifest, write_manifest

_CORPUS = {"rows": 3, "documents": "aa", "order": "bb"}
_VECTORS = np.random.default_rng(0).standard_normal((2, 8))


def _encoder(vectors: Any = _VECTORS, **changes: Any) -> dict[str, Any]:
    packed = base64.b64encode(np.asarray(vectors, "<f2").tobytes()).decode()
    settings = {
        "model": "e5",
        "pooling": "mean",
        "normalize": True,
        "query_instruction": "query: ",
        "passage_instruction": "passage: ",
        "passage_max_length": 180,
        "probe": packed,
    }
    return {**settings, **changes}


_MANIFEST = Manifest(3, 8, "ip", "Flat", _CORPUS, _encoder())


def test_a_manifest_survives_the_file(tmp_path: Path) -> None:
    index = tmp_path / "e5_Flat.index"
    assert read_manifest(index) is None
    write_manifest(index, _MANIFEST)
    assert read_manifest(index) == _MANIFEST
    assert [file.name for file in tmp_path.iterdir()] == ["e5_Flat.index.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": 3}', "\udcff"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    index = tmp_path / "x.index"
    manifest_path(index).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=r"x\.index\.json: cannot be read"):
        read_manifest(index)


def test_no_fault_where_all_agrees() -> None:
    near = _encoder(_VECTORS * 1.001, model="/other/folder/e5")
    assert compare(_MANIFEST, rows=3, dimension=8, metric="ip", corpus=dict(_CORPUS), encoder=near) == []
    assert compare(_MANIFEST) == []
    assert compare(replace(_MANIFEST, corpus={}, encoder={}), corpus=dict(_CORPUS), encoder=near) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"rows": 2}, ["rows", "3", "2"]),
        ({"dimension": 768}, ["dimension", "8", "768"]),
        ({"metric": "l2"}, ["metric", "ip", "l2"]),
        ({"corpus": {**_CORPUS, "rows": 4, "documents": "x", "order": "x"}}, ["3 documents", "has 4"]),
        ({"corpus": {**_CORPUS, "documents": "x", "order": "x"}}, ["texts differ"]),
        ({"corpus": {**_CORPUS, "order": "x"}}, ["another order"]),
        ({"encoder": _encoder(pooling="cls")}, ["encoder.pooling='cls'", "'mean'"]),
        ({"encoder": _encoder(query_instruction="")}, ["encoder.query_instruction=''", "'query: '"]),
        ({"encoder": _encoder(passage_max_length=512)}, ["encoder.passage_max_length=512", "180"]),
        ({"encoder": _encoder(-_VECTORS, model="bge")}, ["encoder.model_path='bge'", "'e5'", "-1.000"]),
        ({"encoder": _encoder(_VECTORS[:, :4])}, ["encoder.model_path", "other vectors"]),
    ],
    ids=["rows", "dim", "metric", "size", "texts", "order", "pooling", "instruction", "length", "model", "model-dim"],
)
def test_a_fault_names_both_sides(found: dict[str, Any], words: list[str]) -> None:
    (fault,) = compare(_MANIFEST, **found)
    assert all(word in fault for word in words), fault


def test_pooling_of_a_model_that_pools_itself_is_left_to_the_probe() -> None:
    assert compare(_MANIFEST, encoder=_encoder(pooling=None)) == []
