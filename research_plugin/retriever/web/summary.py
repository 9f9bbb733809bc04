"""Summaries of pages for a query, by a model behind an OpenAI-compatible server, as R1-Searcher evaluates online."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from research_plugin.errors import SearchError
from research_plugin.retriever.settings import WebSettings
from research_plugin.retriever.web.api import Api, Pace, read_key
from research_plugin.retriever.web.memo import Memo

_MOST_TOKENS = 512


class Summarizer:
    """Asks the model of ``settings``; keeps its answers in ``memo``."""

    def __init__(self, memo: Memo, settings: WebSettings) -> None:
        self._memo, self._settings = memo, settings
        self._url = f"{(settings.summarize_url or '').rstrip('/')}/chat/completions"
        name = settings.summarize_key_env
        key = read_key("web.summarize_key_env", name) if name is not None else None
        self._api = Api(self._url, ("Authorization", "Bearer "), key, name, settings, Pace(math.inf))
        self._prompt = (Path(__file__).parent / "summary_prompt.txt").read_text(encoding="utf-8").strip()

    async def summarize(self, query: str, text: str) -> str | None:
        """Return a paragraph, or None if the model finds nothing in the text that helps.

        Raises:
            SearchError: the model gave no answer.
        """
        page = text[: self._settings.summarize_chars]
        body = {
            "model": self._settings.summarize_model,
            # One user message, because some models' chat templates refuse a system message.
            "messages": [{"role": "user", "content": f"{self._prompt}\n\nQuery: {query}\n\nPage:\n{page}"}],
            "temperature": 0,
            "max_tokens": _MOST_TOKENS,
        }

        async def ask() -> str:
            return _content(await self._api.post(body))

        summary = str(await self._memo.get(["summary", self._url, body], ask))
        return None if summary.strip(" .*\"'").lower() in ("", "none") else summary

    async def aclose(self) -> None:
        await self._api.aclose()


def _content(answer: Any) -> str:
    try:
        content = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise SearchError("the summary model's answer has no choices[0].message.content") from error
    # A reasoning model's thoughts come first where the server does not take them out.
    return str(content or "").rsplit("</think>", 1)[-1].strip()
