"""Settings of the search rollout: defaults, and typos that fail with what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from research_plugin.config import AgentConfig, PromptConfig, build_config
from research_plugin.errors import ConfigError
from research_plugin.search.settings import SearchConfig

CUSTOM = "actor_rollout_ref.rollout.custom"
SEARCH = {"url": "http://127.0.0.1:8000"}


def test_defaults_need_a_retriever_only() -> None:
    # Case 41.
    config = build_config(AgentConfig, {"search": SEARCH})
    assert config == AgentConfig(
        protocol="research",
        prompt=PromptConfig(style="instruct", file=None),
        max_searches=None,
        when_spent="stop",
        max_observation_tokens=None,
        mask_observations=True,
        search=SearchConfig(url="http://127.0.0.1:8000"),
    )


def test_every_value_arrives() -> None:
    values = {
        "protocol": "research",
        "prompt": {"style": "base", "file": "mine.txt"},
        "max_searches": 4,
        "when_spent": "notice",
        "max_observation_tokens": 512,
        "mask_observations": False,
        "search": {"urls": ["http://a:1", "http://b:2"], "topk": 3, "read_timeout": 20, "retries": 0},
    }
    config = build_config(AgentConfig, values)
    assert config.prompt == PromptConfig("base", "mine.txt")
    assert (config.max_searches, config.when_spent, config.max_observation_tokens) == (4, "notice", 512)
    assert config.mask_observations is False
    assert config.search == SearchConfig(urls=["http://a:1", "http://b:2"], topk=3, read_timeout=20.0, retries=0)
    assert isinstance(config.search.read_timeout, float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"max_search": 3},
            f"unknown key {CUSTOM}.max_search; allowed: mask_observations, max_observation_tokens, max_searches, "
            "max_searches_schedule, max_turn_tokens, prompt, protocol, records, search, when_spent",
        ),
        ({"search": {**SEARCH, "time_out": 3}}, f"unknown key {CUSTOM}.search.time_out; allowed: api, backoff,"),
        ({"prompt": {"styl": "base"}}, f"unknown key {CUSTOM}.prompt.styl; allowed: file, style"),
        ({1: 2}, f"unknown key {CUSTOM}.1; allowed"),
        ({"max_searches": "3"}, f"{CUSTOM}.max_searches='3' is a str; a int is allowed"),
        ({"max_searches": 3.0}, f"{CUSTOM}.max_searches=3.0 is a float"),
        ({"max_searches": True}, f"{CUSTOM}.max_searches=True is a bool"),
        ({"mask_observations": 1}, f"{CUSTOM}.mask_observations=1 is a int; a bool is allowed"),
        ({"mask_observations": "no"}, f"{CUSTOM}.mask_observations='no' is a str"),
        ({"protocol": None}, f"{CUSTOM}.protocol=None is a NoneType; a str is allowed"),
        ({"prompt": "base"}, f"{CUSTOM}.prompt='base' is a str; a PromptConfig is allowed"),
        ({"search": {"urls": "http://a:1"}}, f"{CUSTOM}.search.urls='http://a:1' is a str; a list is allowed"),
        ({"search": {"urls": ["http://a:1", 5]}}, f"{CUSTOM}.search.urls[1]=5 is a int; a str is allowed"),
        ({"search": {**SEARCH, "read_timeout": "9s"}}, f"{CUSTOM}.search.read_timeout='9s' is a str; a float"),
        ({"search": {**SEARCH, "read_timeout": True}}, f"{CUSTOM}.search.read_timeout=True is a bool"),
        ({"prompt": {"style": "chat"}}, f"{CUSTOM}.prompt.style='chat'; allowed: instruct, base, question"),
        (
            {"search": SEARCH, "protocol": "other"},
            "unknown protocol 'other'; allowed: r1_searcher, research, search_r1",
        ),
        ({"search": SEARCH, "records": {"max_mb": -1}}, f"{CUSTOM}.records.max_mb=-1.0; allowed: 0 and above"),
        ({"search": SEARCH, "when_spent": "go"}, f"{CUSTOM}.when_spent='go'; allowed: stop, notice"),
        ({"search": SEARCH, "max_searches": -1}, f"{CUSTOM}.max_searches=-1; allowed: null or 0 and above"),
        ({"search": SEARCH, "max_observation_tokens": 31}, f"{CUSTOM}.max_observation_tokens=31; allowed: null or 32"),
        ({}, "search.url: not set (got None)"),
        (None, "search.url: not set (got None)"),
        ({"search": None}, "search.url: not set (got None)"),
        ("research", f"{CUSTOM}='research' is a str; a mapping of settings is allowed"),
        ([1], f"{CUSTOM}=[1] is a list; a mapping of settings is allowed"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, str) else "",
)
def test_faults_name_the_key_and_what_is_allowed(values: Any, message: str) -> None:
    # Case 41.
    with pytest.raises(ConfigError) as caught:
        build_config(AgentConfig, values)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_searches", 0), ("max_searches", None), ("max_observation_tokens", 32), ("max_observation_tokens", None)],
)
def test_edges_of_the_ranges_are_allowed(key: str, value: int | None) -> None:
    assert getattr(build_config(AgentConfig, {"search": SEARCH, key: value}), key) == value


def test_two_configs_share_no_nested_value() -> None:
    first, second = (build_config(AgentConfig, {"search": {"urls": ["http://a:1"]}}) for _ in range(2))
    first.search.urls.append("http://b:1")
    first.prompt.style = "base"
    assert (second.search.urls, second.prompt.style) == (["http://a:1"], "instruct")


SCHEDULE = [[0, 1], [50, 2], [100, 4]]


def test_schedule_raises_the_search_limit_at_its_steps() -> None:
    settings = build_config(AgentConfig, {"max_searches_schedule": SCHEDULE, "search": SEARCH})
    assert [settings.search_limit(step) for step in (0, 1, 49, 50, 99, 100, 10_000)] == [1, 1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize("limit", [None, 3])
def test_without_a_schedule_the_limit_is_the_same_at_every_step(limit: int | None) -> None:
    settings = build_config(AgentConfig, {"max_searches": limit, "search": SEARCH})
    assert {settings.search_limit(step) for step in (0, 1, 500)} == {limit}


@pytest.mark.parametrize(
    "schedule", [[[1, 1]], [[0, 1], [0, 2]], [[0, 1], [50, 2], [20, 3]], [[0, -1]], [[0]], [[0, 1, 2]], [[]]]
)
def test_schedule_that_leaves_a_step_open_is_refused(schedule: list[list[int]]) -> None:
    with pytest.raises(ConfigError, match="rising steps from 0"):
        build_config(AgentConfig, {"max_searches_schedule": schedule, "search": SEARCH})


@pytest.mark.parametrize("schedule", [[0, 1], [[0, 1.5]], [["0", 1]], {"0": 1}])
def test_schedule_of_another_type_is_refused(schedule: object) -> None:
    with pytest.raises(ConfigError, match="max_searches_schedule"):
        build_config(AgentConfig, {"max_searches_schedule": schedule, "search": SEARCH})


def test_schedule_beside_a_fixed_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_searches=2 are both set"):
        build_config(AgentConfig, {"max_searches_schedule": SCHEDULE, "max_searches": 2, "search": SEARCH})
