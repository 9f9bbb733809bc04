"""Greedy or sampled rollouts of a tiny model in this process, to judge a warm start without a training stack.

Turns, observations and scores are those of the research dialect; only generation is plain transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from research_plugin.data.tiny_model import prompt_ids
from research_plugin.data.tiny_tokenizer import TURN_END, encode_text
from research_plugin.data.tiny_traces import Search
from research_plugin.data.tiny_world import Question
from research_plugin.protocol import RESEARCH, Segment, parse_query
from research_plugin.rewards import compute_score

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


@dataclass(slots=True)
class _Rollout:
    prompt: list[int]
    response: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    stop_reason: str = ""


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

    ``on_done`` gets the number of rollouts that ended in a turn.
    """
    rollouts = [_Rollout(prompt_ids(tokenizer, question.text)) for question in questions]
    while active := [r for r in rollouts if not r.stop_reason]:
        room = max(response_length - len(r.response) for r in active)
        for rollout, new in zip(active, _generate(model, tokenizer, active, room, temperature), strict=True):
            _take(rollout, new[: response_length - len(rollout.response)], tokenizer, search, response_length)
        on_done(sum(bool(r.stop_reason) for r in active))
    rows = [
        compute_score("tiny_world", "", q.golden_answers, {"segments": r.segments, "stop_reason": r.stop_reason})
        for r, q in zip(rollouts, questions, strict=True)
    ]

    def mean(key: str) -> float:
        return sum(float(row[key]) for row in rows) / len(rows)

    length = sum(len(r.response) for r in rollouts) / len(rollouts)
    return Scores(mean("score"), mean("f1"), mean("em"), mean("format_ok"), mean("num_searches"), length)


def _take(r: _Rollout, new: list[int], tokenizer: Qwen2Tokenizer, search: Search, response_length: int) -> None:
    """Append a generated segment and, after a search, its observation; set the stop reason when the rollout ended."""
    text = str(tokenizer.decode(new))
    r.response += new
    r.segments.append(Segment(text, True))
    query = parse_query(text)
    if text.endswith(TURN_END):
        r.stop_reason = "answered"
    elif query is not None:
        observation = (
            RESEARCH.format_observation(search(query)) if query else RESEARCH.wrap(RESEARCH.empty_query_notice)
        )
        r.segments.append(Segment(observation, False))
        r.response = (r.response + encode_text(tokenizer, observation))[:response_length]
    if not r.stop_reason and len(r.response) >= response_length:
        r.stop_reason = "max_length"


def _generate(
    model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, rollouts: Sequence[_Rollout], room: int, temperature: float
) -> list[list[int]]:
    """The next segment of each rollout, ended by ``</search>`` or the end of the turn (kept) or by ``room``."""
    import torch

    stops = [int(i) for i in cast("list[int]", tokenizer.convert_tokens_to_ids(["</search>", TURN_END]))]
    contexts = [r.prompt + r.response for r in rollouts]
    width = max(map(len, contexts))
    pad = int(cast("int", tokenizer.pad_token_id))
    ids = torch.tensor([[pad] * (width - len(c)) + c for c in contexts])
    mask = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in contexts])
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    with torch.no_grad():
        out: Any = cast("Any", model).generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=room, eos_token_id=stops, pad_token_id=pad, **sampling
        )
    return [_until(row, stops) for row in out[:, width:].tolist()]


def _until(ids: list[int], stops: Sequence[int]) -> list[int]:
    ends = [at for at, token in enumerate(ids) if token in stops]
    return ids[: ends[0] + 1] if ends else ids
