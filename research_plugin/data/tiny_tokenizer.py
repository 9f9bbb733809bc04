"""The tiny model's tokenizer: byte-level BPE, the search tags as single non-special tokens, a ChatML template.

The tags must not be special: a decoder that skips special tokens would drop them, and vLLM would never see the stop
string. Only the three ChatML markers are special.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from research_plugin.data.tiny_words import FILLER_TEXT, NAME_HEADS, NAME_TAILS
from research_plugin.data.tiny_world import RELATIONS

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

VOCAB_SIZE = 1536
MAX_POSITIONS = 1024
PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (PAD, TURN_START, TURN_END)
TAGS = ("<think>", "</think>", "<search>", "</search>", "<result>", "</result>", "<answer>", "</answer>")

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# A name's two halves are counted far above everything else, so their merges rank first and no rarer merge can
# cross the border between them.
_HALF_WEIGHT = 400
_PHRASE_WEIGHT = 20
_PHRASES = (
    r" The final answer is \[ \boxed{ } \]",
    " I need the . The is . I will guess. I do not know. I could not find it. Search again.",
    "What is the of the ?",
    "user\n",
    "assistant\n",
    "system\n",
    "Result: \n\n",
)


def training_text() -> Iterator[str]:
    """The strings that the merges are learnt from; names never appear whole, so no name becomes one token."""
    for _ in range(_HALF_WEIGHT):
        yield from (f" {head}" for head in NAME_HEADS)
        yield from NAME_TAILS
    sentences = [relation.sentence.format(s=",", o=",") for relation in RELATIONS]
    for _ in range(_PHRASE_WEIGHT):
        yield from _PHRASES
        yield from sentences
        yield from (f" the {relation.name} of the {relation.subject}" for relation in RELATIONS)
        yield from (f"{relation.name} of" for relation in RELATIONS)
    yield from FILLER_TEXT.splitlines()


def build_tokenizer() -> Qwen2Tokenizer:
    """Train the tokenizer: exactly ``VOCAB_SIZE`` entries, every space and newline survives encode and decode.

    transformers 5 (``models/auto/tokenization_auto.py``) loads any tokenizer beside a qwen2 config as
    ``Qwen2Tokenizer``, which brings its own text splitting and drops the saved one; so training starts from it.
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    splitting = Qwen2Tokenizer(vocab={PAD: 0}, merges=[]).backend_tokenizer
    backend = Tokenizer(models.BPE())
    backend.normalizer, backend.pre_tokenizer = splitting.normalizer, splitting.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(TAGS),
        min_frequency=1,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(training_text(), trainer=trainer)
    learnt = json.loads(backend.to_str())["model"]
    build: Any = Qwen2Tokenizer
    tokenizer: Qwen2Tokenizer = build(
        vocab=learnt["vocab"],
        merges=[tuple(pair) for pair in learnt["merges"]],
        unk_token=None,
        eos_token=TURN_END,
        pad_token=PAD,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.chat_template = CHAT_TEMPLATE
    if len(tokenizer) != VOCAB_SIZE:
        raise ValueError(f"build_tokenizer: {len(tokenizer)} entries, want {VOCAB_SIZE}; add filler text")
    return tokenizer


def encode_text(tokenizer: Qwen2Tokenizer, text: str) -> list[int]:
    """Ids of a piece of a transcript, without BOS or EOS."""
    return cast("list[int]", tokenizer.encode(text, add_special_tokens=False))
