"""The batcher alone: what forms a batch, what is shared, what a failing engine does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from serving import DOCUMENTS, StubEngine

from research_plugin.document import Document
from research_plugin.retriever.batcher import Batcher, EngineFailed, QueueFull
from research_plugin.retriever.engine import SILENT, Stages
from research_plugin.retriever.metrics import Metrics
from research_plugin.retriever.settings import ServerSettings


@asynccontextmanager
async def batching(engine: Any, **settings: int) -> AsyncIterator[Batcher]:
    batcher = Batcher(engine, ServerSettings(**settings), Metrics(lambda: 0, lambda: 0))  # type: ignore[arg-type]
    yield batcher
    await batcher.close(5)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("not within 5 s")


class Held:
    """Searches that queue up while the engine is held at a first query; `finish` lets it go and returns the results."""

    def __init__(self, batcher: Batcher, engine: StubEngine) -> None:
        self.batcher, self.engine = batcher, engine
        self.tasks: list[asyncio.Task[list[list[Document]]]] = []

    async def add(self, *queries: str, topk: int = 1) -> asyncio.Task[list[list[Document]]]:
        self.tasks.append(asyncio.create_task(self.batcher.search(list(queries), topk)))
        batches = len(self.engine.batches)
        await asyncio.sleep(0)
        if len(self.tasks) == 1:
            await until(lambda: len(self.engine.batches) > batches)
        return self.tasks[-1]

    async def finish(self) -> list[list[list[Document]] | BaseException]:
        assert self.engine.gate is not None
        self.engine.gate.set()
        return await asyncio.gather(*self.tasks, return_exceptions=True)


@asynccontextmanager
async def held(engine: StubEngine | None = None, **settings: int) -> AsyncIterator[Held]:
    engine = engine or StubEngine()
    engine.gate = threading.Event()
    async with batching(engine, **settings) as batcher:
        waiting = Held(batcher, engine)
        await waiting.add("first")
        yield waiting
        engine.gate.set()


async def test_batch_takes_what_waits_and_computes_equal_queries_once() -> None:
    async with held(max_batch=3) as waiting:
        for query, topk in (("a", 1), ("b", 3), ("a", 3), ("c", 3), ("d", 3)):
            await waiting.add(query, topk=topk)
        found = await waiting.finish()
    assert waiting.engine.batches == [["first"], ["a", "b", "c"], ["d"]]
    assert [len(rows[0]) for rows in found] == [1, 1, 3, 3, 3, 3]  # type: ignore[arg-type]


async def test_batch_is_bounded_by_estimated_tokens() -> None:
    async with held(max_batch_tokens=200) as waiting:
        await waiting.add("a" * 400, "b" * 384, "c", "東" * 198, "d" * 100_000)
        await waiting.finish()
    assert [[query[0] for query in batch] for batch in waiting.engine.batches[1:]] == [["a", "b"], ["c"], ["東"], ["d"]]


async def test_only_equal_topk_are_batched_and_nobody_waits_forever() -> None:
    async with held() as waiting:
        for query, topk in (("a", 1), ("b", 3), ("c", 1), ("d", 2), ("e", 3)):
            await waiting.add(query, topk=topk)
        found = await waiting.finish()
    assert waiting.engine.batches == [["first"], ["a", "c"], ["b", "e"], ["d"]]
    assert [len(rows[0]) for rows in found if isinstance(rows, list)] == [1, 1, 3, 1, 2, 3]


async def test_a_query_joins_an_equal_one_that_is_being_computed_if_that_asks_for_enough() -> None:
    async with held() as waiting:
        await waiting.add("first", topk=1)
        await waiting.add("first", topk=2)
        found = await waiting.finish()
    assert waiting.engine.batches == [["first"], ["first"]]
    assert found == [[DOCUMENTS[:1]], [DOCUMENTS[:1]], [DOCUMENTS[:2]]]


async def test_known_results_serve_a_smaller_topk_and_not_a_larger() -> None:
    engine = StubEngine()
    async with batching(engine) as batcher:
        assert await batcher.search(["q", "none"], 2) == [DOCUMENTS[:2], []]
        assert await batcher.search(["none", "q", "q"], 1) == [[], DOCUMENTS[:1], DOCUMENTS[:1]]
        assert engine.batches == [["q", "none"]]
        assert await batcher.search(["q", "none"], 3) == [DOCUMENTS[:3], []]
        assert engine.batches[1:] == [["q", "none"]]


async def test_without_a_cache_every_search_is_computed() -> None:
    engine = StubEngine()
    async with batching(engine, cache_size=0) as batcher:
        for _ in range(2):
            assert await batcher.search(["q"], 2) == [DOCUMENTS[:2]]
    assert engine.batches == [["q"], ["q"]]


async def test_no_query_is_no_engine_call() -> None:
    engine = StubEngine()
    async with batching(engine) as batcher:
        assert await batcher.search([], 3) == []
    assert engine.batches == []


async def test_full_queue_takes_none_of_a_request_but_what_others_already_wait_for() -> None:
    async with held(max_queue=2, max_queries=2) as waiting:
        await waiting.add("a")
        with pytest.raises(QueueFull):
            await waiting.batcher.search(["b", "c"], 1)
        await waiting.add("a", "first", "b")
        with pytest.raises(QueueFull):
            await waiting.batcher.search(["c"], 1)
        await waiting.finish()
    assert waiting.engine.batches == [["first"], ["a", "b"]]


async def test_what_a_cancelled_caller_alone_wanted_leaves_the_queue() -> None:
    async with held(max_queue=3, max_queries=3) as waiting:
        gone = await waiting.add("a", "b", "c")
        await waiting.add("b")
        gone.cancel()
        await asyncio.sleep(0)
        assert waiting.batcher.waiting == 1
        await waiting.add("d", "a")
        await waiting.finish()
    assert waiting.engine.batches == [["first"], ["b", "d", "a"]]


async def test_a_query_asked_again_after_its_caller_left_is_computed_again() -> None:
    async with held() as waiting:
        waiting.tasks[0].cancel()
        await waiting.add("first")
        found = await waiting.finish()
    assert waiting.engine.batches == [["first"], ["first"]]
    assert found[1] == [DOCUMENTS[:1]]


async def test_failing_query_fails_alone_in_few_calls(caplog: pytest.LogCaptureFixture) -> None:
    async with held() as waiting:
        names = [f"q{number}" for number in range(64)]
        names[41] = "poison"
        for name in names:
            await waiting.add(name)
        found = await waiting.finish()
        assert [isinstance(rows, EngineFailed) for rows in found] == [False, *(name == "poison" for name in names)]
    # One call with all 64, then two for each halving.
    assert len(waiting.engine.batches) == 1 + 1 + 2 * 6
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("secret detail",)]  # type: ignore[index, union-attr]


async def test_what_nobody_waits_for_any_more_is_not_tried_again_after_a_failure() -> None:
    class Stepwise(StubEngine):
        steps = threading.Semaphore(0)

        def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
            self.batches.append(queries)
            assert self.steps.acquire(timeout=10)
            raise RuntimeError("not this one")

    engine = Stepwise()
    async with batching(engine) as batcher:
        first = asyncio.create_task(batcher.search(["first"], 1))
        await until(lambda: engine.batches == [["first"]])
        tasks = [asyncio.create_task(batcher.search([query], 1)) for query in ("a", "b", "c", "d")]
        await asyncio.sleep(0)
        engine.steps.release()
        await until(lambda: len(engine.batches) == 2)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.sleep(0)
        engine.steps.release(10)
        await asyncio.wait([first, *tasks])
    assert engine.batches == [["first"], ["a", "b", "c", "d"], ["a"]]


@pytest.mark.parametrize(
    "error", [ValueError("x"), MemoryError(), SystemExit(3)], ids=lambda error: type(error).__name__
)
async def test_engine_that_fails_on_everything_and_recovers(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine()
    engine.broken = error
    async with batching(engine) as batcher:
        tasks = [batcher.search([f"q{number}", f"r{number}"], 1) for number in range(50)]
        assert {type(outcome) for outcome in await asyncio.gather(*tasks, return_exceptions=True)} == {EngineFailed}
        engine.broken = None
        assert await batcher.search(["q0"], 1) == [DOCUMENTS[:1]]
    assert len(caplog.records) < 3


async def test_engine_that_returns_the_wrong_number_of_rows_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful(StubEngine):
        def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
            return super().search(queries, topk)[1:]

    async with batching(Forgetful()) as batcher:
        with pytest.raises(EngineFailed):
            await batcher.search(["a"], 1)
    assert "returned 0 rows for 1 queries" in caplog.text


async def test_rows_longer_than_asked_are_cut() -> None:
    class Generous(StubEngine):
        def search(self, queries: list[str], topk: int, stages: Stages = SILENT) -> list[list[Document]]:
            return [DOCUMENTS for _ in queries]

    async with batching(Generous()) as batcher:
        assert await batcher.search(["a"], 2) == [DOCUMENTS[:2]]


async def test_close_waits_for_the_engine_and_closes_it(caplog: pytest.LogCaptureFixture) -> None:
    engine = StubEngine(seconds=0.05)
    with caplog.at_level(logging.ERROR):
        async with batching(engine) as batcher:
            task = asyncio.create_task(batcher.search(["q"], 1))
            await asyncio.sleep(0.01)
        assert engine.closed
        assert await task == [DOCUMENTS[:1]]
    assert not caplog.records
