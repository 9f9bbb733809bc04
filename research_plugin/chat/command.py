"""``research-plugin chat``: ask a served model and watch; prompts, tags and turn loop are those of its training.

Questions come from the terminal, or one a line from standard input. Ctrl-C ends an answer, and at the prompt the chat.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from research_plugin.chat.display import Display
from research_plugin.config import AgentConfig
from research_plugin.document import Document
from research_plugin.errors import ModelError, SearchError
from research_plugin.protocol import Dialect, get_dialect
from research_plugin.rewards import METHODS
from research_plugin.rewards.answer import extract_plain_answer
from research_plugin.search.client import SearchClient
from research_plugin.served import options
from research_plugin.served.rollouts import ServedRollouts
from research_plugin.served.streamed import StreamedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.add_arguments(parser, temperature=0.0)


def run(args: argparse.Namespace) -> int:
    """Answer questions until there are no more."""
    # Who waits would rather know at once.
    settings = options.agent_settings(options.read_settings(args, "search.retries=0"))
    dialect = get_dialect(settings.protocol)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a piece may end within a character
    display = Display(sys.stdout, dialect)
    loop, connections = asyncio.new_event_loop(), AsyncExitStack()
    try:
        roll = loop.run_until_complete(_connect(args, settings, display, connections))
        for question in filter(None, map(str.strip, _questions())):
            if not sys.stdin.isatty():
                print(f"> {question}")
            sampling = {"temperature": args.temperature, "top_p": args.top_p}
            _run_until_interrupted(loop, _answer(question, roll, sampling, dialect, display), display)
    finally:
        loop.run_until_complete(connections.aclose())
        loop.close()
    return 0


async def _connect(
    args: argparse.Namespace, settings: AgentConfig, display: Display, connections: AsyncExitStack
) -> ServedRollouts:
    """Return what makes rollouts, with their turns and searches on display.

    Raises:
        ModelError, SearchError: the model or the retriever is not there.
    """
    from research_plugin.search.check import check_retriever

    await check_retriever(settings.search)
    client = SearchClient(settings.search)
    connections.push_async_callback(client.aclose)
    model = StreamedModel(args.model_url, args.model, key=os.environ.get(args.key_env))
    model.on_text = display.text
    await connections.enter_async_context(model)

    async def search(query: str) -> Sequence[Document]:
        documents = (await client.search(query)).documents
        display.results(documents)
        return documents

    return options.served_rollouts(args, model, search, settings)


def _questions() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    import readline  # noqa: F401  (gives `input` its history)

    while True:
        try:
            yield input("> ")
        except EOFError:
            return


def _run_until_interrupted(
    loop: asyncio.AbstractEventLoop, answer: Coroutine[Any, Any, None], display: Display
) -> None:
    task = loop.create_task(answer)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        loop.run_until_complete(task)
    except asyncio.CancelledError:
        display.error("stopped")
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _answer(
    question: str, roll: ServedRollouts, sampling: dict[str, float], dialect: Dialect, display: Display
) -> None:
    try:
        episode = await roll(question, **sampling)
    except (ModelError, SearchError) as error:
        display.error(str(error))
        return
    turns = [segment.text for segment in episode.rollout.segments if segment.by_policy]
    extract = next((known.extract for known in METHODS.values() if known.dialect == dialect), extract_plain_answer)
    answer, fault = extract(turns, dialect)
    display.answer(answer, fault, [document for search in episode.searches for document in search.documents])
