"""A model behind an OpenAI-compatible completions server (vLLM, SGLang), as the turn loop's `Generate`.

Prompts travel as token ids, which that API takes, so that the model reads exactly what it reads in training. Turns come
back as text and are encoded again: good enough to judge a model, never to train on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from research_plugin.errors import ConfigError, ModelError
from research_plugin.protocol import Dialect
from research_plugin.search.settings import is_loopback
from research_plugin.search_loop import Generate, Generation
from research_plugin.tokens import HFCodec

_RETRIES = 5
_PAUSES = (0.5, 10.0)  # seconds: before the first retry, and at most
_TIMEOUT = 1800.0  # seconds for one turn: a busy server answers it only when thousands of tokens are written


class ServedModel:
    """One model of one server, for many rollouts at once; an async context manager that asks the server what it has.

    Args:
        url: Base URL, with or without its ``/v1``.
        name: Which of the served models; None: the only one.
        key: Bearer token, or None.
        connections: Most requests in flight; further ones wait.

    Raises:
        ConfigError: the URL is none, or the server has no such model.
        ModelError: the server does not answer.
    """

    name: str
    max_model_len: int | None
    """Most tokens of prompt and answer together, where the server says so (vLLM and SGLang do)."""

    def __init__(self, url: str, name: str | None = None, *, key: str | None = None, connections: int = 64) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--model-url {url!r} is no http(s) URL; give the server's, such as http://gpu1:8000/v1")
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1/"
        self._wanted, self._key, self._connections = name, key, connections

    async def __aenter__(self) -> ServedModel:
        import httpx

        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(_TIMEOUT, connect=10.0, pool=None),
            limits=httpx.Limits(max_connections=self._connections, max_keepalive_connections=self._connections),
            trust_env=not is_loopback(self.url),
        )
        try:
            await self._choose()
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def _choose(self) -> None:
        served = {model["id"]: model for model in (await self._request("GET", "models"))["data"]}
        name = next(iter(served)) if self._wanted is None and len(served) == 1 else self._wanted
        if name is None or name not in served:
            raise ConfigError(f"--model {name}: {self.url} serves {', '.join(served) or 'no model'}; name one of these")
        self.name, self.max_model_len = name, served[name].get("max_model_len")

    async def complete(self, prompt: list[int] | str, **options: Any) -> Mapping[str, Any]:
        """Return the one choice of a completion. A prompt that fills the model's context is completed by nothing."""
        body = {"model": self.name, "prompt": prompt, "n": 1, **options}
        try:
            choice: Mapping[str, Any] = (await self._request("POST", "completions", body))["choices"][0]
        except ModelError as error:
            if "maximum context length" not in str(error):
                raise
            return {"text": "", "finish_reason": "length"}
        return choice

    async def _request(self, method: str, route: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send one request, again after connection errors, 408, 429 and 5xx."""
        import httpx

        for retry in range(_RETRIES + 1):
            if retry:
                await asyncio.sleep(min(_PAUSES[0] * 2 ** (retry - 1), _PAUSES[1]) * random.uniform(0.75, 1.25))
            try:
                reply = await self._client.request(method, route, json=body)
            except httpx.TransportError as error:
                fault = f"{type(error).__name__} {error}"
                continue
            if reply.status_code == 200:
                return reply.json()
            fault = f"status {reply.status_code}: {reply.text[:500]}"
            if reply.status_code < 500 and reply.status_code not in (408, 429):
                break
        raise ModelError(f"{method} {self.url}{route}: {fault}; is the model served there?")


def served_turns(
    server: ServedModel, codec: HFCodec, dialect: Dialect, *, temperature: float, top_p: float, text_prompts: bool
) -> Generate:
    """Return the turn loop's generator over ``server``; ``text_prompts`` is for servers that take no token ids."""

    async def generate(context_ids: list[int], max_tokens: int) -> Generation:
        choice = await server.complete(
            codec.decode(context_ids) if text_prompts else context_ids,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            stop=list(dialect.stop),
            # vLLM and SGLang look for stop strings in their text: a tag that is a special token has to be in there.
            skip_special_tokens=False,
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
