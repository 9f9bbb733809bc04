"""``research-plugin serve`` with recipes, as a real process; and a training run that expects one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from dense_world import PASSAGES, DenseWorld, model_path
from passages import make_passages

from research_plugin.errors import ConfigError, SearchError
from research_plugin.retriever.process import RetrieverProcess
from research_plugin.search.check import check_retriever_blocking
from research_plugin.search.expected import compare_with_recipe
from research_plugin.search.settings import SearchConfig

FLASHRAG = """
gpu_id: "0"
retrieval_method: bm25
bm25_backend: bm25s
index_path: /indexes/bm25
corpus_path: {corpus}
retrieval_topk: 2
save_retrieval_cache: False
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "towns.jsonl"
    rows = [{"id": str(i), "contents": f"Town {i}\nTown {i} lies in valley {i % 7}."} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tiny() -> Iterator[RetrieverProcess]:
    with RetrieverProcess(timeout=60, arguments=["--recipe", "tiny"]) as server:
        yield server


def health(url: str) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.get(f"{url}/health", trust_env=False).json()
    return answer


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "research_plugin.cli", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_serve_a_recipe_by_name(tiny: RetrieverProcess) -> None:
    expected = {"status": "ready", "engine": "bm25", "size": 1570, "corpus": "corpus.jsonl"}
    assert expected.items() <= health(tiny.url).items()
    answer = httpx.post(f"{tiny.url}/search", json={"query": "headquarters of Dalvak"}, trust_env=False).json()
    assert "Dalvak" in answer[0]["contents"]


def test_serve_a_flashrag_file_with_overrides_on_both_sides_of_the_options(corpus: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "flashrag.yaml"
    recipe.write_text(FLASHRAG.format(corpus=corpus))
    arguments = ["server.max_topk=9", "--recipe", str(recipe), "retrieval_topk=3", "server.max_queries=2"]
    with RetrieverProcess(timeout=60, arguments=arguments, log=tmp_path / "log") as server:
        assert {"engine": "bm25", "size": 40, "topk": 3, "max_topk": 9}.items() <= health(server.url).items()
        answer = httpx.post(f"{server.url}/search", json={"query": "valley"}, trust_env=False).json()
        assert len(answer) == 3
        body = {"query": ["a", "b", "c"]}
        refusal = httpx.post(f"{server.url}/batch_search", json=body, trust_env=False)
        assert refusal.is_client_error
        assert "2" in refusal.text
    log = (tmp_path / "log").read_text()
    assert "of no meaning to this server: gpu_id, bm25_backend, save_retrieval_cache" in log
    assert "memory, at least: BM25 index" in log


DENSE = """
gpu_id: "0"
retrieval_method: minilm
retrieval_model_path: {model}
index_path: {index}
corpus_path: {corpus}
retrieval_topk: 2
retrieval_query_max_length: 64
retrieval_pooling_method: mean
retrieval_use_fp16: False
instruction: ""
"""


def test_serve_a_flashrag_file_of_a_dense_retriever(dense_world: DenseWorld, tmp_path: Path) -> None:
    recipe = tmp_path / "dense.yaml"
    text = DENSE.format(model=model_path(), index=dense_world.index, corpus=dense_world.corpus)
    recipe.write_text(text)
    passage = next(make_passages(PASSAGES))
    arguments = ["--recipe", str(recipe), "encoder.passage_max_length=64"]
    with RetrieverProcess(timeout=120, arguments=arguments) as server:
        expected = {"engine": "dense", "size": PASSAGES, "topk": 2, "model": "model", "corpus": "corpus.jsonl"}
        assert expected.items() <= health(server.url).items()
        body = {"query": passage.question}
        answer = httpx.post(f"{server.url}/search", json=body, trust_env=False, timeout=30).json()
        assert len(answer) == 2
        assert answer[0]["id"] == passage.id


def test_print_config_shows_what_a_flag_sets() -> None:
    done = serve("--recipe", "tiny", "--port", "0", "--print-config", "topk=3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {"engine: bm25", "topk: 3", "  port: 0"} <= set(lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "tinny"], "'tinny': No such file or directory; give a YAML file, or one of bm25, tiny, web"),
        (["--recipe", "tiny", "server.prot=1"], "unknown key server.prot (did you mean server.port?)"),
        (["--recipe", "tiny", "--port", "x"], "server.port: Value 'x'"),
        ([], "corpus: not set; engine bm25 needs it"),
        (["--recipe", "tiny", "--token-env", "NO_SUCH_TOKEN"], "server.token_env: NO_SUCH_TOKEN"),
        (
            ["--recipe", "tiny", "--ready-file", "/nowhere/ready"],
            "--ready-file /nowhere/ready: no such folder: /nowhere",
        ),
        (["--recipe", "tiny", "--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_serve_ends_with_a_clear_message(arguments: list[str], message: str) -> None:
    done = serve(*arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_expected_recipe_that_is_served_passes(tiny: RetrieverProcess) -> None:
    settings = SearchConfig(url=tiny.url, topk=2, expects="tiny")
    assert [report["note"] for report in check_retriever_blocking(settings).values()] == [""]


def test_every_planted_difference_stops_the_run(tiny: RetrieverProcess, corpus: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"engine: bm25\ncorpus: {corpus}\ncorpus_rows: 40\ntopk: 4\n")
    with pytest.raises(ConfigError) as caught:
        check_retriever_blocking(SearchConfig(url=tiny.url, topk=2, expects=str(recipe)))
    for difference in (
        f"search.expects={recipe}: {tiny.url}: corpus is 'corpus.jsonl', expected 'towns.jsonl'",
        f"{tiny.url}: topk is None, expected 4",
        f"{tiny.url}: size is 1570, expected 40",
        f"research-plugin serve --recipe {recipe}",
        "search.expects=null",
    ):
        assert difference in str(caught.value)
    assert "engine" not in str(caught.value)


def test_one_wrong_replica_of_two_is_found(tiny: RetrieverProcess, corpus: Path) -> None:
    with RetrieverProcess(corpus, timeout=60) as other, pytest.raises(ConfigError) as caught:
        check_retriever_blocking(SearchConfig(urls=[tiny.url, other.url], topk=2, expects="tiny"))
    assert f"{other.url}: size is 40, expected 1570" in str(caught.value)
    assert f"{tiny.url}:" not in str(caught.value)


def test_an_unknown_expected_recipe_is_named(tiny: RetrieverProcess) -> None:
    with pytest.raises(ConfigError, match=r"search\.expects=tinny: retriever recipe 'tinny': No such file"):
        check_retriever_blocking(SearchConfig(url=tiny.url, topk=2, expects="tinny"))


def test_nothing_is_compared_unless_a_recipe_is_named(tiny: RetrieverProcess) -> None:
    assert check_retriever_blocking(SearchConfig(url=tiny.url, topk=2))[tiny.url]["note"] == ""


@contextmanager
def published_server(status: int, body: bytes) -> Iterator[str]:
    """Answers every GET with ``status`` and ``body``, as servers of another make do on /health."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body"), [(404, b"Not Found"), (200, b'{"status": "healthy"}'), (200, b"[1]"), (500, b"")]
)
async def test_a_published_server_is_no_error_but_worth_a_line(status: int, body: bytes) -> None:
    with published_server(status, body) as url:
        notes = await compare_with_recipe(SearchConfig(url=url, expects="tiny"))
    assert notes == {url: f"{url} does not say what it serves, so it was not compared with search.expects=tiny"}


def test_a_server_that_is_down_is_a_search_error_first() -> None:
    with pytest.raises(SearchError, match="ConnectError"):
        check_retriever_blocking(SearchConfig(url="http://127.0.0.1:9", expects="tiny"))
