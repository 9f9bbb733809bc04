"""Rollouts per second of `SearchAgentLoop` against veRL's ToolAgentLoop, with free generation and free search.

    python benchmarks/turn_loop.py [--json FILE]

Both loops run inside veRL's own worker class with the tiny recipe's model folder, a server that returns scripted tokens
at once and a search that returns prepared passages at once (for ours: through the search client, cache off). Every
rollout has its own queries and passages; both loops write the same words, the one in tags, the other as Hermes tool
calls (whose prompt also describes the tool). Observations come in two sizes: two sentences, as in the tiny world, and
five passages of about 100 words, as from Wikipedia: tokenizing those is the same work for both loops and hides what
the loops themselves cost. "tokenizing alone" is that work: the same prompt and observations encoded, nothing else.

- turns: `run` on loop objects that exist already.
- in worker: veRL's `_run_agent_loop`, which first builds a loop object for every rollout with Hydra (about the same for
  every loop), without what follows (reward, TransferQueue).

Rollouts per second are wall time, the best of ``--repeat`` interleaved runs; CPU ms hold on a busy machine, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

from research_plugin.document import Document

TARGET_RATIO = 5.0
QUESTION = "Where was the director of the film Glass Harbour born?"
THOUGHT = "I need the director of the film first, and then the place where that person was born. " * 4
SIZES = {"two sentences": (2, 1), "five passages": (5, 10)}
"""Passages of an observation, and sentences of about ten words in each."""

TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call these functions:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Write a call as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Passages:
    """Prepared passages by query; also the search client's transport."""

    def __init__(self, sentences: list[str]) -> None:
        self.sentences = sentences
        self.passages = self.length = 1

    def find(self, query: str) -> list[Document]:
        """Return the passages of a query that ends in a number, different for every number."""
        start = int(query.rsplit(" ", 1)[1]) * self.passages * self.length
        pieces = [
            [self.sentences[(start + i * self.length + j) % len(self.sentences)] for j in range(self.length)]
            for i in range(self.passages)
        ]
        return [Document(str(i), " ".join(piece)) for i, piece in enumerate(pieces)]

    def text(self, query: str) -> str:
        """Return the passages as one text."""
        return "\n\n".join(document.contents for document in self.find(query))

    async def fetch(self, queries: list[str], topk: int) -> list[list[Document]]:
        """Answer a batch at once."""
        return [self.find(query) for query in queries]

    async def aclose(self) -> None:
        """Nothing to close."""


class Server:
    """veRL's LLM server client: returns the scripted turns of the next rollout for every new request id."""

    def __init__(self) -> None:
        self.scripts: list[list[list[int]]] = []
        self.running: dict[str, Iterator[list[int]]] = {}

    async def generate(self, request_id: str, **kwargs: Any) -> Any:
        """Return the next turn."""
        from verl.workers.rollout.replica import TokenOutput

        if request_id not in self.running:
            self.running[request_id] = iter(self.scripts[len(self.running)])
        ids = next(self.running[request_id])
        return TokenOutput(
            token_ids=list(ids),
            log_probs=[-1.0] * len(ids),
            extra_fields={"global_steps": 1, "min_global_steps": 1, "max_global_steps": 1},
        )


@dataclass(slots=True)
class Side:
    """One loop inside a veRL worker."""

    name: str
    worker: Any
    server: Server
    call: Callable[[str], str]
    """A query as the model writes it."""

    def script(self, rollouts: int, searches: int) -> None:
        """Prepare the turns of a run: every rollout with its own queries."""

        def ids(text: str) -> list[int]:
            return list(self.worker.tokenizer.encode(text, add_special_tokens=False))

        answer = ids("<think> Now I know. </think> <answer> It is \\boxed{ Ost } </answer><|im_end|>")
        self.server.running.clear()
        self.server.scripts = [
            [ids(f"<think> {THOUGHT}</think> {self.call(query)}") for query in queries_of(rollout, searches)] + [answer]
            for rollout in range(rollouts)
        ]

    def new_loop(self) -> Any:
        """Build a loop object as veRL's worker does (agent_loop.py, _run_agent_loop)."""
        import hydra
        from verl.experimental.agent_loop import agent_loop

        return hydra.utils.instantiate(
            config=agent_loop._agent_loop_registry[self.name],
            trainer_config=agent_loop.DictConfigWrap(config=self.worker.config),
            server_manager=self.worker.llm_client,
            tokenizer=self.worker.tokenizer,
            processor=self.worker.processor,
            hf_model_type=self.worker.hf_model_type,
            dataset_cls=self.worker.dataset_cls,
            data_config=agent_loop.DictConfigWrap(self.worker.config.data),
            tools=agent_loop.ToolListWrap(self.worker.tools),
        )


def queries_of(rollout: int, searches: int) -> list[str]:
    """Return the queries of one rollout."""
    return [f"director of Glass Harbour {rollout * searches + turn}" for turn in range(searches)]


