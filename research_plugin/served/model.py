"""A model behind an OpenAI-compatible server: one client for many requests at once, with retries. Knows no method."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from research_plugin.errors import ConfigError, ModelError
from research_plugin.search.settings import is_loopback

_RETRIES = 5
_PAUSES = (0.5, 10.0)  # seconds: before the first retry, and at most
_TIMEOUT = 1800.0  # seconds for one turn: a busy server answers it only when thousands of tokens are written


class ServedModel:
    """One model of one server; an async context manager that asks the server, once, what it has.

    Args:
        url: Base URL, with or without its ``/v1``.
        name: Which of the served models; None: the only one.
        key: Bearer token, or None. No error repeats it.
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
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username is not None:
            shown = url if parts.username is None and not parts.query else parts.hostname
            raise ConfigError(
                f"--model-url {shown!r} is no http(s) URL without user and query; give the server's, such as "
                "http://gpu1:8000/v1"
            )
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
        answer = await self._request("GET", "models", retries=0)
        try:
            served = {model["id"]: model for model in answer["data"]}
        except (KeyError, TypeError) as error:
            raise ModelError(f"{self.url}models lists no models: {str(answer)[:200]}; is the URL right?") from error
        name = next(iter(served)) if self._wanted is None and len(served) == 1 else self._wanted
        if name is None or name not in served:
            raise ConfigError(f"--model {name}: {self.url} serves {', '.join(served) or 'no model'}; name one of these")
        self.name, self.max_model_len = name, served[name].get("max_model_len")

    async def ask(self, route: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the server's answer to a request, such as one to "chat/completions", which needs no model in it."""
        answer: Mapping[str, Any] = await self._request("POST", route, {"model": self.name, **request})
        return answer

    async def complete(self, prompt: list[int] | str, **options: Any) -> Mapping[str, Any]:
        """Return the one choice of a completion. A prompt that fills the model's context is completed by nothing."""
        try:
            choice: Mapping[str, Any] = (await self.ask("completions", {"prompt": prompt, "n": 1, **options}))[
                "choices"
            ][0]
        except ModelError as error:
            if not is_context_full(error):
                raise
            return {"text": "", "finish_reason": "length"}
        return choice

    async def _request(
        self, method: str, route: str, body: Mapping[str, Any] | None = None, retries: int = _RETRIES
    ) -> Any:
        """Send one request, again after connection errors, 408, 429 and 5xx."""
        import httpx

        for retry in range(retries + 1):
            if retry:
                await asyncio.sleep(min(_PAUSES[0] * 2 ** (retry - 1), _PAUSES[1]) * random.uniform(0.75, 1.25))
            try:
                reply = await self._client.request(method, route, json=body)
                if reply.status_code == 200:
                    return reply.json()
            except (httpx.TransportError, ValueError) as error:  # ValueError: no JSON
                fault = f"{type(error).__name__} {error}"
                continue
            fault = f"status {reply.status_code}: {reply.text[:500]}"
            if reply.status_code < 500 and reply.status_code not in (408, 429):
                break
        fault = fault.replace(self._key, "***") if self._key else fault
        raise ModelError(f"{method} {self.url}{route}: {fault}; is the model served there?")


def is_context_full(error: ModelError) -> bool:
    """Whether the server refused a prompt that is longer than the model's context (vLLM, SGLang and OpenAI)."""
    return "context length" in str(error)
