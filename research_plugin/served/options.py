"""Command-line options of everything that samples a served model, and what they come to."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Mapping
from typing import Any

from research_plugin.config import AgentConfig, PromptConfig, build_config
from research_plugin.errors import ConfigError
from research_plugin.prompts import load_prompt
from research_plugin.search_loop import Search
from research_plugin.served.model import ServedModel
from research_plugin.served.rollouts import ServedRollouts


def add_arguments(parser: argparse.ArgumentParser, *, temperature: float) -> None:
    """Add the options; ``temperature`` is the default of its own."""
    add = parser.add_argument
    add(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings of the rollout, as under actor_rollout_ref.rollout.custom in a recipe: search.url=http://... "
        "protocol=r1_searcher prompt.style=base max_searches=8",
    )
    add("--model-url", required=True, metavar="URL", help="OpenAI-compatible server, such as vLLM or SGLang")
    add("--model", metavar="NAME", help="which of the served models (default: the only one)")
    add("--tokenizer", metavar="PATH", help="folder or name of its tokenizer (default: the model's name)")
    add("--key-env", default="OPENAI_API_KEY", metavar="VAR", help="variable with the server's key, if it wants one")
    add("--text-prompts", action="store_true", help="send prompts as text, to a server that takes no token ids")
    add("--temperature", type=float, default=temperature, help="default: %(default)s")
    add("--top-p", type=float, default=1.0, help="default: %(default)s")
    add("--response-length", type=positive, default=8192, metavar="N", help="tokens, results too (%(default)s)")
    add("--retriever", metavar="URL", help="the retriever's URL, short for search.url=URL")


def add_concurrency(parser: argparse.ArgumentParser) -> None:
    """Add the option of what asks many questions, which `served_model` reads."""
    text = "questions at a time (default: %(default)s)"
    parser.add_argument("--concurrency", type=positive, default=64, metavar="N", help=text)


def served_model(args: argparse.Namespace) -> ServedModel:
    """Return the server that the options name; its key is in an environment variable only."""
    key = os.environ.get(args.key_env)
    return ServedModel(args.model_url, args.model, key=key, connections=args.concurrency)


def served_rollouts(
    args: argparse.Namespace, server: ServedModel, search: Search, settings: AgentConfig
) -> ServedRollouts:
    """Return what makes rollouts of ``server``, as the options say."""
    return ServedRollouts(
        server,
        search,
        settings,
        tokenizer=args.tokenizer or server.name,
        response_length=args.response_length,
        text_prompts=args.text_prompts,
    )


def read_settings(args: argparse.Namespace, *defaults: str) -> dict[str, Any]:
    """Return the ``key=value`` arguments, over those of ``defaults``, as a nested mapping; values are read as YAML."""
    from omegaconf import OmegaConf

    overrides = [*defaults, *args.overrides, *([] if args.retriever is None else [f"search.url={args.retriever}"])]
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"{override!r} is no setting; key=value is allowed, such as search.topk=3")
    return OmegaConf.to_container(OmegaConf.from_dotlist(overrides))  # type: ignore[return-value]


def agent_settings(values: Mapping[str, Any]) -> AgentConfig:
    """Return the settings of the rollout, checked.

    Raises:
        ConfigError: a key is unknown, a value not allowed, or one that only a training has.
    """
    settings = build_config(AgentConfig, values)
    if settings.max_searches_schedule:
        raise ConfigError("max_searches_schedule follows the steps of a training; set max_searches")
    return settings


def prompt_identity(protocol: str, prompt: PromptConfig) -> list[str]:
    """Return style and a hash of the prompt's text: what runs with the same prompt share."""
    text = load_prompt(protocol, prompt.style, prompt.file)
    return [prompt.style, hashlib.sha256(text.encode()).hexdigest()[:16]]


def positive(text: str) -> int:
    """Read an integer from 1 on."""
    if (value := int(text)) < 1:
        raise ValueError
    return value
