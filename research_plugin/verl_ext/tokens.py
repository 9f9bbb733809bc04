"""A Hugging Face tokenizer seen through the loop's `Codec`, and prompts as token ids. Knows nothing of veRL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from research_plugin.errors import ConfigError
from research_plugin.prompts import chat_messages, fill_base, load_prompt


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
        # A model may end its turns with a token that its tokenizer does not call special.
        self._special_ids = frozenset(tokenizer.all_special_ids) | end_ids
        known = {*tokenizer.all_special_tokens, *(self.decode([token]) for token in end_ids)}
        strings = sorted({str(token) for token in known if token}, key=len, reverse=True)
        self._special_text = re.compile("|".join(map(re.escape, strings))) if strings else None

    def encode(self, text: str) -> list[int]:
        """Encode ``text`` on its own: no BOS, and "<|im_end|>" inside it becomes ordinary tokens.

        ``split_special_tokens`` does that in fast tokenizers; one that ignores the argument is given each
        special-token string in two pieces, which no tokenizer can join again.
        """
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if self._special_text is None or self._special_ids.isdisjoint(ids):
            return ids
        ids = []
        start = 0
        for match in self._special_text.finditer(text):
            middle = match.start() + 1
            ids += self._plain(text[start:middle])
            start = middle
        return ids + self._plain(text[start:])

    def _plain(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []

    def decode(self, ids: Sequence[int]) -> str:
        """Decode exactly: special tokens kept, white space untouched."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def build_prompt_ids(
    tokenizer: Any, question: str, *, protocol: str, style: str, file: str | None = None, **template_kwargs: Any
) -> list[int]:
    """Return the prompt of one question as token ids.

    ``base`` is encoded as plain text, needs no chat template and gets the tokenizer's own BOS if it has one;
    ``instruct`` and ``question`` go through the chat template with the generation prompt.
    """
    text = load_prompt(protocol, style, file)
    if style == "base":
        return list(tokenizer.encode(fill_base(text, question)))
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            f"prompt.style={style} needs a chat template and this tokenizer has none; use prompt.style=base"
        )
    rendered = tokenizer.apply_chat_template(
        chat_messages(text, question), add_generation_prompt=True, tokenize=False, **template_kwargs
    )
    return list(tokenizer.encode(rendered, add_special_tokens=False))
