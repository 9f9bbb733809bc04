"""Parts of ``research-plugin index build`` that need neither FAISS nor an encoder: progress file, corpus files."""

from __future__ import annotations

import base64
import zipfile
from pathlib import Path

import numpy as np
import pytest

from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.build import wiki18
from research_plugin.retriever.build.command import _copy_beginning
from research_plugin.retriever.build.progress import Progress
from research_plugin.retriever.build.recall import Effort, choose
from research_plugin.retriever.manifest import Manifest


def facts(**changes: object) -> Manifest:
    """A manifest; ``changes`` go to its corpus or encoder."""
    probe = base64.b64encode(np.eye(2, 4, dtype="<f2").tobytes()).decode()
    settings = {"normalize": True, "query_instruction": "", "passage_instruction": "", "passage_max_length": 180}
    encoder = {"model": "m", "pooling": "mean", **settings, "probe": probe}
    corpus = {"rows": 10, "documents": "d", "order": "o"}
    for name, value in changes.items():
        (corpus if name in corpus else encoder)[name] = value  # type: ignore[assignment]
    return Manifest(10, 4, "ip", "Flat", corpus, encoder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "emb_e5.progress"


def test_finished_blocks_are_remembered(path: Path) -> None:
    with Progress(path, facts(), 4) as progress:
        assert progress.done == set()
        progress.finish(1)
        progress.finish(0)
    with Progress(path, facts(), 4) as progress:
        assert progress.done == {0, 1}


@pytest.mark.parametrize(("tail", "done"), [(b"12", {1}), (b"12\n1", {1, 12}), (b"", {1})])
def test_torn_last_line_does_not_count(path: Path, tail: bytes, done: set[int]) -> None:
    with Progress(path, facts(), 4) as progress:
        progress.finish(1)
    with path.open("ab") as file:
        file.write(tail)
    with Progress(path, facts(), 4) as progress:
        assert progress.done == done
        progress.finish(7)
    with Progress(path, facts(), 4) as progress:
        assert progress.done == {*done, 7}


def test_torn_first_line_starts_anew(path: Path) -> None:
    path.write_bytes(b'{"block_ro')
    with Progress(path, facts(), 4) as progress:
        assert progress.done == set()


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"rows": 9}, "built from 10 documents, this corpus has 9"),
        ({"documents": "e"}, "ids or texts differ"),
        ({"order": "p"}, "another order"),
        ({"pooling": "cls"}, "encoder.pooling='cls'"),
        ({"passage_max_length": 64}, "encoder.passage_max_length=64"),
        ({"probe": base64.b64encode(np.ones((2, 4), "<f2").tobytes()).decode()}, "gives other vectors"),
    ],
)
def test_another_job_is_refused_with_what_differs(path: Path, now: dict[str, object], said: str) -> None:
    with Progress(path, facts(), 4):
        pass
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=said):
        Progress(path, facts(**now), 4)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match=r"--block 5: it was begun with 4"):
        Progress(path, facts(), 5)


def test_two_builds_at_once_are_refused(path: Path) -> None:
    with Progress(path, facts(), 4), pytest.raises(ConfigError, match="another process"):
        Progress(path, facts(), 4)
    Progress(path, facts(), 4).close()


@pytest.mark.parametrize("content", [b"hello\n", b"[]\n", b"{}\n", b'{"block_rows": 4}\nx\n'])
def test_a_file_that_is_no_progress_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a progress file"):
        Progress(path, facts(), 4)
    assert path.read_bytes() == content


def test_beginning_of_a_corpus_is_copied_once(tmp_path: Path) -> None:
    corpus, copy = tmp_path / "c.jsonl", tmp_path / "c_first_2.jsonl"
    corpus.write_bytes(b'{"id": 0}\n\n{"id": 1}\n{"id": 2}\n')
    _copy_beginning(corpus, 2, copy)
    assert copy.read_bytes() == b'{"id": 0}\n{"id": 1}\n'
    before = copy.stat().st_mtime_ns
    _copy_beginning(corpus, 2, copy)
    assert copy.stat().st_mtime_ns == before
    with pytest.raises(DataError, match="cannot be copied"):
        _copy_beginning(tmp_path / "missing.jsonl", 2, copy)


def test_cheapest_effort_that_finds_enough_is_chosen() -> None:
    efforts = [Effort(1, 0.4, 0.1), Effort(4, 0.96, 0.2), Effort(16, 0.99, 0.9)]
    assert choose(efforts).value == 4
    assert choose(efforts[:1]).value == 1
    assert choose([Effort(1, 0.4, 0.1), Effort(4, 0.9, 0.2), Effort(16, 0.9, 0.9)]).value == 4


def zipped(path: Path, name: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("readme.txt", "no")
        archive.writestr(name, '{"id": "0", "contents": "a"}\n')


@pytest.mark.parametrize("place", ["wiki18_100w.zip", "retrieval-corpus/wiki18_100w.zip"])
def test_wiki18_is_unpacked_from_its_archive(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    zipped(tmp_path / place, "retrieval-corpus/wiki18_100w.jsonl")
    wiki18.fetch(tmp_path)
    assert (tmp_path / wiki18.NAME).read_text() == '{"id": "0", "contents": "a"}\n'
    assert not list(tmp_path.glob("*.part"))


def test_bad_archive_of_wiki18_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "wiki18_100w.zip"
    zipped(archive, "other.jsonl")
    with pytest.raises(DataError, match=r"holds readme.txt, other.jsonl, but no wiki18_100w.jsonl"):
        wiki18.fetch(tmp_path)
    zipped(archive, wiki18.NAME)
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(DataError, match="half-downloaded"):
        wiki18.fetch(tmp_path)
    assert not (tmp_path / wiki18.NAME).exists()


def test_no_hub_says_what_to_fetch_and_where_to_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(DataError) as failure:
        wiki18.fetch(tmp_path / "new")
    for part in ("RUC-NLPIR/FlashRAG_datasets", "retrieval-corpus/wiki18_100w.zip", "5.1 GB", str(tmp_path / "new")):
        assert part in str(failure.value)