def build_sides(passages: Passages) -> list[Side]:
    """Build both loops over the tiny recipe; ours first."""
    from hydra import compose, initialize_config_module
    from verl.tools.function_tool import FunctionTool, _build_schema_from_fn
    from verl.trainer.ppo.v1 import agent_loop_tq

    import research_plugin.plugin  # noqa: F401  (what veRL's entry point loads)

    async def search(query: str) -> str:
        """Search an encyclopedia for passages.

        Args:
            query: What to look for.
        """
        return passages.text(query)

    def side(name: str, call: Callable[[str], str]) -> Side:
        rollout = "actor_rollout_ref.rollout"
        overrides = [
            "+recipe=research_tiny",
            f"{rollout}.agent.default_agent_loop={name}",
            f"{rollout}.custom.search.engine=in_process",
            f"{rollout}.custom.search.cache_size=0",
            f"{rollout}.multi_turn.format=hermes",
            f"{rollout}.multi_turn.max_tool_response_length=1000000",
            f"{rollout}.max_model_len=17000",
            "data.max_prompt_length=600",
            "data.max_response_length=16000",
        ]
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=overrides)
        server = Server()
        worker = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class(config, server)
        worker.tokenizer.model_max_length = 1_000_000
        return Side(name, worker, server, call)

    with mock.patch.object(agent_loop_tq, "tq"), contextlib.redirect_stdout(sys.stderr):
        ours = side("research_search", lambda query: f"<search> {query} </search>")
        tool = side(
            "tool_agent",
            lambda query: (
                f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{query}"}}}}\n</tool_call><|im_end|>'
            ),
        )
    tool.worker.tokenizer.chat_template = TOOL_TEMPLATE
    tool.worker.tools = [FunctionTool("search", search, _build_schema_from_fn(search, "search"), is_async=True)]
    return [ours, tool]


def row(rollout: int) -> dict[str, Any]:
    """Return the dataset row of a rollout as veRL's worker passes it on."""
    return {
        "raw_prompt": [{"role": "user", "content": QUESTION}],
        "reward_model": {"style": "rule", "ground_truth": ["Ost"]},
        "data_source": "bench",
        "index": rollout,
        "uid": str(rollout),
        "session_id": 0,
        "global_steps": 1,
    }


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


async def run_turns(side: Side, rollouts: int) -> tuple[float, float, list[Any]]:
    """Run loop objects that exist already; return wall and CPU seconds and the outputs."""
    loops = [side.new_loop() for _ in range(rollouts)]
    return await _timed([lambda i=i, loop=loop: loop.run(dict(SAMPLING), **row(i)) for i, loop in enumerate(loops)])


async def run_in_worker(side: Side, rollouts: int) -> tuple[float, float, list[Any]]:
    """Run through the worker, each rollout with a new loop object; return wall and CPU seconds and the outputs."""

    async def keep(output: Any, validate: bool, **kwargs: Any) -> Any:
        return output

    def start(i: int) -> Awaitable[Any]:
        trajectory = {"step": 1, "sample_index": i, "rollout_n": 0, "validate": False}
        run: Awaitable[Any] = side.worker._run_agent_loop(
            dict(SAMPLING), trajectory, agent_name=side.name, trace=False, **row(i)
        )
        return run

    with mock.patch.object(side.worker, "_agent_loop_postprocess", keep):
        return await _timed([lambda i=i: start(i) for i in range(rollouts)])


async def _timed(starts: list[Callable[[], Awaitable[Any]]]) -> tuple[float, float, list[Any]]:
    wall, cpu = time.perf_counter(), time.process_time()
    outputs = await asyncio.gather(*(start() for start in starts))
    return time.perf_counter() - wall, time.process_time() - cpu, list(outputs)


def tokenizing_alone(side: Side, passages: Passages, rollouts: int, searches: int) -> float:
    """Return CPU seconds of encoding what ours encodes: prompts and observations."""
    from research_plugin.protocol import RESEARCH
    from research_plugin.tokens import build_prompt_ids

    loop = side.new_loop()
    texts = [
        RESEARCH.format_observation(passages.find(query))
        for rollout in range(rollouts)
        for query in queries_of(rollout, searches)
    ]
    start = time.process_time()
    for _ in range(rollouts):
        build_prompt_ids(loop.codec, QUESTION, protocol="research", style="question")
    for text in texts:
        loop.codec.encode(text)
    return time.process_time() - start


def check(side: Side, output: Any, searches: int) -> None:
    """Fail if a rollout did not take the turns it should: policy and observation alternate in the mask."""
    blocks = [value for value, _ in groupby(output.response_mask)]
    if blocks != [1, 0] * searches + [1]:
        raise RuntimeError(f"{side.name}: the mask's blocks are {blocks}, expected {searches} searches and an answer")


