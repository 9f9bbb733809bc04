"""Greedy or sampled rollouts of a tiny model in this process, to judge a warm start without a training stack.

The turn loop and the scores are those of training; only generation is plain transformers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from research_plugin.data.tiny_model import prompt_ids
from research_plugin.data.tiny_traces import Search
from research_plugin.data.tiny_world import Question
from research_plugin.document import Document
from research_plugin.protocol import RESEARCH
from research_plugin.rewards import compute_score
from research_plugin.search_loop import Episode, Generation, Limits, run_search_loop
from research_plugin.tokens import HFCodec, end_token_ids

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

RESPONSE_LENGTH = 384


@dataclass(frozen=True, slots=True)
class Scores:
    """Means over questions; ``response_length`` counts tokens, observations included."""

    reward: float
    f1: float
    em: float
    format_ok: float
    num_searches: float
    response_length: float


def evaluate(
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    questions: Sequence[Question],
    search: Search,
    *,
    temperature: float = 0.0,
    response_length: int = RESPONSE_LENGTH,
    on_done: Callable[[int], object] = lambda count: None,
) -> Scores:
    """Answer every question, ``response_length`` tokens each (observations count), and average the scores.

    ``on_done`` is called with 1 whenever a rollout ended.
    """
    codec = HFCodec(tokenizer, end_token_ids(tokenizer, model.generation_config))
    turns = _Turns(model, codec, temperature)

    async def find(query: str) -> Sequence[Document]:
        return search(query)

    async def answer(question: Question) -> Episode:
        episode = await run_search_loop(
            prompt_ids(tokenizer, question.text),
            generate=turns.generate,
            search=find,
            codec=codec,
            dialect=RESEARCH,
            limits=Limits(response_length),
        )
        on_done(1)
        return episode

    async def answer_all() -> list[Episode]:
        return await asyncio.gather(*map(answer, questions))

    rollouts = [episode.rollout for episode in asyncio.run(answer_all())]
    rows = [
        compute_score("tiny_world", "", q.golden_answers, {"segments": r.segments, "stop_reason": r.stop_reason})
        for r, q in zip(rollouts, questions, strict=True)
    ]

    def mean(key: str) -> float:
        return sum(float(row[key]) for row in rows) / len(rows)

    length = sum(len(r.response_ids) for r in rollouts) / len(rollouts)
    return Scores(mean("score"), mean("f1"), mean("em"), mean("format_ok"), mean("num_searches"), length)


class _Turns:
    """Generates the next turn of all rollouts that wait for one, together, ended by ``</search>`` or an end token."""

    def __init__(self, model: Qwen2ForCausalLM, codec: HFCodec, temperature: float) -> None:
        self.model: Any = model
        self.pad = int(codec.tokenizer.pad_token_id)
        self.stops = [int(codec.tokenizer.convert_tokens_to_ids("</search>")), *sorted(codec.end_ids)]
        self.sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            self.sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        self.waiting: list[tuple[list[int], int, asyncio.Future[list[int]]]] = []

    async def generate(self, context: list[int], max_tokens: int) -> Generation:
        """The loop's `Generate`; every rollout that asks before the event loop's next round is in the same batch."""
        loop = asyncio.get_running_loop()
        if not self.waiting:
            loop.call_soon(self._run)
        turn: asyncio.Future[list[int]] = loop.create_future()
        self.waiting.append((context, max_tokens, turn))
        return Generation(await turn)

    def _run(self) -> None:
        import torch

        waiting, self.waiting = self.waiting, []
        width = max(len(context) for context, _, _ in waiting)
        ids = torch.tensor([[self.pad] * (width - len(context)) + context for context, _, _ in waiting])
        mask = torch.tensor([[0] * (width - len(context)) + [1] * len(context) for context, _, _ in waiting])
        with torch.no_grad():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max(room for _, room, _ in waiting),
                eos_token_id=self.stops,
                pad_token_id=self.pad,
                **self.sampling,
            )
        for (_, room, turn), row in zip(waiting, out[:, width:].tolist(), strict=True):
            turn.set_result(self._until_stop(row[:room]))

    def _until_stop(self, ids: list[int]) -> list[int]:
        ends = [at for at, token in enumerate(ids) if token in self.stops]
        return ids[: ends[0] + 1] if ends else ids
