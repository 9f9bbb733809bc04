"""1,280 uneven rollouts with a slow retriever: the asynchronous turn loop against lock-step batches.

    python benchmarks/uneven_rollouts.py [--json FILE]

Both sides play the same scripts (searches and tokens of every turn, seconds of every search) against the same simulated
world, in real time: a simulated second lasts ``--scale`` seconds.

- Engine: up to ``--slots`` sequences decode at once, ``TOKEN_S`` a token each, first come first served. The default
  has room for all, as on 64 GPUs in pairs: 40 rollouts an engine.
- Retriever: up to ``WIDTH`` queries at once, each with its own seconds; a request is answered with its slowest query.

Ours is `run_search_loop` with a search client for each of veRL's 8 default workers, all bookkeeping included. Lock-step
is the order of work of ReSearch's published rollout (arXiv 2503.19470): generate for all active rollouts, search for
all of them in one batch, append, repeat; its bookkeeping costs nothing here.

The limit is the largest of three times that no order of work can beat: the longest rollout with the world to itself,
all tokens through the engine's slots, all searches through the retriever's width.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research_plugin.document import Document
from research_plugin.protocol import RESEARCH
from research_plugin.rollout import StopReason
from research_plugin.search.client import SearchClient
from research_plugin.search.settings import SearchConfig
from research_plugin.search_loop import Generation, Limits, run_search_loop

TOKEN_S = 0.02
WIDTH = 128
WORKERS = 8
MOST_SEARCHES = 8
DOCUMENT = Document("0", "The film was directed by a person who was born in a small town by the sea.")
TARGET_SPEEDUP = 3.0
TARGET_OVER_LIMIT = 1.1


@dataclass(frozen=True, slots=True)
class Script:
    """What one rollout does: tokens of each turn, and seconds of the search after each turn but the last."""

    turns: list[int]
    searches: list[float]

    @property
    def seconds(self) -> float:
        """Simulated seconds with the world to itself."""
        return sum(self.turns) * TOKEN_S + sum(self.searches)


def make_scripts(count: int, seed: int) -> list[Script]:
    """Draw scripts: 2 searches on average and up to 8, turns of 40 to 2,000 tokens, searches of 0.5 s and more."""
    draw = random.Random(seed)
    scripts = []
    for _ in range(count):
        searches = min(MOST_SEARCHES, int(draw.expovariate(1 / 2.5)))
        turns = [max(40, min(2000, int(draw.lognormvariate(4.8, 0.8)))) for _ in range(searches + 1)]
        scripts.append(Script(turns, [0.4 + draw.expovariate(1 / 0.4) for _ in range(searches)]))
    return scripts


class World:
    """The simulated engine and retriever; ``scale`` real seconds pass for a simulated one."""

    def __init__(self, scripts: Sequence[Script], slots: int, scale: float) -> None:
        self.scripts = scripts
        self.scale = scale
        self.slots = asyncio.Semaphore(slots)
        self.width = asyncio.Semaphore(WIDTH)

    async def decode(self, rollout: int, turn: int) -> None:
        """Take the time of one turn."""
        async with self.slots:
            await asyncio.sleep(self.scripts[rollout].turns[turn] * TOKEN_S * self.scale)

    async def fetch(self, queries: list[str], topk: int) -> list[list[Document]]:
        """Answer a batch of queries "rollout turn"; the retriever's side of `research_plugin.search`."""
        await asyncio.gather(*(self._answer(*map(int, query.split())) for query in queries))
        return [[DOCUMENT] * topk for _ in queries]

    async def _answer(self, rollout: int, turn: int) -> None:
        async with self.width:
            await asyncio.sleep(self.scripts[rollout].searches[turn] * self.scale)

    async def aclose(self) -> None:
        """Nothing to close."""


