"""Reads a retriever recipe: a YAML file in our names or FlashRAG's, and ``key=value`` on top of it."""

from __future__ import annotations

import difflib
import logging
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from research_plugin.errors import ConfigError
from research_plugin.retriever import flashrag_keys
from research_plugin.retriever.settings import RetrieverConfig
from research_plugin.retriever.validate import get, value_faults

_log = logging.getLogger(__name__)
_PACKAGE = Path(__file__).resolve().parents[1]
_FILES = ("corpus", "index.path", "encoder.model_path", "rerank.model_path", "flashrag_config", "web.cache_dir")


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in (_PACKAGE / "recipes" / "retriever").glob("*.yaml"))


def load_config(recipe: str | None = None, overrides: Iterable[str] = ()) -> RetrieverConfig:
    """Read a recipe and check it.

    Args:
        recipe: a YAML file, or a name of `recipe_names`; None: the defaults.
        overrides: ``key=value``, keys dotted (``index.nprobe=64``) or FlashRAG's. A text setting takes what follows the
            first ``=`` as it stands, blanks at its end included; everything else is read as YAML.

    Raises:
        ConfigError: no such recipe, an unknown key, a value of the wrong type or outside what is allowed.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    file = _read(recipe) if recipe is not None else {}
    line = _parse(overrides)
    flashrag, unused = flashrag_keys.translate({**_select(file, True), **_select(line, True)})
    if unused:
        _log.info("of no meaning to this server: %s", ", ".join(unused))
    layers = [_select(file, False), _nest(flashrag), _select(line, False)]
    for layer in layers:
        _check_names(RetrieverConfig, layer, "")
    try:
        _register_resolver()
        merged = OmegaConf.merge(OmegaConf.structured(RetrieverConfig), *layers)
        given = OmegaConf.merge(*layers)
        config = typing.cast(RetrieverConfig, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None)
        raise ConfigError(f"{key or recipe}: {str(error).splitlines()[0]}") from error
    _expand_home(config)
    faults = [*value_faults(config)]
    if flashrag.get("engine") == "dense":
        faults += _missing_in_flashrag(config, given)
    if faults:
        raise ConfigError("; ".join(faults))
    return config


def show_config(config: RetrieverConfig) -> str:
    """Return the whole configuration as YAML that `load_config` reads back."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _read(recipe: str) -> dict[str, Any]:
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    shipped = _PACKAGE / "recipes" / "retriever" / f"{recipe}.yaml"
    path = shipped if recipe in recipe_names() else Path(recipe).expanduser()
    try:
        _register_resolver()
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except OSError as error:
        names = ", ".join(recipe_names())
        reason = error.strerror or error
        raise ConfigError(f"retriever recipe {recipe!r}: {reason}; give a YAML file, or one of {names}") from error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(f"retriever recipe {path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"retriever recipe {path}: holds a {type(values).__name__}; a mapping of settings is allowed")
    return {str(key): value for key, value in values.items()}


def _parse(overrides: Iterable[str]) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"override {text!r}: expected key=value, such as index.nprobe=64")
        if _takes_text(key) and value not in ("null", "~") and value[:1] not in ('"', "'"):
            found[key] = value
            continue
        try:
            read = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"override {text!r}: {value!r} is no YAML value") from error
        # FlashRAG's instruction is text, too, and "query: " looks like a mapping.
        found[key] = value if isinstance(read, dict) or not value else read
    flashrag = {key: value for key, value in found.items() if flashrag_keys.is_flashrag_key(key)}
    return {**_nest({key: value for key, value in found.items() if key not in flashrag}), **flashrag}


def _takes_text(key: str) -> bool:
    hint: Any = RetrieverConfig
    for name in key.split("."):
        hint = typing.get_type_hints(hint).get(name) if is_dataclass(hint) else None
    return hint in (str, str | None)


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"index.path": x} -> {"index": {"path": x}}"""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        node = nested
        for name in path:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{key}: {name} is set to {node!r} as a whole, too; set one of them")
        node[last] = value
    return nested


def _select(values: Mapping[str, Any], flashrag: bool) -> dict[str, Any]:
    return {key: value for key, value in values.items() if flashrag_keys.is_flashrag_key(key) == flashrag}


def _check_names(cls: Any, values: Mapping[Any, Any], prefix: str) -> None:
    hints = typing.get_type_hints(cls)
    allowed = [field.name for field in fields(cls)]
    for key, value in values.items():
        if key not in allowed:
            candidates = [*allowed, *flashrag_keys.RENAMED, *flashrag_keys.CONVERTED] if not prefix else allowed
            close = difflib.get_close_matches(str(key), candidates, n=1)
            meant = f" (did you mean {prefix}{close[0]}?)" if close else ""
            raise ConfigError(f"unknown key {prefix}{key}{meant}; allowed: {', '.join(allowed)}")
        if is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{prefix}{key}: got {value!r}; a mapping of settings is allowed")
            _check_names(hints[key], value, f"{prefix}{key}.")


def _missing_in_flashrag(config: RetrieverConfig, given: Any) -> Iterator[str]:
    """FlashRAG guesses both from the model's name or path; what the index was built with has to be said here."""
    encoder = given.get("encoder") or {}
    if "query_instruction" not in encoder:
        yield 'instruction: not set; add what the index was built for: "query: " for E5, "" for none'
    if "pooling" not in encoder and config.encoder.backend != "sentence_transformers":
        yield "retrieval_pooling_method: not set; add mean (E5, Contriever), cls (BGE), last or pooler (DPR)"


def _expand_home(config: RetrieverConfig) -> None:
    for key in _FILES:
        value = get(config, key)
        if isinstance(value, str) and value.startswith("~"):
            owner, _, name = key.rpartition(".")
            setattr(get(config, owner) if owner else config, name, str(Path(value).expanduser()))


def _register_resolver() -> None:
    """``${research_plugin_data:NAME}``: a file that comes with the package, as in training recipes."""
    from omegaconf import OmegaConf

    if not OmegaConf.has_resolver("research_plugin_data"):
        OmegaConf.register_new_resolver("research_plugin_data", lambda name: str(_PACKAGE / "data" / name))
