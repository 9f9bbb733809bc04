"""Checks the model's folder: end tokens, vocabulary, chat template, context length, and prompts of real questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from research_plugin.config import AgentConfig
from research_plugin.errors import ConfigError
from research_plugin.finding import FAIL, OK, WARNING, Finding
from research_plugin.protocol import get_dialect
from research_plugin.tokens import HFCodec, build_prompt_ids, end_token_ids

_KEY = "actor_rollout_ref.model.path"


def check_model(config: Mapping[str, Any], agent: AgentConfig | None, questions: Sequence[str]) -> list[Finding]:
    """Load config and tokenizer, no weights; a hub name whose files are not here is downloaded.

    Args:
        config: The composed training config.
        agent: The plugin's settings; None leaves out what depends on the prompt.
        questions: Training questions to build prompts of.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    model = config["actor_rollout_ref"]["model"]
    path, trust = str(model["path"]), bool(model.get("trust_remote_code"))
    try:
        settings = AutoConfig.from_pretrained(path, trust_remote_code=trust)
        tokenizer = AutoTokenizer.from_pretrained(model.get("tokenizer_path") or path, trust_remote_code=trust)
    except (OSError, ValueError) as error:
        text = f"{_KEY}={path} cannot be loaded here ({str(error)[:200]}); give a folder, or download it first"
        return [Finding("model", FAIL, text)]
    try:
        generation = GenerationConfig.from_pretrained(path)
    except OSError:
        generation = None
    try:
        codec = HFCodec(tokenizer, end_token_ids(tokenizer, generation))
    except ConfigError as error:
        return [Finding("model", FAIL, f"{_KEY}={path}: {error}")]
    findings = [
        *_vocabulary(codec, settings),
        *_length(config, settings),
        *_end_tokens(codec, generation),
        *(_prompts(config, agent, codec, questions) if agent else ()),
    ]
    ends = ", ".join(sorted(codec.decode([token]) for token in codec.end_ids))
    return findings or [Finding("model", OK, f"{path}: {settings.model_type}, a response ends with {ends}")]


def _vocabulary(codec: HFCodec, settings: Any) -> Iterator[Finding]:
    rows = getattr(settings, "vocab_size", None)
    largest = max(*codec.tokenizer.get_vocab().values(), *codec.end_ids)
    if rows is not None and largest >= rows:
        text = f"the tokenizer's ids go up to {largest}, the model has {rows} embeddings: they do not belong together"
        yield Finding("model", FAIL, text)


def _length(config: Mapping[str, Any], settings: Any) -> Iterator[Finding]:
    """Compare with the model's own positions, unless a rope scaling stretches them."""
    override = config["actor_rollout_ref"]["model"].get("override_config") or {}
    positions = override.get("max_position_embeddings") or getattr(settings, "max_position_embeddings", None)
    rope = getattr(settings, "rope_parameters", None) or {}
    if positions is None or rope.get("rope_type", "default") != "default" or "rope_scaling" in override:
        return
    wanted = {
        "data.max_prompt_length + data.max_response_length": config["data"]["max_prompt_length"]
        + config["data"]["max_response_length"],
        "actor_rollout_ref.rollout.max_model_len": config["actor_rollout_ref"]["rollout"].get("max_model_len") or 0,
    }
    for key, length in wanted.items():
        if length > positions:
            yield Finding("model", FAIL, f"{key} = {length} exceeds the model's max_position_embeddings={positions}")


def _end_tokens(codec: HFCodec, generation: Any) -> Iterator[Finding]:
    """Compare the tokenizer's eos with generation_config's: other tools know only one of them."""
    own = codec.tokenizer.eos_token_id
    listed = end_token_ids(object(), generation) if getattr(generation, "eos_token_id", None) is not None else {own}
    if own is None or own not in listed:
        name = "none" if own is None else f"{own} ({codec.decode([own])})"
        text = (
            f"eos differs: the tokenizer has {name}, generation_config.json {sorted(listed)}; the agent loop takes all "
            "of them as the end, other tools may not: make them agree"
        )
        yield Finding("eos", WARNING, text)


def _prompts(
    config: Mapping[str, Any], agent: AgentConfig, codec: HFCodec, questions: Sequence[str]
) -> Iterator[Finding]:
    """Build prompts as the agent loop does; too long ones would be left out."""
    template = config["data"].get("apply_chat_template_kwargs") or {}
    style, prefill = agent.prompt.style, get_dialect(agent.protocol).prefill
    try:
        lengths = [
            len(
                build_prompt_ids(
                    codec,
                    question,
                    protocol=agent.protocol,
                    style=style,
                    file=agent.prompt.file,
                    prefill=prefill,
                    **template,
                )
            )
            for question in questions or ["Who wrote the first encyclopedia?"]
        ]
    except ConfigError as error:
        yield Finding("prompt", FAIL, str(error))
        return
    allowed = config["data"]["max_prompt_length"]
    long = [length for length in lengths if length > allowed]
    if long:
        text = (
            f"{len(long)} of the first {len(lengths)} prompts are longer than data.max_prompt_length={allowed} (up to "
            f"{max(long)} tokens) and would be left out of training; raise it"
        )
        yield Finding("prompt", FAIL if len(long) == len(lengths) else WARNING, text)
    if style != "base":
        yield from _template_end(codec, template)


def _template_end(codec: HFCodec, template: Mapping[str, Any]) -> Iterator[Finding]:
    """See what the chat template writes after an answer: a policy that learnt it must be stopped by it."""
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "the answer is here"}]
    text = str(codec.tokenizer.apply_chat_template(messages, tokenize=False, **template))
    tail = codec.encode_prompt(text.rpartition("the answer is here")[2].strip())
    if tail and tail[0] not in codec.end_ids:
        text = (
            f"the chat template ends an answer with {codec.decode(tail[:1])}, which ends no response of this model "
            f"(eos: {sorted(codec.end_ids)}): rollouts would run on. A base model? Then custom.prompt.style=base; "
            f"or add {tail[0]} to eos_token_id in generation_config.json"
        )
        yield Finding("eos", WARNING, text)
