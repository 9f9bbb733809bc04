"""Whole rollouts of a served model: prompts, turn loop and budgets of training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from research_plugin.config import AgentConfig
from research_plugin.errors import ConfigError, ModelError
from research_plugin.protocol import get_dialect
from research_plugin.rollout import StopReason
from research_plugin.search_loop import Episode, Limits, Search, run_search_loop
from research_plugin.served.model import ServedModel
from research_plugin.served.turns import served_turns
from research_plugin.tokens import HFCodec, build_prompt_ids, end_token_ids


class ServedRollouts:
    """Call it with a question to get its rollout.

    Args:
        tokenizer: Folder or name.
        response_length: Most tokens of a response, observations included.
    """

    def __init__(
        self,
        server: ServedModel,
        search: Search,
        settings: AgentConfig,
        *,
        tokenizer: str,
        response_length: int,
        text_prompts: bool = False,
    ) -> None:
        self._server, self._search, self._settings = server, search, settings
        self._dialect = get_dialect(settings.protocol)
        self._codec = load_codec(tokenizer)
        self._text_prompts = text_prompts
        self._limits = Limits(
            response_length,
            server.max_model_len,
            settings.max_searches,
            settings.when_spent == "notice",
            settings.max_observation_tokens,
            settings.max_turn_tokens,
        )

    async def __call__(self, question: str, **sampling: Any) -> Episode:
        """Return one finished rollout; ``sampling`` is that of `served_turns`.

        Raises:
            SearchError: a search failed; that says nothing about the question.
            ModelError: the server failed, or gave a request up.
        """
        episode = await run_search_loop(
            self._prompt_ids(question),
            generate=served_turns(
                self._server, self._codec, self._dialect, text_prompts=self._text_prompts, **sampling
            ),
            search=self._search,
            codec=self._codec,
            dialect=self._dialect,
            limits=self._limits,
        )
        reason = episode.rollout.stop_reason
        assert reason is not None
        if reason.is_fault:
            raise episode.error or ModelError(f"the server gave a request up ({StopReason.ABORTED.value})")
        return episode

    def check_context(self, questions: Iterable[str]) -> None:
        """Raise ConfigError when the longest prompt and a whole response do not fit into the model's context."""
        context, response = self._server.max_model_len, self._limits.response_length
        # Tokenising all of a large dataset would take long, and the longest texts have the most tokens.
        longest = max(len(self._prompt_ids(question)) for question in sorted(questions, key=len)[-100:])
        if context is not None and longest + response > context:
            raise ConfigError(
                f"--response-length {response} and the longest prompt, {longest} tokens, do not fit into the {context} "
                f"tokens of {self._server.name}; serve it with a longer context, or take --response-length "
                f"{max(context - longest, 0)} or less"
            )

    def _prompt_ids(self, question: str) -> list[int]:
        return build_prompt_ids(
            self._codec,
            question,
            protocol=self._settings.protocol,
            style=self._settings.prompt.style,
            file=self._settings.prompt.file,
            prefill=self._dialect.prefill,
        )


def load_codec(tokenizer: str) -> HFCodec:
    """Load the tokenizer and, where there is one, the generation config with the model's end tokens."""
    from transformers import AutoTokenizer, GenerationConfig

    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no tokenizer in {tokenizer!r} ({error}); give its folder with --tokenizer") from error
    try:
        generation = GenerationConfig.from_pretrained(tokenizer)
    except OSError:
        generation = None
    return HFCodec(loaded, end_token_ids(loaded, generation))
