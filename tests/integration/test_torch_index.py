"""Exact search in PyTorch against plain sums in float64: rounding must never show, whatever the vectors are like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever import torch_index, torch_shard
from research_plugin.retriever.flat_file import write_flat
from research_plugin.retriever.settings import IndexSettings
from research_plugin.retriever.torch_index import TorchIndex

faiss = pytest.importorskip("faiss")
torch = pytest.importorskip("torch")

_ROWS, _DIMENSION = 3_000, 64
_DTYPES = ["float32", "bfloat16", "float16"]


def spread(random: np.random.Generator) -> Any:
    return random.standard_normal((_ROWS, _DIMENSION))


def alike(random: np.random.Generator) -> Any:
    """As E5's: any two have a cosine of 0.9 or more, and what tells them apart is small."""
    return 1 + 0.3 * random.standard_normal((_ROWS, _DIMENSION))


def crowded(random: np.random.Generator) -> Any:
    """A few hundred rows nearer to each other than bfloat16 can tell."""
    rows = random.standard_normal((_ROWS, _DIMENSION))
    rows[1_000:1_300] = rows[1_000] + 1e-3 * rows[1_000:1_300]
    return rows


def doubled(random: np.random.Generator) -> Any:
    rows = random.standard_normal((_ROWS, _DIMENSION))
    rows[: _ROWS - 10] = rows[0]
    return rows


def unscaled(random: np.random.Generator) -> Any:
    """Lengths from 0 to 40, as of a model whose vectors are not normalized."""
    rows = random.standard_normal((_ROWS, _DIMENSION))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) * np.linspace(0, 40, _ROWS)[:, None]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[IndexSettings, Any]]:
    """A flat file of such vectors, of length 1 but for those of `unscaled`, and the vectors."""

    def write(kind: Callable[[np.random.Generator], Any]) -> tuple[IndexSettings, Any]:
        vectors = kind(np.random.default_rng(0))
        if kind is not unscaled:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = np.ascontiguousarray(vectors, np.float32)
        write_flat(vectors, tmp_path / "flat.index")
        return IndexSettings(path=str(tmp_path / "flat.index"), devices=["cpu"]), vectors

    return write