class CharCodec:
    """One token a character; NUL ends a turn."""

    end_ids = frozenset({0})
    longest_token = 1

    def encode(self, text: str) -> list[int]:
        """Return code points."""
        return list(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the characters."""
        return "".join(map(chr, ids))


async def run_ours(world: World) -> None:
    """Run every script through `run_search_loop`, all at once."""
    settings = SearchConfig(engine="in_process", corpus="unused", topk=5)
    clients = [SearchClient(settings, lambda settings, stats: world) for _ in range(WORKERS)]
    codec = CharCodec()
    limits = Limits(response_length=100_000)

    async def rollout(index: int) -> None:
        script = world.scripts[index]
        turn = -1

        async def generate(context_ids: list[int], max_tokens: int) -> Generation:
            nonlocal turn
            turn += 1
            last = turn == len(script.turns) - 1
            text = "\0" if last else f"<search>{index} {turn}</search>"
            ids = codec.encode(text.rjust(script.turns[turn], "."))
            await world.decode(index, turn)
            return Generation(ids, [-1.0] * len(ids))

        async def search(query: str) -> Sequence[Document]:
            return (await clients[index % WORKERS].search(query)).documents

        episode = await run_search_loop(
            [1] * 200, generate=generate, search=search, codec=codec, dialect=RESEARCH, limits=limits
        )
        assert episode.rollout.stop_reason is StopReason.ANSWERED
        assert episode.rollout.generated_tokens == sum(script.turns)
        assert len(episode.searches) == len(script.searches)

    await asyncio.gather(*(rollout(index) for index in range(len(world.scripts))))


async def run_lock_step(world: World) -> None:
    """Generate for all, search for all in one batch, repeat."""
    active = list(range(len(world.scripts)))
    turn = 0
    while active:
        await asyncio.gather(*(world.decode(rollout, turn) for rollout in active))
        active = [rollout for rollout in active if turn < len(world.scripts[rollout].searches)]
        if active:
            await world.fetch([f"{rollout} {turn}" for rollout in active], 5)
        turn += 1


def limits_of(scripts: Sequence[Script], slots: int) -> dict[str, float]:
    """Return the three lower limits in simulated seconds."""
    return {
        "longest_rollout_s": max(script.seconds for script in scripts),
        "engine_s": sum(sum(script.turns) for script in scripts) * TOKEN_S / slots,
        "retriever_s": sum(sum(script.searches) for script in scripts) / WIDTH,
    }


Run = Callable[[World], Coroutine[Any, Any, None]]


def timed(run: Run, scripts: Sequence[Script], slots: int, scale: float) -> float:
    """Return the simulated seconds that ``run`` takes in a world of its own."""

    async def in_world() -> None:
        await run(World(scripts, slots, scale))

    start = time.perf_counter()
    asyncio.run(in_world())
    return (time.perf_counter() - start) / scale


def measure(rollouts: int, slots: int, scale: float, seed: int) -> dict[str, float]:
    """Run both sides and return the numbers of the table."""
    scripts = make_scripts(rollouts, seed)
    ours = timed(run_ours, scripts, slots, scale)
    lock_step = timed(run_lock_step, scripts, slots, scale)
    limits = limits_of(scripts, slots)
    return {
        "rollouts": rollouts,
        "slots": slots,
        "searches": sum(len(script.searches) for script in scripts),
        "tokens": sum(sum(script.turns) for script in scripts),
        "ours_s": ours,
        "lock_step_s": lock_step,
        **limits,
        "speedup": lock_step / ours,
        "over_limit": ours / max(limits.values()),
        "target_speedup": TARGET_SPEEDUP,
        "target_over_limit": TARGET_OVER_LIMIT,
    }


def main() -> None:
    """Print the table and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--rollouts", type=int, default=1280)
    parser.add_argument("--slots", type=int, default=1280, help="sequences the engine decodes at once (default 1280)")
    parser.add_argument("--scale", type=float, default=0.08, help="real seconds a simulated second lasts")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    numbers = measure(arguments.rollouts, arguments.slots, arguments.scale, arguments.seed)
    print("{rollouts} rollouts, {searches} searches, {tokens} tokens; simulated seconds".format(**numbers))
    for key, name in {
        "lock_step_s": "lock-step batches",
        "ours_s": "asynchronous turn loop",
        "longest_rollout_s": "limit: longest rollout alone",
        "engine_s": "limit: all tokens through the engine",
        "retriever_s": "limit: all searches through the retriever",
    }.items():
        print(f"  {name:<42} {numbers[key]:>8.1f}")
    print(f"  {'times faster than lock-step':<42} {numbers['speedup']:>8.2f}   target {TARGET_SPEEDUP:g}")
    print(f"  {'times the largest limit':<42} {numbers['over_limit']:>8.2f}   target {TARGET_OVER_LIMIT:g}")
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
