"""Compares the running retrievers with the retriever recipe that a training recipe names in ``search.expects``."""

from __future__ import annotations

import asyncio
from typing import Any

from research_plugin.errors import ConfigError
from research_plugin.search.settings import SearchConfig, is_loopback


async def compare_with_recipe(settings: SearchConfig, timeout: float = 5.0) -> dict[str, str]:
    """Read each server's /health and compare it with the recipe; nothing is asked if ``expects`` is unset.

    Returns:
        A line by URL for each server that does not say what it serves (one of another make).

    Raises:
        ConfigError: the recipe cannot be read, or a server differs from it; names every difference.
    """
    if settings.expects is None:
        return {}
    from research_plugin.retriever.describe import differences
    from research_plugin.retriever.recipe import load_config

    key = f"search.expects={settings.expects}"
    try:
        recipe = load_config(settings.expects)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    answers = await asyncio.gather(*(read_health(url, timeout) for url in settings.endpoints))
    silent, faults = {}, []
    for url, health in zip(settings.endpoints, answers, strict=True):
        if "engine" not in health:
            silent[url] = f"{url} does not say what it serves, so it was not compared with {key}"
        else:
            faults += [f"{url}: {difference}" for difference in differences(recipe, health)]
    if faults:
        raise ConfigError(
            f"{key}: {'; '.join(faults)}. Serve that recipe (research-plugin serve --recipe {settings.expects}), name "
            "another one, or set search.expects=null to use what is served"
        )
    return silent


async def read_health(url: str, timeout: float = 5.0) -> dict[str, Any]:
    """Return the JSON object of a retriever's /health; {} if there is none."""
    import httpx

    try:
        async with httpx.AsyncClient(timeout=timeout, trust_env=not is_loopback(url)) as http:
            answer = (await http.get(f"{url}/health")).json()
    except (httpx.HTTPError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}
