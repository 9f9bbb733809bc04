"""The on-disk cache: same answers, shared between clients, never in the way; and the in-process engine."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from research_plugin.document import Document
from research_plugin.errors import SearchError
from research_plugin.search.cache import DiskCache
from research_plugin.search.client import SearchClient, SearchReply
from research_plugin.search.settings import SearchConfig
from research_plugin.search.transport import SearchStats

ROOT = Path(__file__).parents[2]


class Counting:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def fetch(self, queries: list[str], topk: int) -> list[list[Document]]:
        self.asked += queries
        return [[Document("00012", f"Beyoncé {query}", 1.5)] if query != "none" else [] for query in queries]

    async def aclose(self) -> None:
        pass


async def ask(transport: Counting, queries: list[str], folder: Path | None, **changes: object) -> list[SearchReply]:
    settings = SearchConfig(url="http://a:1", cache_dir=str(folder) if folder else None, **changes)  # type: ignore[arg-type]
    client = SearchClient(settings, lambda settings, stats: transport)
    replies = await asyncio.gather(*(client.search(query) for query in queries))
    await client.aclose()
    return list(replies)


async def test_disk_cache_answers_the_next_run_the_same(tmp_path: Path) -> None:
    transport = Counting()
    queries = ["a", "none", "\x00", "東京"]
    without = await ask(transport, queries, None)
    first = await ask(transport, queries, tmp_path / "new" / "folder")
    second = await ask(transport, [*queries, "b"], tmp_path / "new" / "folder")
    expected = [reply.documents for reply in without]
    assert [reply.documents for reply in first] == expected
    assert [reply.documents for reply in second][:4] == expected
    assert [reply.cached for reply in first] == [False] * 4
    assert [reply.cached for reply in second] == [True, True, True, True, False]
    assert transport.asked == queries + queries + ["b"]


@pytest.mark.parametrize("changes", [{"topk": 3}, {"api": "retrieve"}], ids=["topk", "api"])
async def test_disk_cache_keeps_other_settings_apart(tmp_path: Path, changes: dict[str, object]) -> None:
    transport = Counting()
    await ask(transport, ["a"], tmp_path)
    await ask(transport, ["a"], tmp_path, **changes)
    assert transport.asked == ["a", "a"]


@pytest.mark.parametrize("damage", ["garbage", "folder"])
async def test_disk_cache_that_is_broken_never_costs_an_answer(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    if damage == "garbage":
        (tmp_path / "search.sqlite3").write_bytes(b"no database" * 1000)
    else:
        (tmp_path / "search.sqlite3").mkdir()
    with caplog.at_level(logging.WARNING):
        replies = await ask(Counting(), ["a", "b"], tmp_path)
    assert [reply.documents[0].contents for reply in replies] == ["Beyoncé a", "Beyoncé b"]
    assert len([record for record in caplog.records if "is off for this process" in record.message]) == 1


def test_disk_cache_survives_several_writing_processes(tmp_path: Path) -> None:
    program = (
        "import sys; from research_plugin.document import Document\n"
        "from research_plugin.search.cache import DiskCache\n"
        "cache = DiskCache(sys.argv[1], 'scope')\n"
        "for n in range(100): cache.put_many({f'{sys.argv[2]} {n}': (Document(str(n), 'text'),)})\n"
        "cache.close()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(n)], cwd=ROOT, stderr=subprocess.PIPE) for n in range(3)]
    for process in processes:
        _, complaints = process.communicate(timeout=60)
        assert (process.returncode, complaints) == (0, b"")
    cache = DiskCache(str(tmp_path), "scope")
    found = cache.get_many(f"{process} {n}" for process in range(3) for n in range(100))
    cache.close()
    assert len(found) == 300
    assert found["2 99"] == (Document("99", "text"),)


def write_corpus(path: Path, contents: list[str]) -> str:
    rows = [{"id": str(number), "contents": text} for number, text in enumerate(contents)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


async def test_in_process_engine(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", ["Paris is in France", "Berlin is in Germany"])
    client = SearchClient(SearchConfig(engine="in_process", corpus=corpus, topk=5))
    replies = await asyncio.gather(*(client.search(query) for query in ("Paris", "Germany", "zebra")))
    assert [[document.id for document in reply.documents] for reply in replies] == [["0"], ["1"], []]
    assert client.stats == SearchStats(queries=3, requests=1)
    await client.aclose()


async def test_in_process_bad_corpus_is_a_search_error(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": 1')
    client = SearchClient(SearchConfig(engine="in_process", corpus=str(tmp_path / "c.jsonl")))
    with pytest.raises(SearchError, match=r"c\.jsonl, line 1"):
        await client.search("q")
    await client.aclose()


async def test_in_process_disk_cache_notices_a_changed_corpus(tmp_path: Path) -> None:
    for word, expected in (("Paris", "0"), ("Paris is long", "0"), ("nothing", None)):
        corpus = write_corpus(tmp_path / "c.jsonl", [word])
        settings = SearchConfig(engine="in_process", corpus=corpus, cache_dir=str(tmp_path))
        client = SearchClient(settings)
        found = [document.contents for document in (await client.search("Paris")).documents]
        assert found == ([word] if expected else [])
        await client.aclose()
