"""A served model whose completions are handed on piece by piece while it writes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from research_plugin.errors import ModelError
from research_plugin.served.model import ServedModel, is_context_full


class StreamedModel(ServedModel):
    """Like `ServedModel`, for one reader: no request is made twice, since its beginning may have been read.

    ``on_text`` is called with every piece of a completion, and with "" before the first one.
    """

    on_text: Callable[[str], object]

    async def complete(self, prompt: list[int] | str, **options: Any) -> Mapping[str, Any]:
        """Return the one choice of a completion, once it is whole."""
        request = {"model": self.name, "prompt": prompt, "n": 1, "stream": True, **options}
        choice: dict[str, Any] = {"finish_reason": "length"}
        text = ""
        self.on_text("")
        try:
            async for event in self._events("completions", request):
                for choice in event.get("choices", ())[:1]:
                    if piece := choice["text"]:
                        text += piece
                        self.on_text(piece)
        except ModelError as error:
            if not is_context_full(error):
                raise
        return {**choice, "text": text}

    async def _events(self, route: str, request: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the server-sent events of one request."""
        import httpx

        try:
            async with self._client.stream("POST", route, json=request) as reply:
                if reply.status_code != 200:
                    raise ModelError(f"{self.url}{route}: status {reply.status_code}: {(await reply.aread()).decode()}")
                async for line in reply.aiter_lines():
                    data = line.removeprefix("data:").strip()
                    if not line.startswith("data:") or data == "[DONE]":
                        continue
                    event = json.loads(data)
                    if "error" in event:
                        raise ModelError(f"{self.url}{route}: {event['error']}")
                    yield event
        except (httpx.TransportError, ValueError) as error:
            raise ModelError(
                f"{self.url}{route}: {type(error).__name__} {error}; is the model served there?"
            ) from error