def measure(rollouts: int, searches: int, repeat: int) -> list[dict[str, Any]]:
    """Return a row per observation size and loop."""
    from research_plugin.plugin import data_file
    from research_plugin.search.client import SearchClient
    from research_plugin.verl_ext import agent_loop

    with open(data_file("tiny/corpus.jsonl"), encoding="utf-8") as lines:
        sentences = [str(json.loads(line)["contents"]) for line in lines]
    source = Passages(sentences)
    sides = build_sides(source)
    clients: dict[Any, SearchClient] = {}

    def client(settings: Any) -> SearchClient:
        loop = asyncio.get_running_loop()
        return clients.setdefault(loop, SearchClient(settings, lambda settings, stats: source))

    rows: list[dict[str, Any]] = []
    for size, (source.passages, source.length) in SIZES.items():
        found: dict[tuple[str, str], tuple[float, float]] = {}
        facts: dict[str, dict[str, Any]] = {}
        with mock.patch.object(agent_loop, "shared_client", client):
            for count in [min(8, rollouts)] + [rollouts] * repeat:  # the first run warms up
                for side in sides:
                    for kind, run in (("turns", run_turns), ("in_worker", run_in_worker)):
                        side.script(count, searches)
                        wall, cpu, outputs = asyncio.run(run(side, count))
                        for output in outputs:
                            check(side, output, searches)
                        if count == rollouts:
                            best = found.get((side.name, kind), (float("inf"), float("inf")))
                            found[side.name, kind] = (min(best[0], wall), min(best[1], cpu))
                            facts[side.name] = {
                                "turns": searches + 1,
                                "prompt_tokens": len(outputs[0].prompt_ids),
                                "generated_tokens": sum(outputs[0].response_mask),
                                "observation_tokens": len(outputs[0].response_ids) - sum(outputs[0].response_mask),
                            }
        alone = min(tokenizing_alone(sides[0], source, rollouts, searches) for _ in range(repeat))
        for side in sides:
            numbers = {
                f"{kind}_{name}": value
                for kind in ("turns", "in_worker")
                for name, value in (
                    ("per_second", rollouts / found[side.name, kind][0]),
                    ("cpu_ms", found[side.name, kind][1] / rollouts * 1e3),
                )
            }
            rows.append({"observations": size, "loop": side.name, **facts[side.name], **numbers})
        rows[-2]["tokenizing_alone_cpu_ms"] = alone / rollouts * 1e3
    return rows


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how many times ours is faster, per observation size."""
    return [
        {
            "observations": ours["observations"],
            "turns_per_second": ours["turns_per_second"] / tool["turns_per_second"],
            "turns_cpu": tool["turns_cpu_ms"] / ours["turns_cpu_ms"],
            "in_worker_per_second": ours["in_worker_per_second"] / tool["in_worker_per_second"],
            "in_worker_cpu": tool["in_worker_cpu_ms"] / ours["in_worker_cpu_ms"],
        }
        for ours, tool in zip(rows[::2], rows[1::2], strict=True)
    ]


def main() -> None:
    """Print the table and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--rollouts", type=int, default=200, help="rollouts of a run, all at once (default 200)")
    parser.add_argument("--searches", type=int, default=3, help="searches of a rollout before its answer (default 3)")
    parser.add_argument("--repeat", type=int, default=3, help="runs, of which the best counts (default 3)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)

    rows = measure(arguments.rollouts, arguments.searches, arguments.repeat)
    compared = ratios(rows)
    print(f"{'':<16} {'':<18} {'tokens':>14} {'turns':>20} {'in worker':>20}")
    print(f"{'observations':<16} {'loop':<18} {'own+observed':>14}" + f" {'rollouts/s':>11} {'CPU ms':>8}" * 2)
    for index, entry in enumerate(rows):
        tokens = f"{entry['generated_tokens']}+{entry['observation_tokens']}"
        times = "".join(
            f" {entry[f'{kind}_per_second']:>11.0f} {entry[f'{kind}_cpu_ms']:>8.2f}" for kind in ("turns", "in_worker")
        )
        print(f"{entry['observations']:<16} {entry['loop']:<18} {tokens:>14}{times}")
        if index % 2:
            ratio = compared[index // 2]
            print(
                f"{'':<16} {'times faster':<18} {f'target {TARGET_RATIO:g}':>14} {ratio['turns_per_second']:>11.1f} "
                f"{ratio['turns_cpu']:>8.1f} {ratio['in_worker_per_second']:>11.1f} {ratio['in_worker_cpu']:>8.1f}"
            )
            alone = rows[index - 1]["tokenizing_alone_cpu_ms"]
            print(f"{'':<16} {'tokenizing alone':<18} {'':>14} {'':>11} {alone:>8.2f}\n")
    if arguments.json:
        numbers = {"rows": rows, "ratios": compared, "target_ratio": TARGET_RATIO}
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
