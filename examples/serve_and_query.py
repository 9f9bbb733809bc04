"""Serve a four-document corpus and query it, as a rollout would.

Shows: the corpus format, the server as a child process, the async client with its batching and its cache, and the
same server over plain HTTP (another dialect, no client needed). Takes about two seconds:

    python examples/serve_and_query.py
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import urllib.request
from pathlib import Path

from research_plugin.retriever.process import RetrieverProcess
from research_plugin.search.client import SearchClient
from research_plugin.search.settings import SearchConfig

CORPUS = [
    {"id": "0", "contents": "Ada Lovelace\nAda Lovelace wrote the first program for the Analytical Engine."},
    {"id": "1", "contents": "Charles Babbage\nCharles Babbage designed the Analytical Engine."},
    {"id": "2", "contents": "Grace Hopper\nGrace Hopper wrote the first compiler."},
    {"id": "3", "contents": "Paris\nParis is the capital of France."},
]


async def ask(url: str) -> None:
    client = SearchClient(SearchConfig(url=url, topk=2))
    # Three rollouts search in the same tick; two of them ask the same: one request with two queries leaves.
    questions = ["Who designed the Analytical Engine?", "first compiler", "first compiler"]
    for question, reply in zip(questions, await asyncio.gather(*map(client.search, questions)), strict=True):
        print(f"{question}\n  -> " + " | ".join(document.contents.split("\n")[0] for document in reply.documents))
    again = await client.search("first compiler")
    print(f"asked again: cached={again.cached}; {client.stats}")
    await client.aclose()


def ask_plainly(url: str) -> None:
    body = json.dumps({"queries": ["capital of France"], "topk": 1, "return_scores": True}).encode()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(urllib.request.Request(f"{url}/retrieve", body), timeout=10) as answer:
        print(f"POST /retrieve: {answer.read().decode()}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        corpus.write_text("".join(json.dumps(row) + "\n" for row in CORPUS), encoding="utf-8")
        with RetrieverProcess(corpus) as server:
            asyncio.run(ask(server.url))
            ask_plainly(server.url)


if __name__ == "__main__":
    main()
