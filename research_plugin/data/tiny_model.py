"""The tiny Qwen2 model and its supervised warm start, resumable and reproducible step by step.

The batch of step ``n`` depends on the seed and ``n`` alone, so a run that was stopped goes on as if it had not been.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from research_plugin.data.tiny_tokenizer import MAX_POSITIONS, PAD, TURN_END, VOCAB_SIZE, encode_text
from research_plugin.data.tiny_traces import Faults, bm25_search, rename, write_trace
from research_plugin.data.tiny_world import HELD_OUT, TRAIN, Question, World, all_names, ask, chains
from research_plugin.protocol import Segment

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

IGNORED = -100
SAVE_EVERY = 20


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Settings of the supervised run. ``easy_steps`` come first and hold one-hop questions only."""

    steps: int = 800
    easy_steps: int = 300
    batch_size: int = 16
    hops: tuple[int, ...] = (1, 2, 2, 3, 3)
    muon_lr: float = 0.02
    adamw_lr: float = 3e-3
    final_lr_share: float = 0.1
    seed: int = 0
    faults: Faults = field(default_factory=Faults)


def build_model(tokenizer: Qwen2Tokenizer, seed: int = 0) -> Qwen2ForCausalLM:
    """A fresh Qwen2 of 640,640 parameters: width 128, 3 layers, 4 query and 2 key-value heads, tied embeddings."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    pad, end = cast("list[int]", tokenizer.convert_tokens_to_ids([PAD, TURN_END]))
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        dtype="float32",
    )
    torch.manual_seed(seed)
    make_model, make_generation_config = cast("Any", Qwen2ForCausalLM), cast("Any", GenerationConfig)
    model: Qwen2ForCausalLM = make_model(config)
    model.generation_config = make_generation_config(bos_token_id=None, eos_token_id=[end, pad], pad_token_id=pad)
    return model


def save_model(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, folder: Path) -> None:
    """Write a Hugging Face folder: float32 weights, configs with both ending ids, tokenizer and chat template."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prompt_ids(tokenizer: Qwen2Tokenizer, question: str) -> list[int]:
    """The prompt as the rollout builds it: the bare question as the user message, no system message."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    return encode_text(tokenizer, str(text))


def trace_ids(tokenizer: Qwen2Tokenizer, question: str, segments: Iterable[Segment]) -> tuple[list[int], list[int]]:
    """Ids and labels of a transcript, equally long; prompt and observations carry no label.

    Each segment is encoded on its own, as in a rollout: tokens never span the border to an observation.
    """
    ids = prompt_ids(tokenizer, question)
    labels = [IGNORED] * len(ids)
    for segment in segments:
        piece = encode_text(tokenizer, segment.text)
        ids += piece
        labels += piece if segment.by_policy else [IGNORED] * len(piece)
    return ids, labels


class TraceBatches:
    """Batches of fresh transcripts about the training half of the world, addressed by step.

    Names change from one to the next and never are those of held-out entities.
    """

    def __init__(self, world: World, tokenizer: Qwen2Tokenizer, settings: WarmStart) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._search = bm25_search(world.corpus)
        self._questions: dict[int, list[Question]] = {
            hops: [ask(chain) for chain in chains(world, TRAIN, hops)] for hops in set(settings.hops) | {1}
        }
        self._guesses = world.names(TRAIN)
        held_out = set(world.names(HELD_OUT))
        self._names = held_out.union(self._guesses)
        self._new_names = [name for name in all_names() if name not in held_out]

    def at(self, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """One step's batch in two halves, short and long rows apart: padded ids and labels, (rows, longest) each."""
        rng = random.Random(f"warm-start-{self._settings.seed}-{step}")
        rows = [self._row(rng, step < self._settings.easy_steps) for _ in range(self._settings.batch_size)]
        rows.sort(key=lambda row: len(row[0]))
        middle = (len(rows) + 1) // 2
        return [self._pad(half) for half in (rows[:middle], rows[middle:]) if half]

    def _pad(self, rows: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        longest = len(rows[-1][0])
        pad = int(cast("int", self._tokenizer.pad_token_id))
        return (
            torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids, _ in rows]),
            torch.tensor([[*labels, *[IGNORED] * (longest - len(labels))] for _, labels in rows]),
        )

    def _row(self, rng: random.Random, easy: bool) -> tuple[list[int], list[int]]:
        question = rng.choice(self._questions[1 if easy else rng.choice(self._settings.hops)])
        segments = write_trace(question, self._search, rng, self._settings.faults, self._guesses)
        text, segments = rename(question.text, segments, self._names, self._new_names, rng)
        return trace_ids(self._tokenizer, text, segments)


def train(
    model: Qwen2ForCausalLM,
    batches: TraceBatches,
    settings: WarmStart,
    checkpoint: Path,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Run the warm start in place, from ``checkpoint`` when it belongs to the same settings.

    Saves every ``SAVE_EVERY`` steps and after the last: an interrupt costs at most that much. ``on_step`` gets the
    number of steps done and the loss of the step, or ``nan`` once after a resume.
    """
    import torch

    optimizers = _optimizers(model, settings)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda n: _lr_share(n, settings)) for o in optimizers]
    steppers: list[Any] = [*optimizers, *schedules]
    stateful: list[Any] = [model, *steppers]
    done = _load(checkpoint, settings, stateful)
    if done:
        on_step(done, float("nan"))
    model.train()
    while done < settings.steps:
        loss = _backward(model, batches.at(done))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in steppers:
            part.step()
        model.zero_grad(set_to_none=True)
        done += 1
        if done % SAVE_EVERY == 0 or done == settings.steps:
            _save(checkpoint, settings, stateful, done)
        on_step(done, loss)
    cast("Any", model).eval()


def _backward(model: Qwen2ForCausalLM, halves: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Add the gradient of the mean loss over all labelled tokens and return it; logits are made for those only."""
    import torch

    count = sum(int((labels[:, 1:] != IGNORED).sum()) for _, labels in halves)
    total = 0.0
    for ids, labels in halves:
        learnt = labels[:, 1:] != IGNORED
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][learnt]
        logits = model.lm_head(states)
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:][learnt], reduction="sum") / count
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def _optimizers(model: Qwen2ForCausalLM, settings: WarmStart) -> list[torch.optim.Optimizer]:
    import torch

    from research_plugin.data.tiny_muon import Muon

    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    chosen = {id(p) for p in hidden}
    other = [p for p in model.parameters() if id(p) not in chosen]
    return [Muon(hidden, settings.muon_lr), torch.optim.AdamW(other, lr=settings.adamw_lr, weight_decay=0.0)]


def _lr_share(step: int, settings: WarmStart) -> float:
    """Constant for the first half, then linear down to ``final_lr_share``."""
    left = (settings.steps - step) / max(1, settings.steps / 2)
    return max(settings.final_lr_share, min(1.0, left))


def _save(path: Path, settings: WarmStart, stateful: Sequence[Any], done: int) -> None:
    import torch

    draft = path.with_suffix(".part")
    torch.save({"settings": asdict(settings), "done": done, "parts": [s.state_dict() for s in stateful]}, draft)
    draft.replace(path)


def _load(path: Path, settings: WarmStart, stateful: Sequence[Any]) -> int:
    import torch

    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    if saved["settings"] != asdict(settings):
        return 0
    for part, state in zip(stateful, saved["parts"], strict=True):
        part.load_state_dict(state)
    return int(saved["done"])
