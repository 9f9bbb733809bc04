"""A Hugging Face tokenizer seen through the loop's `Codec`, and prompts as token ids. Imports neither veRL nor it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from research_plugin.errors import ConfigError
from research_plugin.prompts import chat_messages, fill_base, load_prompt

_BREAK = "\ufdd0"
"""A Unicode noncharacter: marks where text is cut before it is encoded, and appears in no prompt."""


def end_token_ids(tokenizer: Any, generation_config: Any = None) -> frozenset[int]:
    """Return every token id that ends a turn: the tokenizer's eos and all of the model's generation_config eos ids.

    Instruct models end with one and base models with the other (Qwen2.5: 151645 ``<|im_end|>``, 151643
    ``<|endoftext|>``); both count as finished.
    """
    ids: set[int] = set()
    for source in (tokenizer, generation_config):
        value = getattr(source, "eos_token_id", None)
        if isinstance(value, int):
            ids.add(value)
        elif isinstance(value, Iterable):
            ids.update(int(item) for item in value)
    if not ids:
        raise ConfigError("neither the tokenizer nor generation_config.json names an eos token: no rollout could end")
    return frozenset(ids)


class HFCodec:
    """Encode inserted text without special tokens; decode sampled ids with them."""

    def __init__(self, tokenizer: Any, end_ids: frozenset[int]) -> None:
        """Wrap ``tokenizer``; ``end_ids`` as from `end_token_ids`."""
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        # Llama 3 lists few of its special tokens as such; a model may end its turns with one that is not special.
        added = {token for token, known in getattr(tokenizer, "added_tokens_decoder", {}).items() if known.special}
        self.special_ids = frozenset(tokenizer.all_special_ids) | end_ids | added
        strings = {str(token) for token in tokenizer.all_special_tokens} | {self.decode([i]) for i in self.special_ids}
        longest_first = sorted(strings - {""}, key=len, reverse=True)
        self._special_text = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        # Its text may be Unicode-normalised first: NFC joins at most four characters into one.
        self.longest_token = 4 * max(map(len, tokenizer.get_vocab()))

    def encode(self, text: str) -> list[int]:
        """Encode ``text`` on its own: no BOS, and "<|im_end|>" inside it becomes ordinary tokens.

        ``split_special_tokens`` does that in fast tokenizers; one that ignores the argument is given each
        special-token string in two pieces.
        """
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids if self.special_ids.isdisjoint(ids) else self.encode_prompt(self.break_special(text))

    def break_special(self, text: str) -> str:
        """Return ``text`` so that `encode_prompt` reads the special-token strings in it as plain text."""
        if self._special_text is None:
            return text
        return self._special_text.sub(lambda found: found.group()[0] + _BREAK + found.group()[1:], text)

    def encode_prompt(self, text: str, *, bos: bool = False) -> list[int]:
        """Encode text with its special tokens, except those that `break_special` took apart.

        A broken string is encoded in two pieces, which no tokenizer can join again. ``bos`` asks for what the tokenizer
        itself puts before a text.
        """
        first, *others = text.split(_BREAK)
        ids = list(self.tokenizer.encode(first, add_special_tokens=bos)) if first or bos else []
        for piece in others:
            ids += self.tokenizer.encode(piece, add_special_tokens=False) if piece else []
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decode exactly: special tokens kept, white space untouched."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def build_prompt_ids(
    codec: HFCodec,
    question: str,
    *,
    protocol: str,
    style: str,
    file: str | None = None,
    prefill: str = "",
    **template_kwargs: Any,
) -> list[int]:
    """Return the prompt of one question as token ids, ``prefill`` (text the policy goes on from) at its end.

    ``base`` is encoded as plain text, needs no chat template and gets the tokenizer's own BOS if it has one;
    ``instruct`` and ``question`` go through the chat template with the generation prompt. A special-token string in the
    question is plain text: it can end no turn.
    """
    text = load_prompt(protocol, style, file)
    question = codec.break_special(question)
    if style == "base":
        # A blank between them, as in running text; the chat template's generation prompt ends with a line break.
        return codec.encode_prompt(fill_base(text, question) + (f" {prefill}" if prefill else ""), bos=True)
    tokenizer = codec.tokenizer
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            f"prompt.style={style} needs a chat template and this tokenizer has none; use prompt.style=base"
        )
    rendered = tokenizer.apply_chat_template(
        chat_messages(text, question), add_generation_prompt=True, tokenize=False, **template_kwargs
    )
    return codec.encode_prompt(rendered + prefill)
