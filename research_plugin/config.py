"""Everything a recipe can set under ``actor_rollout_ref.rollout.custom``, as plain dataclasses that check themselves.

Standard library only. Not frozen: veRL's omega_conf_to_dataclass (0.9.1) cannot fill frozen dataclasses.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from research_plugin.errors import ConfigError
from research_plugin.prompts import STYLES
from research_plugin.protocol import get_dialect
from research_plugin.search.settings import SearchConfig

T = TypeVar("T")

CUSTOM_KEY = "actor_rollout_ref.rollout.custom"


@dataclass
class PromptConfig:
    """How a question becomes a prompt (see `research_plugin.prompts`)."""

    style: str = "instruct"
    """``instruct``, ``base`` or ``question``."""
    file: str | None = None
    """A text file of one's own instead of the shipped wording."""

    def __post_init__(self) -> None:
        """Check the style's name; the file is read where it is used."""
        if self.style not in STYLES:
            raise ConfigError(f"{CUSTOM_KEY}.prompt.style={self.style!r}; allowed: {', '.join(STYLES)}")


@dataclass
class RecordsConfig:
    """Which rollouts a training writes down (see `research_plugin.records`)."""

    groups_per_step: int = 16
    """Groups of each training step, drawn at random, with all their rollouts; 0: none."""
    questions_per_validation: int = 256
    """Questions of each validation, the same ones every time; 0: none."""
    tokens: bool = True
    """Also every token with its mask and log-probability: about three times the size."""
    max_mb: float = 2000.0
    """What a run may take on disk; beyond it whole steps go, spread over the run."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("groups_per_step", "questions_per_validation", "max_mb"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{CUSTOM_KEY}.records.{name}={getattr(self, name)}; allowed: 0 and above")


@dataclass
class AgentConfig:
    """Settings of the search rollout."""

    protocol: str = "research"
    """Dialect name: tags and observation text."""
    prompt: PromptConfig = field(default_factory=PromptConfig)
    max_searches: int | None = None
    """Searches allowed in one rollout, empty and invalid turns included; None: as many as the response length holds
    (ReSearch)."""
    max_searches_schedule: list[list[int]] = field(default_factory=list)
    """Instead of `max_searches`: pairs of a training step and the limit from that step on; the first step is 0."""
    when_spent: str = "stop"
    """After the last allowed search: ``stop`` the rollout, or insert a ``notice`` and go on."""
    max_observation_tokens: int | None = None
    """Most tokens of one observation, tags included; whole documents are dropped first. None: no own limit."""
    max_turn_tokens: int | None = None
    """Most tokens the policy may write before it has to search or answer; None: no own limit."""
    mask_observations: bool = True
    """False puts retrieved tokens into the loss: only for measuring what the mask is worth (docs/mask.md)."""
    records: RecordsConfig = field(default_factory=RecordsConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        """Check names and ranges."""
        get_dialect(self.protocol)
        if self.when_spent not in ("stop", "notice"):
            raise ConfigError(f"{CUSTOM_KEY}.when_spent={self.when_spent!r}; allowed: stop, notice")
        if self.max_searches is not None and self.max_searches < 0:
            raise ConfigError(f"{CUSTOM_KEY}.max_searches={self.max_searches}; allowed: null or 0 and above")
        self._check_schedule()
        if self.max_observation_tokens is not None and self.max_observation_tokens < 32:
            raise ConfigError(
                f"{CUSTOM_KEY}.max_observation_tokens={self.max_observation_tokens}; allowed: null or 32 and above, "
                "since the tags alone take about 10 tokens"
            )
        if self.max_turn_tokens is not None and self.max_turn_tokens < 1:
            raise ConfigError(f"{CUSTOM_KEY}.max_turn_tokens={self.max_turn_tokens}; allowed: null or 1 and above")

    def _check_schedule(self) -> None:
        schedule, key = self.max_searches_schedule, f"{CUSTOM_KEY}.max_searches_schedule"
        if not schedule:
            return
        if self.max_searches is not None:
            raise ConfigError(f"{key} and {CUSTOM_KEY}.max_searches={self.max_searches} are both set; set one of them")
        steps = [pair[0] for pair in schedule if len(pair) == 2 and pair[1] >= 0]
        if len(steps) < len(schedule) or steps[0] != 0 or steps != sorted(set(steps)):
            raise ConfigError(
                f"{key}={schedule}; allowed: pairs [step, limit] with rising steps from 0 and limits of 0 and above, "
                "such as [[0, 1], [50, 2]]"
            )

    def search_limit(self, step: int) -> int | None:
        """Return how many searches a rollout of training step ``step`` may make; None: no limit."""
        limits = [limit for start, limit in self.max_searches_schedule if start <= step]
        return limits[-1] if limits else self.max_searches


def build_config(cls: type[T], values: Mapping[str, Any] | None, where: str = CUSTOM_KEY) -> T:
    """Build the dataclass ``cls`` from a plain mapping, nested dataclasses included.

    Raises:
        ConfigError: an unknown key or a value of the wrong type, with the full key and what is allowed.
    """
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError(f"{where}={values!r} is a {type(values).__name__}; a mapping of settings is allowed")
    hints = typing.get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for key, value in (values or {}).items():
        if key not in names:
            raise ConfigError(f"unknown key {where}.{key}; allowed: {', '.join(sorted(names))}")
        arguments[key] = _convert(hints[key], value, f"{where}.{key}")
    return cls(**arguments)


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Check ``value`` against a field's type; ints pass as floats and mappings become nested dataclasses."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if value is None or isinstance(value, Mapping):
            return build_config(hint, value, where)
    elif isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        return _convert(next(option for option in options if option is not type(None)), value, where)
    elif typing.get_origin(hint) is list:
        if isinstance(value, list | tuple):
            item = typing.get_args(hint)[0]
            return [_convert(item, element, f"{where}[{index}]") for index, element in enumerate(value)]
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    name = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{where}={value!r} is a {type(value).__name__}; a {name} is allowed")