@pytest.fixture(autouse=True)
def several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and steps small enough for every search to take several, the last of them not full."""
    monkeypatch.setattr(torch_shard, "_BLOCK_ROWS", 352)
    monkeypatch.setattr(torch_shard, "_CPU_SCORE_BYTES", 4 * 50 * 800)


@pytest.mark.parametrize("kind", [spread, alike, crowded, doubled, unscaled])
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("devices", [["cpu"], ["cpu"] * 3], ids=["one", "three"])
def test_the_best_rows_are_found(make: Any, kind: Any, dtype: str, devices: list[str]) -> None:
    settings, vectors = make(kind)
    index = TorchIndex(replace(settings, devices=devices, dtype=dtype))
    near = vectors[[0, 1_000, 1_150, 2_999]] + 0.01
    queries = np.concatenate([near, np.random.default_rng(1).standard_normal((46, _DIMENSION), np.float32)])
    for count in (1, 50):
        true = queries[:count].astype(np.float64) @ vectors.astype(np.float64).T
        for topk in (1, 5, 100):
            scores, rows = index.search(queries[:count], topk)
            assert scores.dtype == np.float32 and rows.dtype == np.int64
            # By score, not by number: rows that are equal may stand for each other.
            best = -np.sort(-true, axis=1)[:, :topk]
            tolerance = 1e-5 * max(1.0, float(abs(best).max()))
            np.testing.assert_allclose(np.take_along_axis(true, rows, axis=1), best, atol=tolerance)
            np.testing.assert_allclose(scores, best, atol=tolerance)
            assert all(len(set(found)) == topk for found in rows.tolist())


def test_candidates_grow_only_for_the_queries_that_need_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, vectors = make(crowded)
    index, asked = TorchIndex(replace(settings, dtype="bfloat16")), []
    score_again = TorchIndex._score_again

    def spy(self: TorchIndex, queries: Any, topk: int, count: int) -> Any:
        asked.append((len(queries), count))
        return score_again(self, queries, topk, count)

    monkeypatch.setattr(TorchIndex, "_score_again", spy)
    index.search(vectors[[5, 1_000, 17, 1_100]], 5)
    first = 5 + torch_index._SPARE
    assert asked == [(4, first), (2, 8 * first), (2, 64 * first)]


def test_thousands_of_equal_rows_end_the_growth(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_index, "_GROWTH", (1, 8))
    settings, vectors = make(doubled)
    scores, rows = TorchIndex(replace(settings, dtype="bfloat16")).search(vectors[:1], 5)
    np.testing.assert_allclose(scores, 1, atol=1e-5)
    assert len(set(rows[0].tolist())) == 5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("scale", [1e-25, 1e6])
def test_the_length_of_a_query_does_not_matter(make: Any, dtype: str, scale: float) -> None:
    settings, vectors = make(spread)
    index = TorchIndex(replace(settings, dtype=dtype))
    scores, rows = index.search(np.float32(scale) * vectors[:5], 7)
    once, same_rows = index.search(vectors[:5], 7)
    np.testing.assert_array_equal(rows, same_rows)
    np.testing.assert_allclose(scores, scale * once, rtol=1e-5)
    assert index.search(np.zeros((1, _DIMENSION), np.float32), 3)[0].tolist() == [[0.0] * 3]


@pytest.mark.parametrize("topk", [2_100, 2_990, 3_000])
def test_most_of_the_rows_may_be_asked_for(make: Any, topk: int) -> None:
    settings, vectors = make(spread)
    scores, _ = TorchIndex(replace(settings, dtype="bfloat16")).search(vectors[:5], topk)
    true = vectors[:5].astype(np.float64) @ vectors.astype(np.float64).T
    np.testing.assert_allclose(scores, -np.sort(-true, axis=1)[:, :topk], atol=1e-5)


def test_no_queries_find_nothing(make: Any) -> None:
    settings, vectors = make(spread)
    for dtype in _DTYPES:
        scores, rows = TorchIndex(replace(settings, dtype=dtype)).search(vectors[:0], 5)
        assert scores.shape == rows.shape == (0, 5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6, 1e-8])
def test_what_a_dtype_cannot_hold_is_refused(make: Any, dtype: str, value: float) -> None:
    settings, vectors = make(spread)
    changed = vectors.copy()
    if np.isfinite(value):
        changed *= value
    else:
        changed[1_501, 3] = value
    write_flat(changed, Path(settings.path))
    settings = replace(settings, dtype=dtype)
    if dtype == "bfloat16" and np.isfinite(value):
        assert TorchIndex(settings).search(vectors[:9], 1)[1][:, 0].tolist() == list(range(9))
        return
    with pytest.raises(ConfigError, match=rf"index.dtype={dtype}: cannot hold vectors .*set index.dtype=float32"):
        TorchIndex(settings)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", [spread, alike, unscaled])
def test_no_score_is_further_off_than_it_is_said_to_be(make: Any, kind: Any, dtype: str) -> None:
    settings, vectors = make(kind)
    index = TorchIndex(replace(settings, dtype=dtype))
    queries = torch.from_numpy(np.concatenate([vectors[:40], vectors.mean(axis=0, keepdims=True)]))
    shard = index._shards[0]
    rounded, rows = shard.best(queries, _ROWS)
    centred = torch.from_numpy(vectors).double() - index._centre.double()
    true = (queries.double() @ centred.T).gather(1, rows)
    for place in (0, _ROWS // 2, _ROWS - 1):
        off = (true - rounded)[:, place]
        margin = shard.most_below(queries, rounded[:, place])
        assert (off <= margin).all()
        # A margin that is far too large would make every search a long one.
        assert kind is unscaled or margin.max() < 12 * max(float(off.abs().max()), 1e-4)


# A little less than half a step of bfloat16 between 1 and 2: what rounding takes from each number.
_LOST = 0.99 * 2.0**-8
_ONES, _SIGNS = [1.0] * 8, [1.5, -1.5] * 4


@pytest.mark.parametrize(
    ("query", "row", "off"),
    [
        ([sign + _LOST for sign in _SIGNS], _ONES, 8 * _LOST),
        (_ONES, [sign + _LOST for sign in _SIGNS], 8 * _LOST),
        ([1.0, 1.0], [256.0, 1.0], 1.0),
        ([2.0**-13], [2.375 * 2.0**-11], 0.375 * 2.0**-24),
    ],
    ids=["query", "row", "product", "small product"],
)
def test_each_way_to_be_off_is_counted(query: list[float], row: list[float], off: float) -> None:
    rows, queries = np.array([row], np.float32), torch.tensor([query])
    dtype = torch.float16 if off < 1e-6 else torch.bfloat16
    shard = torch_shard.Shard(rows, 0, torch.device("cpu"), dtype, None)
    score = shard.best(queries, 1)[0][:, 0]
    assert np.dot(query, row) - float(score) == pytest.approx(off)
    assert off <= float(shard.most_below(queries, score)) < 1.4 * off


@pytest.mark.parametrize("columns", [1, 31, 32, 640, 1_000, 4_096, 4_099])
@pytest.mark.parametrize("count", [1, 7, 40])
@pytest.mark.parametrize("values", [5, 10**6], ids=["ties", "distinct"])
def test_top_is_topk(columns: int, count: int, values: int) -> None:
    random = torch.Generator().manual_seed(columns + count)
    scores = torch.randint(values, (9, columns), generator=random).float()
    scores[0, -1] = scores[1, 0] = values
    best, places = torch_shard.top(scores, count)
    wanted = scores.topk(min(count, columns), dim=1).values
    assert torch.equal(best.sort(dim=1, descending=True).values, wanted)
    assert torch.equal(scores.gather(1, places), best)
    assert all(len(set(row)) == len(row) for row in places.tolist())


def test_a_memmap_is_read_and_rows_that_are_not_there_are_said(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((400, _DIMENSION), np.float32)
    path = tmp_path / "emb_e5.memmap"
    vectors.tofile(path)
    for dtype in _DTYPES:
        settings = IndexSettings(path=str(path), devices=["cpu", "cpu"], dtype=dtype)
        scores, rows = TorchIndex(settings, dimension=_DIMENSION).search(vectors[:2], 403)
        assert sorted(rows[0]) == [-1, -1, -1, *range(400)]
        assert rows[:, -3:].tolist() == [[-1] * 3] * 2
        assert (np.diff(scores[:, :400], axis=1) <= 0).all()
    with pytest.raises(DataError, match="no whole number of float32 vectors of 65"):
        TorchIndex(IndexSettings(path=str(path)), dimension=65)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    index = faiss.index_factory(_DIMENSION, "IVF4,Flat", faiss.METRIC_INNER_PRODUCT)
    vectors = np.random.default_rng(0).standard_normal((200, _DIMENSION), np.float32)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "ivf.index"))
    with pytest.raises(DataError, match="is no flat inner-product index"):
        TorchIndex(IndexSettings(path=str(tmp_path / "ivf.index")))


def test_vectors_that_do_not_fit_are_refused_before_they_are_loaded(make: Any) -> None:
    needed = _ROWS * _DIMENSION * 2 / 1e9
    settings = replace(make(spread)[0], dtype="bfloat16", memory_gb=needed / 3.5)
    with pytest.raises(ConfigError, match="4 such devices would do"):
        TorchIndex(settings)
    TorchIndex(replace(settings, memory_gb=needed * 1.01))
