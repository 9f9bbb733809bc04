"""The two plain baselines: what the model knows, and what it reads in the passages of one search."""

from __future__ import annotations

from collections.abc import Iterable

from research_plugin.document import Document
from research_plugin.evaluation.method import Attempt, Reply, World
from research_plugin.evaluation.prompts import fill, list_passages, load
from research_plugin.prompts import chat_messages


async def direct(question: str, world: World) -> Attempt:
    """Answer from the model's own knowledge."""
    return ended(world, await world.chat(chat_messages(load("direct"), f"Question: {question}")))


async def rag(question: str, world: World) -> Attempt:
    """Search for the question itself, once, and answer from what comes back."""
    return ended(world, await read(question, await world.search(question), world))


async def read(question: str, documents: Iterable[Document], world: World) -> Reply:
    """Ask the model for an answer from ``documents``."""
    text = fill("rag", passages=list_passages(documents))
    return await world.chat(chat_messages(text, f"Question: {question}"))


def ended(world: World, reply: Reply) -> Attempt:
    """Return the attempt whose answer is all of the last reply."""
    return world.attempt(reply.text, "answered" if reply.complete else "max_length")
