"""The doctor against the real stack: veRL in its child process, a model's folder, a retriever over HTTP."""

from __future__ import annotations

import copy
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from composing import CUSTOM, ROOT, clean_environment

from research_plugin.doctor.command import check_run, diagnose
from research_plugin.doctor.dry_run import DryRun, dry_run, judge_dry_run
from research_plugin.doctor.model import check_model
from research_plugin.doctor.retriever import check_search
from research_plugin.finding import FAIL, OK, WARNING, Finding
from research_plugin.plugin import data_file
from research_plugin.search.settings import SearchConfig

pytestmark = pytest.mark.verl
pytest.importorskip("verl")

TINY = ["+recipe=research_tiny"]
# Each of these composes; veRL refuses the first three at different points of a run, the last only when it scores.
REFUSED = [
    "actor_rollout_ref.actor.loss_agg_mode=mean",
    "+actor_rollout_ref.rollout.agent.timeout=5",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=false",
    "+reward.custom_reward_function.reward_kwargs.bonus=1",
]


def faults(findings: Any) -> list[tuple[str, str, str]]:
    return [(found.check, found.status, found.text) for found in findings if found.status != OK]


def doctor(cwd: Path, *arguments: str, **env: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "research_plugin.cli", "doctor", *arguments],
        cwd=cwd, env={**clean_environment(), **env}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout.splitlines()


def test_a_run_without_a_fault(tmp_path: Path) -> None:
    folder = tmp_path / "own_recipe"
    shutil.copytree(ROOT / "examples" / "own_recipe", folder, ignore=shutil.ignore_patterns("runs", "outputs"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, env=clean_environment(), check=True, timeout=60)
    before = sorted(folder.rglob("*"))
    code, lines = doctor(folder, "--config-dir", ".", "+recipe=my_search")
    assert (code, lines[-1]) == (0, f"0 failed, 0 warnings, {len(lines) - 2} ok")
    checks = [line.split()[1] for line in lines[:-2]]
    expected = "plugin versions wiring compose veRL agent reward settings rows model method retriever"
    assert checks == expected.split()
    assert [line for line in lines if "compute_score of my_reward.py scores a row: " in line]
    assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts] == before


def test_a_plugin_that_verl_does_not_load(tmp_path: Path) -> None:
    # Case 42: stock veRL takes the recipe's name for a plain value and trains with its own defaults.
    code, lines = doctor(tmp_path, *TINY, VERL_USE_EXTERNAL_PLUGINS="none")
    assert code == 1
    assert [line.split()[:2] for line in lines if line.startswith(FAIL)] == [[FAIL, "plugin"], [FAIL, "wiring"]]


def test_a_misspelt_key() -> None:
    # Cases 41 and 43: the allowed names are listed, and a value that may be a secret is not shown.
    ((check, status, text),) = faults(diagnose([*TINY, f"{CUSTOM}.search.token_envv=s3cret"]))
    assert (check, status) == ("compose", FAIL)
    assert f"Allowed under {CUSTOM}.search: api, backoff" in text
    assert "token_env, topk, url, urls" in text
    assert "s3cret" not in text


@pytest.fixture(scope="module")
def refused() -> DryRun:
    return dry_run([*TINY, *REFUSED])


def test_what_verl_refuses_later(refused: DryRun) -> None:
    assert refused.error == ""
    found = faults(judge_dry_run(refused, TINY))
    assert {status for _, status, _ in found} == {FAIL}
    assert [check for check, _, _ in found] == ["veRL", "veRL", "veRL", "code"]
    texts = [text for _, _, text in found]
    assert "Invalid loss_agg_mode: mean" in texts[0]
    assert texts[1].startswith("actor_rollout_ref.rollout: ")
    assert "timeout" in texts[1]
    assert "log_prob_use_dynamic_bsz=False differ" in texts[2]
    assert texts[3].startswith("the reward function fails: ConfigError: unknown reward option(s) ['bonus']")


def changed(config: Any, **changes: Any) -> dict[str, Any]:
    """A copy with some keys set; "__" stands for a dot."""
    config = copy.deepcopy(config)
    for key, value in changes.items():
        *path, last = key.split("__")
        node = config
        for name in path:
            node = node[name]
        node[last] = value
    return config


TRAIN = data_file("tiny/train.parquet")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"trainer__nnodes": 2}, [("settings", "search.url=embedded is this machine only, but trainer.nnodes=2")]),
        (
            {"data__max_response_length": 9000},
            [
                ("settings", "= 9064 exceeds actor_rollout_ref.rollout.max_model_len=384"),
                ("settings", "is below one full sequence of 9064 tokens"),
                ("settings", "is below one full sequence of 9064 tokens"),
                ("model", "= 9064 exceeds the model's max_position_embeddings="),
            ],
        ),
        ({"data__train_batch_size": 17}, [("settings", "data.train_batch_size=17 is no multiple of ")]),
        ({"data__train_files": "/gone.parquet"}, [("settings", "data.train_files=/gone.parquet does not exist")]),
        (
            {"data__val_files": TRAIN},
            [
                ("settings", f"both hold {TRAIN}"),
                ("rows", "validation questions are training questions, too: validation measures memory"),
            ],
        ),
        ({"actor_rollout_ref__model__path": "/gone/model"}, [("settings", "model.path=/gone/model is no folder")]),
        ({"trainer__nnodes": "two"}, [("settings", "a value has the wrong type")]),
        ({"data__max_prompt_length": 8}, [("prompt", "32 of the first 32 prompts are longer than")]),
        ({"data__max_prompt_length": None}, [("settings", "wrong type"), ("model", "this check itself failed")]),
    ],
)
def test_faults_of_a_composed_config(refused: DryRun, changes: dict[str, Any], expected: list[Any]) -> None:
    found = faults(check_run(changed(refused.config, **changes), None, slow_search=60))
    assert [(check, status) for check, status, _ in found] == [(check, FAIL) for check, _ in expected]
    for (_, _, text), (_, part) in zip(found, expected, strict=True):
        assert part in text


