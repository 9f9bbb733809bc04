"""Asks every configured retriever, in seconds, whether it is up, ready and speaks the configured api."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypedDict

from research_plugin.errors import ConfigError, SearchError
from research_plugin.search.expected import compare_with_recipe
from research_plugin.search.settings import SearchConfig
from research_plugin.search.transport import SearchStats

_PROBE = "Who wrote the first encyclopedia?"


class RetrieverReport(TypedDict):
    """One checked retriever; ``seconds`` is the time of one probe query, ``note`` is worth a line or empty."""

    api: str
    documents: int
    seconds: float
    note: str


async def check_retriever(settings: SearchConfig, timeout: float = 5.0) -> dict[str, RetrieverReport]:
    """Send one probe query to each retriever, without retries.

    Args:
        settings: the settings a run would use.
        timeout: seconds each step of one request may take.

    Returns:
        A report per URL, or one for the corpus of an "in_process" engine (which is not indexed here).

    Raises:
        ConfigError: the corpus is missing, the token variable is unset, or a server is not what ``expects`` says.
        SearchError: a retriever is unreachable, still loading, or answers in another form; names key and URL.
    """
    if settings.engine == "in_process":
        path = settings.corpus or ""
        if not Path(path).is_file():
            raise ConfigError(f"search.corpus: {path!r} is not a file; give a JSONL corpus")
        return {path: RetrieverReport(api=settings.engine, documents=0, seconds=0.0, note="")}
    checks = (_check_one(settings, url, timeout) for url in settings.endpoints)
    outcomes = await asyncio.gather(*checks, return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failed:
        raise failed[0] if len(failed) == 1 else SearchError("; ".join(str(error) for error in failed))
    reports = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    notes = await compare_with_recipe(settings, timeout)
    for url, report in zip(settings.endpoints, reports, strict=True):
        report["note"] = notes.get(url, "")
    return dict(zip(settings.endpoints, reports, strict=True))


def check_retriever_blocking(settings: SearchConfig, timeout: float = 5.0) -> dict[str, RetrieverReport]:
    """`check_retriever` for callers without an event loop, or with one they must not re-enter."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, check_retriever(settings, timeout)).result()


async def _check_one(settings: SearchConfig, url: str, timeout: float) -> RetrieverReport:
    from research_plugin.search.http import HttpTransport

    key = "search.urls" if settings.urls else "search.url"
    one = dataclasses.replace(
        settings,
        url=url,
        urls=[],
        retries=0,
        connect_timeout=min(settings.connect_timeout, timeout),
        read_timeout=min(settings.read_timeout, timeout),
    )
    transport = HttpTransport(one, SearchStats())
    started = time.perf_counter()
    try:
        rows = await transport.fetch([_PROBE], settings.topk)
    except SearchError as error:
        raise SearchError(f"{key}={url}: {error}") from error
    finally:
        await transport.aclose()
    return RetrieverReport(api=settings.api, documents=len(rows[0]), seconds=time.perf_counter() - started, note="")
