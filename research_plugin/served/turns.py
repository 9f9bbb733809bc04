"""Turns of a served model, as the turn loop's `Generate`.

Prompts travel as token ids, which the completions API takes, so that the model reads exactly what it reads in training.
Turns come back as text and are encoded again: good enough to judge a model, never to train on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from research_plugin.protocol import Dialect
from research_plugin.search_loop import Generate, Generation
from research_plugin.served.model import ServedModel
from research_plugin.tokens import HFCodec


def served_turns(
    server: ServedModel, codec: HFCodec, dialect: Dialect, *, text_prompts: bool = False, **sampling: Any
) -> Generate:
    """Return the turn loop's generator over ``server``.

    Args:
        text_prompts: Send prompts as text: for servers that take no token ids.
        **sampling: Of every request: temperature, top_p, seed.
    """

    async def generate(context_ids: list[int], max_tokens: int) -> Generation:
        choice = await server.complete(
            codec.decode(context_ids) if text_prompts else context_ids,
            max_tokens=max_tokens,
            stop=list(dialect.stop),
            # vLLM and SGLang look for stop strings in their text: a tag that is a special token has to be in there.
            skip_special_tokens=False,
            **sampling,
        )
        return read_turn(choice, codec, dialect)

    return generate


def read_turn(choice: Mapping[str, Any], codec: HFCodec, dialect: Dialect) -> Generation:
    """Return the turn of a completion, with the stop string that the server took off, or the end token."""
    text, finish = choice["text"], choice["finish_reason"]
    if finish != "stop":
        return Generation(codec.encode_prompt(text), aborted=finish == "abort")
    closing = _closing(choice, dialect)
    if closing is None:
        return Generation([*codec.encode_prompt(text), min(codec.end_ids)])
    return Generation(codec.encode_prompt(text if text.endswith(closing) else text + closing))


def _closing(choice: Mapping[str, Any], dialect: Dialect) -> str | None:
    """Return the stop string that ended a completion; None: an end token did."""
    for key in ("stop_reason", "matched_stop"):  # vLLM's and SGLang's additions to the API
        if key in choice:
            return choice[key] if choice[key] in dialect.stop else None
    # Plain OpenAI does not say which: it is the one whose tag was opened last and never closed.
    text, opened = choice["text"], {}
    for close in dialect.stop:
        opening = dialect.search_open if close == dialect.search_close else close.replace("/", "", 1)
        if text.rfind(opening) > text.rfind(close):
            opened[close] = text.rfind(opening)
    return max(opened, key=lambda close: opened[close], default=None)
