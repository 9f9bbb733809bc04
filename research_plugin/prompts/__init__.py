"""Prompt texts, one file each, and how a question becomes a prompt. Knows no tokenizer.

``<protocol>_instruct.txt`` is a system message; ``<protocol>_base.txt`` is a whole prompt in plain text with the
placeholder ``{question}``. Users point ``prompt.file`` at a file of their own in the same form.
"""

from __future__ import annotations

import functools
from pathlib import Path

from research_plugin.errors import ConfigError

PLACEHOLDER = "{question}"
STYLES = ("instruct", "base", "question")


@functools.lru_cache(maxsize=32)
def load_prompt(protocol: str, style: str, file: str | None = None) -> str:
    """Return the prompt text for a protocol and style.

    Args:
        protocol: Dialect name, first part of the shipped file's name.
        style: ``instruct`` (system message, chat template), ``base`` (plain text) or ``question`` (the chat template
            around the bare question; no text).
        file: A user's own text instead of the shipped one.

    Raises:
        ConfigError: unknown style, no such file, or a base prompt without the placeholder.
    """
    if style not in STYLES:
        raise ConfigError(f"unknown prompt style {style!r}; allowed: {', '.join(STYLES)} (key: prompt.style)")
    if style == "question":
        if file:
            raise ConfigError(
                f"prompt.style=question takes no text, but prompt.file={file!r} is set; unset one of them"
            )
        return ""
    path = Path(file) if file else Path(__file__).parent / f"{protocol}_{style}.txt"
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        wanted = (
            f"cannot read the prompt file {path}: {error}" if file else f"protocol {protocol!r} has no shipped prompt"
        )
        raise ConfigError(f"{wanted}; set prompt.file to a text file of your own") from error
    if style == "base" and PLACEHOLDER not in text:
        raise ConfigError(f"the base prompt {path} has no {PLACEHOLDER} placeholder: the question could not be put in")
    return text


def fill_base(text: str, question: str) -> str:
    """Put the question into a base prompt; braces anywhere else are left alone."""
    return text.replace(PLACEHOLDER, question)


def chat_messages(text: str, question: str) -> list[dict[str, str]]:
    """Return the chat messages for the styles ``instruct`` (with ``text``) and ``question`` (``text`` empty)."""
    system = [{"role": "system", "content": text}] if text else []
    return [*system, {"role": "user", "content": question}]
