"""Greedy or sampled rollouts of a tiny model in this process, to judge a warm start without a training stack.

Turns follow the rollout of the research dialect; the score is the paper's rule for one-word answers, where F1 is
0 or 1. Training and its validation use the agent loop and ``research_plugin.rewards`` instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from research_plugin.data.tiny_model import prompt_ids
from research_plugin.data.tiny_tokenizer import TURN_END, encode_text
from research_plugin.data.tiny_traces import Search, observation
from research_plugin.data.tiny_world import Question

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

RESPONSE_LENGTH = 384
_ANSWER = re.compile(r"<answer>([^<]*)</answer>" + re.escape(TURN_END) + r"\Z")
_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Scores:
    """Means over questions; ``reward`` is EM where it is right, else 0.1 for a right format."""

    reward: float
    em: float
    format_ok: float
    searches: float
    response_length: float


@dataclass(slots=True)
class _Rollout:
    prompt: list[int]
    response: list[int]
    written: str = ""
    searches: int = 0
    done: bool = False


def evaluate(
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    questions: Sequence[Question],
    search: Search,
    *,
    temperature: float = 0.0,
    response_length: int = RESPONSE_LENGTH,
    on_done: Callable[[int], None] = lambda count: None,
) -> Scores:
    """Answer every question, ``response_length`` tokens each (observations count), and average the scores.

    ``on_done`` gets the number of rollouts that ended in a turn.
    """
    rollouts = [_Rollout(prompt_ids(tokenizer, question.text), []) for question in questions]
    while active := [r for r in rollouts if not r.done]:
        room = max(response_length - len(r.response) for r in active)
        for rollout, new in zip(active, _generate(model, tokenizer, active, room, temperature), strict=True):
            _take(rollout, new[: response_length - len(rollout.response)], tokenizer, search, response_length)
        on_done(sum(r.done for r in active))
    rows = [score(r.written, question.golden_answers) for r, question in zip(rollouts, questions, strict=True)]
    count = len(rollouts)
    return Scores(
        reward=sum(1.0 if em else 0.1 * ok for em, ok in rows) / count,
        em=sum(em for em, _ in rows) / count,
        format_ok=sum(ok for _, ok in rows) / count,
        searches=sum(r.searches for r in rollouts) / count,
        response_length=sum(len(r.response) for r in rollouts) / count,
    )


def score(written: str, golden_answers: Sequence[str]) -> tuple[bool, bool]:
    """Exact match and format of what the policy wrote (observations left out)."""
    found = _ANSWER.search(written)
    boxes = _BOX.findall(found.group(1)) if found else []
    thoughts = written.count("<think>")
    format_ok = (
        bool(boxes)
        and thoughts > 0
        and thoughts == written.count("</think>")
        and written.count("<search>") == written.count("</search>")
        and written.count("<answer>") == written.count("</answer>") == 1
    )
    return bool(boxes) and boxes[-1].strip() in golden_answers, format_ok


def _take(r: _Rollout, new: list[int], tokenizer: Qwen2Tokenizer, search: Search, response_length: int) -> None:
    text = str(tokenizer.decode(new))
    r.response += new
    r.written += text
    r.done = True
    if text.endswith("</search>") and "<search>" in text:
        r.searches += 1
        query = text.removesuffix("</search>").rpartition("<search>")[2].strip()
        r.response = (r.response + encode_text(tokenizer, observation(search(query))))[:response_length]
        r.done = len(r.response) >= response_length


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
