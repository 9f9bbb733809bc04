"""What an evaluation method is: a question and a `World` in, an `Attempt` out, and the table of the known ones.

The world is all that a method may use, the served model and the retriever, and it keeps count, so that a method is
little more than its prompts. It knows neither golden answers nor files.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from research_plugin.document import Document
from research_plugin.errors import ConfigError, ModelError
from research_plugin.served.model import is_context_full

__all__ = ["METHODS", "TRAINED", "Attempt", "Find", "Method", "Reply", "Settings", "World", "get_method"]

TRAINED = ("research", "r1_searcher", "search_r1")
"""Methods that are no function of a `World`: they run training's own turn loop (`agentic`)."""

# Method name -> "module:FUNCTION".
METHODS = {
    "direct": "research_plugin.evaluation.prompted:direct",
    "rag": "research_plugin.evaluation.prompted:rag",
    "iter_retgen": "research_plugin.evaluation.baselines.iter_retgen:iter_retgen",
    "ircot": "research_plugin.evaluation.baselines.ircot:ircot",
    "search_o1": "research_plugin.evaluation.baselines.search_o1:search_o1",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How a method is to ask; a method reads `rounds` and leaves the rest to its world."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024
    """Most tokens of one reply."""
    seed: int | None = None
    """Of the server's sampling."""
    rounds: int | None = None
    """Most rounds of a method that repeats itself; None: as many as its paper has."""
    base: bool = False
    """The model knows no chat template: `World.chat` sends its messages as plain text."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model wrote; the stop string that ended it is not part of the text."""

    text: str
    complete: bool
    """False: it was cut off, by max_tokens or at the end of the model's context."""
    prompt_tokens: int = 0
    generated_tokens: int = 0


@dataclass(slots=True)
class Attempt:
    """One attempt at a question, with all that was asked and read for it.

    Attributes:
        pred: The answer; None where there is none.
        segments: What was written and read, in order, as (text, whether the model wrote it).
        documents: What each of `queries` brought, best first.
        stop_reason: A `StopReason` value.
        prompt_tokens: Sum over the model's calls.
        retrieved_tokens: None where passages stand in a prompt and are counted there.
    """

    pred: str | None = None
    segments: list[tuple[str, bool]] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    documents: list[Sequence[Document]] = field(default_factory=list)
    stop_reason: str = "answered"
    prompt_tokens: int = 0
    generated_tokens: int = 0
    retrieved_tokens: int | None = None
    model_calls: int = 0


Ask = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""(route such as "chat/completions", request without its model) -> the server's answer. Raises ModelError."""

Find = Callable[[str], Awaitable[Sequence[Document]]]
"""query -> at most topk documents, best first. Raises SearchError."""


class World:
    """The served model and the retriever, for one attempt.

    Errors of either are faults of the infrastructure: let them pass, the runner tries the question again later.
    """

    def __init__(self, ask: Ask, find: Find, settings: Settings) -> None:
        self._ask, self._find = ask, find
        self.settings = settings
        self._attempt = Attempt()

    async def chat(self, messages: Sequence[Mapping[str, str]], **options: Any) -> Reply:
        """Return the model's next message; ``options`` (stop, max_tokens, ...) go into the request."""
        if self.settings.base:
            text = "\n\n".join(message["content"] for message in messages)
            return await self.complete(f"{text}\nAnswer:", **options)
        return await self._write("chat/completions", {"messages": list(messages), **options})

    async def complete(self, prompt: str, **options: Any) -> Reply:
        """Return how the model continues plain text; ``options`` as in `chat`."""
        return await self._write("completions", {"prompt": prompt, **options})

    async def search(self, query: str) -> Sequence[Document]:
        """Return the best documents, as many as the retriever's settings say."""
        documents = await self._find(query)
        self._attempt.queries.append(query)
        self._attempt.documents.append(documents)
        text = "\n\n".join(document.contents for document in documents)
        self._attempt.segments.append((f"[{query}]\n{text}\n", False))
        return documents

    def attempt(self, pred: str | None, stop_reason: str = "answered") -> Attempt:
        """Return the attempt that ends here, with everything asked and read so far."""
        return dataclasses.replace(self._attempt, pred=pred, stop_reason=stop_reason)

    def again(self, number: int) -> World:
        """Return a new world for one more attempt at the same question, with a sampling seed of its own."""
        seed = None if self.settings.seed is None else self.settings.seed + number
        return World(self._ask, self._find, dataclasses.replace(self.settings, seed=seed))

    async def _write(self, route: str, request: Mapping[str, Any]) -> Reply:
        settings = self.settings
        sampling = {"temperature": settings.temperature, "top_p": settings.top_p, "max_tokens": settings.max_tokens}
        if settings.seed is not None:
            sampling["seed"] = settings.seed
        try:
            answer = await self._ask(route, {**sampling, **request})
        except ModelError as error:
            # When not even the first prompt fits, the server's context is at fault; later on it is the method.
            if not self._attempt.model_calls or not is_context_full(error):
                raise
            answer = {"choices": [{"text": "", "finish_reason": "length"}]}
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        reply = Reply(
            (text or "").strip(),
            choice["finish_reason"] != "length",
            int(usage.get("prompt_tokens", 0)),
            int(usage.get("completion_tokens", 0)),
        )
        self._attempt.segments.append((reply.text, True))
        self._attempt.prompt_tokens += reply.prompt_tokens
        self._attempt.generated_tokens += reply.generated_tokens
        self._attempt.model_calls += 1
        return reply


Method = Callable[[str, World], Awaitable[Attempt]]
"""(question, world) -> the attempt, usually ``world.attempt(answer)``."""


def get_method(name: str) -> Method:
    """Return the method of `METHODS` called ``name``, or the function that ``"my_module:FUNCTION"`` names.

    Raises:
        ConfigError: there is no such method, or the module cannot be imported.
    """
    module, colon, function = METHODS.get(name, name).partition(":")
    if not colon:
        allowed = ", ".join((*TRAINED, *METHODS))
        raise ConfigError(f"unknown method {name!r}; allowed: {allowed}, or my_module:FUNCTION of your own")
    try:
        found: Method = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import the method {name!r}: {error}; is it on PYTHONPATH?") from error
    return found
