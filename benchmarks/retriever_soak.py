"""Minutes of mixed load on a retriever server: does it answer everything rightly, and does its memory stay?

    python benchmarks/retriever_soak.py [--minutes 10] [--url http://HOST:PORT] [--json FILE]

Without ``--url`` a BM25 server over a made-up corpus is started. A few clients send what a training run, its mistakes
and its network send: good requests on all routes, from one query to hundreds; bad ones of every kind; bodies that come
in pieces; clients that leave in the middle of a request or before their answer; answers read slowly.

Memory is the server's own figure (process_resident_memory_bytes of /metrics). The first tenth, at least 30 s, is left
out of the growth: caches and allocators fill up then. Ends with status 1 if any answer was not the right one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WORDS = [first + last for first in ("ba", "ke", "li", "mo", "nu", "ra", "si") for last in ("dan", "fel", "gor", "hin")]
DOCUMENTS = 5_000
CLIENTS = 4
PAUSE_S = 0.004
SAMPLE_S = 5.0

KINDS = {"good": 70, "bad": 15, "leaves": 6, "pieces": 3, "half": 3, "slow_reader": 3}
"""What a client does next, and how often of 100."""


def good(chosen: random.Random) -> tuple[str, Any, int]:
    """A request and the status it must get."""

    def query() -> str:
        if chosen.random() < 0.2:
            return " ".join(chosen.choices(WORDS[:10], k=1))  # asked again and again
        return " ".join(chosen.choices(WORDS, k=chosen.randint(2, 8))) + chosen.choice(
            ["", " \u6771\u4eac", "?", "\x00"]
        )

    many = chosen.choice([0, 1, 1, 2, 5, 5, 16, 64, 300])
    queries = [query() for _ in range(many)]
    topk = chosen.choice([1, 3, 5, 5, 10, 50])
    scores = chosen.random() < 0.5
    return chosen.choice(
        [
            ("/search", {"query": query(), "top_n": topk, "return_score": scores}, 200),
            ("/search", {"query": query()}, 200),
            ("/batch_search", {"query": queries, "top_n": topk, "return_score": scores}, 200),
            ("/batch_search", {"query": ["", *queries[:3]]}, 200),
            ("/retrieve", {"queries": queries, "topk": topk, "return_scores": scores}, 200),
            ("/queries", {"queries": queries, "k": topk}, 200),
        ]
    )


def bad(chosen: random.Random) -> tuple[str, Any, int]:
    """A request that must be refused, and with which status. A body of bytes is sent as it is."""
    return chosen.choice(
        [
            ("/search", b"not json", 400),
            ("/search", b'{"query": "\xff"}', 400),
            ("/search", b"[" * 50_000, 400),
            ("/search", b'{"query": "a\\ud800"}', 400),
            ("/search", {"query": " "}, 400),
            ("/search", {"query": ["a"]}, 400),
            ("/search", {"query": "x" * 40_000}, 400),
            ("/search", {"query": "a", "top_n": chosen.choice([0, -1, 101, 10**9, 2**63, 2.5, "3", None])}, 400),
            ("/batch_search", {"query": ["a"] * 1500}, 413),
            ("/batch_search", {"query": "a"}, 400),
            ("/retrieve", {"queries": [1]}, 400),
            ("/queries", {}, 400),
            ("/queries", b'{"queries": ["' + b"x" * 9_000_000 + b'"]}', 413),
            ("/nowhere", {}, 404),
        ]
    )


class Soak:
    """The clients, what they saw, and the server's memory over time."""

    def __init__(self, url: str, seconds: float) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.end = time.monotonic() + seconds
        self.answers: Counter[str] = Counter()
        self.faults: list[str] = []
        self.memory_mb: list[tuple[float, float]] = []

    async def run(self) -> None:
        """Drive the server until the time is up."""
        from tqdm import tqdm

        clients = [asyncio.create_task(self._client(random.Random(number))) for number in range(CLIENTS)]
        started = time.monotonic()
        with tqdm(total=round(self.end - started), unit="s", desc="soak", mininterval=SAMPLE_S) as bar:
            while (now := time.monotonic()) < self.end:
                self.memory_mb.append((now - started, await self._memory()))
                bar.update(int(now - started) - bar.n)
                await asyncio.sleep(min(SAMPLE_S, max(0.0, self.end - now)))
        await asyncio.gather(*clients)
        self.memory_mb.append((time.monotonic() - started, await self._memory()))

    async def _client(self, chosen: random.Random) -> None:
        while time.monotonic() < self.end:
            kind = chosen.choices(list(KINDS), list(KINDS.values()))[0]
            path, content, status = (bad if kind == "bad" else good)(chosen)
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            try:
                answer = await asyncio.wait_for(self._request(kind, "POST", path, body), 60)
                got = answer[9:12].decode()
            except (OSError, asyncio.TimeoutError) as error:
                got = type(error).__name__
            expected = "" if kind in ("leaves", "half") else str(status)
            self.answers[f"{kind} {got}".rstrip()] += 1
            if got != expected and len(self.faults) < 20:
                self.faults.append(f"{kind} {path} {body[:80]!r}: {got} instead of {expected}")
            await asyncio.sleep(PAUSE_S)

    async def _request(self, kind: str, method: str, path: str, body: bytes) -> bytes:
        """Return the whole answer; nothing if this kind of client leaves before."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        head = f"{method} {path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            if kind == "half":
                writer.write((head.encode() + body)[: (len(head) + len(body)) // 2])
            elif kind == "pieces":
                for piece in (head.encode(), body[:10], body[10:]):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.02)
            else:
                writer.write(head.encode() + body)
            await writer.drain()
            if kind in ("half", "leaves"):
                return b""
            if kind == "slow_reader":
                await asyncio.sleep(0.1)
            return await reader.read()
        finally:
            writer.close()

    async def _memory(self) -> float:
        page = await self._request("good", "GET", "/metrics", b"")
        found = re.search(rb"^process_resident_memory_bytes (\S+)", page, re.MULTILINE)
        return float(found[1]) / 2**20 if found else float("nan")


def report(soak: Soak, minutes: float) -> dict[str, Any]:
    """What the run showed, as numbers."""
    settled = [(second, memory) for second, memory in soak.memory_mb if second >= max(30.0, 6 * minutes)]
    start, end = (settled or soak.memory_mb)[0], soak.memory_mb[-1]
    return {
        "minutes": minutes,
        "requests": sum(soak.answers.values()),
        "answers": dict(sorted(soak.answers.items())),
        "wrong_answers": soak.faults,
        "memory_mb": {"first": soak.memory_mb[0][1], "settled": start[1], "end": end[1]},
        "growth_mb": end[1] - start[1],
        "memory_mb_over_time": [(round(second), round(memory, 1)) for second, memory in soak.memory_mb],
    }


def make_corpus(path: Path) -> None:
    """Write short passages of made-up words."""
    chosen = random.Random(0)
    with path.open("w", encoding="utf-8") as lines:
        for number in range(DOCUMENTS):
            text = f"Title {number}\n{' '.join(chosen.choices(WORDS, k=60))} \u6771\u4eac"
            lines.write(json.dumps({"id": str(number), "contents": text}) + "\n")


def main() -> None:
    """Soak the server, print what it showed and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--url", help="a running server (100 documents or more, limits as shipped)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        if arguments.url:
            soak = Soak(arguments.url, 60 * arguments.minutes)
            asyncio.run(soak.run())
        else:
            from research_plugin.retriever.process import RetrieverProcess

            corpus = Path(folder) / "corpus.jsonl"
            make_corpus(corpus)
            with RetrieverProcess(corpus) as server:
                soak = Soak(server.url, 60 * arguments.minutes)
                asyncio.run(soak.run())
    numbers = report(soak, arguments.minutes)
    for answer, count in numbers["answers"].items():
        print(f"  {answer:<30} {count:>9}")
    print(
        "  memory: {first:.1f} MB at the start, {settled:.1f} settled, {end:.1f} at the end".format(
            **numbers["memory_mb"]
        )
    )
    for fault in numbers["wrong_answers"]:
        print(f"  WRONG: {fault}")
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(1 if numbers["wrong_answers"] else 0)


if __name__ == "__main__":
    main()
