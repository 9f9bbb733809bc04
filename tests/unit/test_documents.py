"""The mapped corpus: offsets, fingerprint, and the two JSON readers that must agree."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research_plugin.document import Document
from research_plugin.errors import DataError
from research_plugin.retriever import corpus
from research_plugin.retriever.documents import DocumentStore

_LINES = [
    b'{"id": "00012", "contents": "Paris\\nParis is the capital of France.", "metadata": {"page": 3}}\n',
    b"\n",
    b'  {"id": 7, "text": "Beyonc\\u00e9 \xf0\x9f\x8e\xa4"}  \r\n',
    b" \t\n",
    b'{"contents": "lone \\ud800 surrogate", "id": "x"}',
]
_DOCUMENTS = [
    Document("00012", "Paris\nParis is the capital of France."),
    Document("7", "Beyonc\u00e9 \U0001f3a4"),
    Document("x", "lone \ufffd surrogate"),
]


def _write(folder: Path, *lines: bytes) -> Path:
    path = folder / "corpus.jsonl"
    path.write_bytes(b"".join(lines or _LINES))
    return path


def test_documents_come_in_the_order_asked_for(tmp_path: Path) -> None:
    store = DocumentStore(_write(tmp_path))
    assert len(store) == 3
    assert store.documents([2, 0, 1, 0]) == [_DOCUMENTS[row] for row in (2, 0, 1, 0)]
    assert store.documents([]) == []
    assert corpus.read_corpus(store.path) == _DOCUMENTS


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_outside_is_an_error_never_another_document(tmp_path: Path, row: int) -> None:
    with pytest.raises(IndexError, match="rows run from 0 to 2"):
        DocumentStore(_write(tmp_path)).documents([0, row])


def test_the_table_is_kept_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path)
    first = DocumentStore(path)
    monkeypatch.setattr("research_plugin.retriever.documents._scan", lambda *_: pytest.fail("scanned again"))
    second = DocumentStore(path)
    assert second.documents(range(3)) == _DOCUMENTS
    assert second.fingerprint() == first.fingerprint()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["corpus.jsonl", "corpus.jsonl.offsets"]


def test_a_changed_corpus_or_a_damaged_table_is_scanned_again(tmp_path: Path) -> None:
    path = _write(tmp_path)
    DocumentStore(path)
    table = tmp_path / "corpus.jsonl.offsets"
    table.write_bytes(table.read_bytes()[:-8])
    assert DocumentStore(path).documents([2]) == _DOCUMENTS[2:]
    table.write_bytes(b"not a table")
    assert DocumentStore(path).documents([2]) == _DOCUMENTS[2:]
    # Same length, another modification time.
    path.write_bytes(b"".join([_LINES[2], *_LINES[:2], *_LINES[3:]]))
    os.utime(path, ns=(1, 1))
    assert DocumentStore(path).documents([0, 1]) == [_DOCUMENTS[1], _DOCUMENTS[0]]


def test_a_table_that_cannot_be_written_stays_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = DocumentStore(_write(tmp_path), tmp_path / "missing" / "table")
    assert store.documents([1]) == _DOCUMENTS[1:2]
    assert "cannot be written" in caplog.text


def test_the_table_goes_where_it_is_told(tmp_path: Path) -> None:
    DocumentStore(_write(tmp_path), tmp_path / "table")
    assert (tmp_path / "table").exists()
    assert not (tmp_path / "corpus.jsonl.offsets").exists()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*_LINES[:3], b'{"id": "8", "contents": "cut of'], "line 4: .*half-downloaded"),
        ([_LINES[0], b'{"id": "8"}\n'], 'line 2: "contents"'),
        ([_LINES[0], b"\n", b"[1]\n"], "line 3: expected a JSON object"),
        ([b'{"id": 1.5, "contents": "x"}\n'], 'line 1: "id" must be a string or an integer'),
        ([b'{"id": "1", "contents": "\xff"}\n'], "line 1: not valid JSON in UTF-8"),
        ([b"\n", b"  \n"], "no documents"),
    ],
    ids=["cut-off", "no-text", "list", "id-is-float", "not-utf-8", "blank"],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: list[bytes], message: str) -> None:
    path = _write(tmp_path, *lines)
    for read in (DocumentStore, corpus.read_corpus):
        with pytest.raises(DataError, match=message):
            read(path)
    assert not (tmp_path / "corpus.jsonl.offsets").exists()


def test_a_missing_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.jsonl: cannot be read"):
        DocumentStore(tmp_path / "gone.jsonl")


def test_the_fingerprint_tells_order_from_content_and_ignores_layout(tmp_path: Path) -> None:
    def fingerprint(*lines: bytes) -> dict[str, object]:
        return DocumentStore(_write(tmp_path, *lines), tmp_path / "nowhere" / "table").fingerprint()

    one, two = b'{"id": "1", "contents": "a"}\n', b'{"id": "2", "contents": "b"}\n'
    base = fingerprint(one, two)
    assert base["rows"] == 2
    assert fingerprint(b'{ "title": 0, "contents": "a", "id": 1}\n', b"\n", two) == base
    swapped = fingerprint(two, one)
    assert swapped["documents"] == base["documents"]
    assert swapped["order"] != base["order"]
    # The bytes of ids and texts are the same here, their borders are not.
    assert fingerprint(b'{"id": "1a", "contents": ""}\n', two)["documents"] != base["documents"]


_values = st.one_of(
    st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.text(), max_size=2), st.just("\ud800")
)
_rows = st.dictionaries(st.sampled_from(["id", "contents", "text", "other"]), _values)


@settings(max_examples=300, deadline=None)
@given(row=st.one_of(_rows, _values), ascii_only=st.booleans(), damage=st.binary(max_size=3))
def test_orjson_and_the_standard_library_read_alike(row: object, ascii_only: bool, damage: bytes) -> None:
    pytest.importorskip("orjson")
    line = json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + damage

    def outcome(parse: object) -> object:
        try:
            return parse(line, Path("c"), 1)  # type: ignore[operator]
        except DataError as error:
            return str(error)

    assert outcome(corpus.line_parser()) == outcome(corpus._parse)
