"""The search rollout as a veRL agent loop: adapts `run_search_loop` to veRL's engine, tokenizer and output type.

veRL 0.9.1 builds one loop object per sample (agent_loop.py, _run_agent_loop), so everything worth keeping is cached per
process here. Recipes name the class in agent_loops.yaml; nothing else imports this module.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from research_plugin.config import AgentConfig, build_config
from research_plugin.document import Document
from research_plugin.errors import DataError
from research_plugin.metrics import rollout_metrics
from research_plugin.protocol import Dialect, get_dialect
from research_plugin.rewards import golden_answers
from research_plugin.search.client import SearchReply, shared_client
from research_plugin.search_loop import Episode, Generation, Limits, run_search_loop
from research_plugin.tokens import HFCodec, build_prompt_ids, end_token_ids

logger = logging.getLogger(__name__)


@register("research_search")
class SearchAgentLoop(AgentLoopBase):
    """Think, search, read, answer in one assistant turn.

    Settings: ``actor_rollout_ref.rollout.custom`` (`AgentConfig`). Dataset rows: the last user message of
    ``raw_prompt`` is the question; ``reward_model.ground_truth`` is read for a metric only.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shared = _shared(self.config, self.tokenizer)
        self.settings, self.codec = self.shared.settings, self.shared.codec

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Run one rollout.

        Returns:
            The rollout; or an empty list for one that must not be trained on: a search that failed, an aborted request,
            a prompt that does not fit or leaves the policy no room for a single token. veRL then leaves it out of the
            batch, so that it takes no part in its group's mean and spread either, and pads the batch itself
            (trainer/ppo/padding_utils.py).
        """
        # 1. the prompt
        question = row_question(kwargs["raw_prompt"])
        prompt = self.settings.prompt
        prompt_ids = build_prompt_ids(
            self.codec,
            question,
            protocol=self.settings.protocol,
            style=prompt.style,
            file=prompt.file,
            prefill=self.shared.dialect.prefill,
            **self.apply_chat_template_kwargs,
        )
        if len(prompt_ids) > self.shared.prompt_length:
            logger.warning(
                "left out: the prompt has %d tokens, data.max_prompt_length allows %d (question: %.80r)",
                len(prompt_ids),
                self.shared.prompt_length,
                question,
            )
            return await self._leave_out("no_room", kwargs)

        # 2. the turns
        engine = _Engine(self.server_manager, sampling_params, self.codec, self.shared.dialect.stop)
        client = shared_client(self.settings.search)
        replies: list[SearchReply] = []

        async def search(query: str) -> tuple[Document, ...]:
            replies.append(await client.search(query))
            return replies[-1].documents

        episode = await run_search_loop(
            prompt_ids,
            generate=engine.generate,
            search=search,
            codec=self.codec,
            dialect=self.shared.dialect,
            limits=self._limits(kwargs),
        )

        # 3. what veRL gets
        reason = episode.rollout.stop_reason
        if reason.is_fault:
            logger.error("left out of training: %s (%s)", reason.value, episode.error)
            return await self._leave_out(reason.value, kwargs)
        if not episode.rollout.generated_tokens:
            # veRL can hold neither an empty response nor one without a weight version (trainer_base.py,
            # _compute_metrics), and its token mean is 0/0 for a batch without policy tokens.
            logger.warning("left out: no room for a single token after a prompt of %d tokens", len(prompt_ids))
            return await self._leave_out("no_room", kwargs)
        return self._output(episode, engine, replies, kwargs)

    def _limits(self, row: dict[str, Any]) -> Limits:
        """Return the limits of the training step that ``row`` was drawn in (agent_loop_tq.py, _run_prompt)."""
        if not self.settings.max_searches_schedule:
            return self.shared.limits
        return replace(self.shared.limits, max_searches=self.settings.search_limit(int(row["global_steps"])))

    async def _leave_out(self, reason: str, row: dict[str, Any]) -> list[AgentLoopOutput]:
        """Have the trainer count the rollout (one of `metrics.LEFT_OUT`); return what veRL takes for no output."""
        if self.config.transfer_queue.enable:  # the V1 trainers turn it on
            from research_plugin.verl_ext import left_out

            await left_out.record(row["uid"], row["session_id"], reason)
        return []

    def _output(
        self, episode: Episode, engine: _Engine, replies: list[SearchReply], row: dict[str, Any]
    ) -> AgentLoopOutput:
        rollout = episode.rollout
        mask = rollout.response_mask if self.settings.mask_observations else [1] * len(rollout.response_mask)
        return AgentLoopOutput(
            prompt_ids=rollout.prompt_ids,
            response_ids=rollout.response_ids,
            response_mask=mask,
            response_logprobs=rollout.log_probs if rollout.has_log_probs else None,
            num_turns=episode.turns,
            metrics=AgentLoopMetrics(
                generate_sequences=engine.seconds,
                tool_calls=sum(search.seconds for search in episode.searches),
                num_preempted=engine.num_preempted,
            ),
            extra_fields={
                **engine.extra_fields,
                # veRL's own loops fill these; batches from several loops must have the same keys.
                "turn_scores": [],
                "tool_rewards": [],
                "stop_reason": rollout.stop_reason.value,
                "segments": [[segment.text, segment.by_policy] for segment in rollout.segments],
                "queries": [search.query for search in episode.searches],
                "documents": [
                    [{"id": document.id, "contents": document.contents} for document in search.documents]
                    for search in episode.searches
                ],
                "search_latencies": [reply.seconds for reply in replies if not reply.cached],
                "num_cached_searches": float(sum(reply.cached for reply in replies)),
                **rollout_metrics(episode, row_golden_answers(row), self.shared.dialect.result_open),
            },
        )


class _Engine:
    """veRL's LLM server as the loop's `Generate`, for one rollout: one request id, so that its prefix cache is hit."""

    def __init__(self, server: Any, sampling_params: dict[str, Any], codec: HFCodec, stop: tuple[str, ...]) -> None:
        self.server = server
        self.request_id = uuid4().hex
        self.sampling_params = {
            **sampling_params,
            "stop": list(stop),
            "stop_token_ids": sorted(codec.end_ids),
            # The engine looks for stop strings in its text: a tag that is a special token has to be in there.
            "skip_special_tokens": False,
        }
        self.extra_fields: dict[str, Any] = {}
        self.num_preempted = -1
        self.seconds = 0.0

    async def generate(self, context_ids: list[int], max_tokens: int) -> Generation:
        """Sample one turn of at most ``max_tokens`` tokens."""
        started = time.monotonic()
        try:
            # A fresh dict each turn: vllm_async_server.generate pops keys from the one it gets.
            output = await self.server.generate(
                request_id=self.request_id,
                prompt_ids=context_ids,
                sampling_params={**self.sampling_params, "max_tokens": max_tokens},
            )
        except Exception as error:
            # veRL (vllm_async_server.py) and vLLM both say "maximum context length"; the sample is cut short there,
            # its siblings go on.
            if "maximum context length" not in str(error):
                raise
            logger.warning("the engine had no room for another turn: %s", error)
            return Generation([], [])
        self.seconds += time.monotonic() - started
        self._merge(output)
        # veRL's resuming client (llm_server.py, FullyAsyncLLMServerClient) gives [] where log-probs were not asked for;
        # vLLM's server says "aborted", SGLang's "abort".
        aborted = output.stop_reason in ("aborted", "abort")
        return Generation(output.token_ids, output.log_probs or None, aborted=aborted)

    def _merge(self, output: Any) -> None:
        """Keep the oldest and the newest weight version that wrote a turn (veRL's staleness control reads both)."""
        oldest = self.extra_fields.get("min_global_steps")
        self.extra_fields = {**self.extra_fields, **output.extra_fields}
        if oldest is not None:
            self.extra_fields["min_global_steps"] = oldest
        if output.num_preempted is not None:
            self.num_preempted = max(self.num_preempted, 0) + output.num_preempted


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all rollouts of a worker share: OmegaConf takes up to a millisecond to read one interpolated key."""

    settings: AgentConfig
    codec: HFCodec
    dialect: Dialect
    limits: Limits
    prompt_length: int


_known: dict[tuple[int, int], tuple[Any, Any, _Shared]] = {}


def _shared(config: Any, tokenizer: Any) -> _Shared:
    """Build it once per config and tokenizer object; both are kept alive so that their ids stay their own."""
    key = (id(config), id(tokenizer))
    if key not in _known:
        _known[key] = (config, tokenizer, _build_shared(config, tokenizer))
    return _known[key][2]


def _build_shared(config: Any, tokenizer: Any) -> _Shared:
    rollout = config.actor_rollout_ref.rollout
    custom = rollout.get("custom")
    settings = build_config(AgentConfig, None if custom is None else OmegaConf.to_container(custom, resolve=True))  # type: ignore[arg-type]
    return _Shared(
        settings=settings,
        codec=HFCodec(tokenizer, end_token_ids(tokenizer, _generation(config.actor_rollout_ref.model.path))),
        dialect=get_dialect(settings.protocol),
        limits=Limits(
            response_length=rollout.response_length,
            max_model_len=rollout.max_model_len,
            max_searches=settings.max_searches,
            notice_when_spent=settings.when_spent == "notice",
            max_observation_tokens=settings.max_observation_tokens,
            max_turn_tokens=settings.max_turn_tokens,
        ),
        prompt_length=rollout.prompt_length,
    )


def _generation(model_path: str) -> Any:
    """Return the model's generation config, or None for a model folder that has none."""
    from transformers import GenerationConfig
    from verl.utils.fs import copy_to_local

    try:
        return GenerationConfig.from_pretrained(copy_to_local(model_path))
    except OSError:
        return None


def row_question(messages: Any) -> str:
    """Return the last user message's text.

    Raises:
        DataError: the row has no user message.
    """
    for message in reversed(list(messages)):
        if message["role"] == "user":
            return str(message["content"])
    raise DataError(
        f"the row's prompt has no user message: {messages!r}; expected [{{'role': 'user', 'content': ...}}]"
    )


def row_golden_answers(row: dict[str, Any]) -> list[str]:
    """Return the row's golden answers; none for a row that the reward will refuse."""
    try:
        return list(golden_answers(row["reward_model"]["ground_truth"]))
    except (KeyError, TypeError, DataError):
        return []  # the reward reports a row without gold answers; a metric must not stop the rollout before it