@pytest.fixture
def model(refused: DryRun, tmp_path: Path) -> dict[str, Any]:
    """The tiny recipe's config on a copy of its model's folder, without weights."""
    folder = tmp_path / "model"
    shutil.copytree(data_file("tiny/model"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return changed(refused.config, actor_rollout_ref__model__path=str(folder))


def edit(config: dict[str, Any], file: str, **values: Any) -> None:
    path = Path(config["actor_rollout_ref"]["model"]["path"]) / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def model_faults(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    from research_plugin.config import AgentConfig, build_config

    agent = build_config(AgentConfig, config["actor_rollout_ref"]["rollout"]["custom"])
    return faults(check_model(config, agent, ["Who?"]))


def test_a_model_folder_without_a_fault(model: dict[str, Any]) -> None:
    assert model_faults(model) == []


def test_end_tokens_that_differ(model: dict[str, Any]) -> None:
    # Case 5: the tokenizer's is <|im_end|>, id 2.
    edit(model, "generation_config.json", eos_token_id=[0])
    ((check, status, text),) = model_faults(model)
    assert (check, status) == ("eos", WARNING)
    assert text.startswith("eos differs: the tokenizer has 2 (<|im_end|>), generation_config.json [0]")


def test_a_chat_template_whose_end_is_no_end(model: dict[str, Any]) -> None:
    # A base model under a chat template: it ends with <|endoftext|>, the template's turns with <|im_end|>.
    edit(model, "generation_config.json", eos_token_id=0)
    edit(model, "tokenizer_config.json", eos_token="<|endoftext|>")
    ((check, status, text),) = model_faults(model)
    assert (check, status) == ("eos", WARNING)
    assert text.startswith("the chat template ends an answer with <|im_end|>")


def test_no_end_token_at_all(model: dict[str, Any]) -> None:
    edit(model, "generation_config.json", eos_token_id=None)
    edit(model, "tokenizer_config.json", eos_token=None)
    ((check, status, text),) = model_faults(model)
    assert (check, status) == ("model", FAIL)
    assert "no rollout could end" in text


def test_a_chat_style_without_a_template(model: dict[str, Any]) -> None:
    (Path(model["actor_rollout_ref"]["model"]["path"]) / "chat_template.jinja").unlink()
    ((check, status, text),) = model_faults(model)
    assert (check, status) == ("prompt", FAIL)
    assert "needs a chat template and this tokenizer has none" in text


def test_a_tokenizer_of_another_model(model: dict[str, Any]) -> None:
    edit(model, "config.json", vocab_size=10)
    ((check, status, text),) = model_faults(model)
    assert (check, status) == ("model", FAIL)
    assert "the model has 10 embeddings" in text


@contextmanager
def retriever(route: str, answer: Any, seconds: float = 0.0) -> Iterator[str]:
    """A server that knows one route and answers every POST to it alike, after ``seconds``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(seconds)
            self.reply(200, answer) if self.path == route else self.reply(404, {"detail": "Not Found"})

        def do_GET(self) -> None:
            self.reply(404, {"detail": "Not Found"})

        def reply(self, status: int, body: Any) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


DOCUMENTS = [[{"id": "1", "contents": "Paris\nParis is a city."}]]


def search(url: str, slow: float = 60.0, **settings: Any) -> list[Finding]:
    return check_search(SearchConfig(url=url, **settings), slow)


def test_retriever_that_answers() -> None:
    with retriever("/batch_search", DOCUMENTS) as url:
        (found,) = search(url)
    assert found.status == OK
    assert f"{url} (batch_search): 1 documents in " in found.text


def test_retriever_that_is_down() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    (found,) = search(url)
    assert found.status == FAIL
    assert found.text.startswith(f"{CUSTOM}.search.url={url}: ")


@pytest.mark.parametrize("api", ["batch_search", "queries"])
def test_retriever_of_another_dialect(api: str) -> None:
    with retriever("/retrieve", {"result": DOCUMENTS}) as url:
        (found,) = search(url, api=api)
        (right,) = search(url, api="retrieve")
    assert (found.status, right.status) == (FAIL, OK)
    assert f"{CUSTOM}.search.url={url}: " in found.text
    assert "404" in found.text


def test_retriever_that_is_slow() -> None:
    with retriever("/batch_search", DOCUMENTS, seconds=0.2) as url:
        (found,) = search(url, slow=0.1)
    assert found.status == WARNING
    assert "more than 0.1 s for one query" in found.text


def test_retriever_that_finds_nothing_and_does_not_say_what_it_serves() -> None:
    with retriever("/batch_search", [[]]) as url:
        empty, note = search(url, expects="wiki18_e5_gpu")
    assert (empty.status, note.status) == (WARNING, WARNING)
    assert "is its corpus empty?" in empty.text
    assert "does not say what it serves" in note.text


def test_embedded_retriever_needs_its_corpus() -> None:
    assert [found.status for found in search("embedded", corpus="/gone.jsonl")] == [FAIL]
    assert [found.status for found in search("embedded", corpus=data_file("tiny/corpus.jsonl"))] == [OK]
