"""Prompt texts: the shipped ones say what the protocol needs, one's own are checked when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from research_plugin.errors import ConfigError
from research_plugin.prompts import chat_messages, fill_base, load_prompt
from research_plugin.protocol import parse_response


@pytest.mark.parametrize("style", ["instruct", "base"])
def test_shipped_prompt_explains_every_tag(style: str) -> None:
    text = load_prompt("research", style)
    for tag in ("think", "search", "result", "answer"):
        assert f"<{tag}>" in text
        assert f"</{tag}>" in text
    assert "\\boxed{" in text
    assert text == text.strip()
    assert ("{question}" in text) is (style == "base")


def test_shipped_example_is_a_whole_response_of_the_protocol() -> None:
    text = load_prompt("research", "instruct")
    segments = parse_response(text[text.index("<think> what") :])
    assert [segment.by_policy for segment in segments] == [True, False, True]
    assert segments[1].text.strip() == "<result> passages from the search engine </result>"


def test_base_prompt_ends_where_the_answer_begins() -> None:
    filled = fill_base(load_prompt("research", "base"), "Who?")
    assert filled.endswith("User: Who?\nAssistant:")
    assert "{question}" not in filled


def test_fill_base_leaves_other_braces_alone() -> None:
    text = "Write \\boxed{} or {x} {{y}}. {question} %s"
    assert fill_base(text, "a {question} {0} \\1") == "Write \\boxed{} or {x} {{y}}. a {question} {0} \\1 %s"


def test_question_style_has_no_text() -> None:
    assert load_prompt("research", "question") == ""


def test_chat_messages_with_and_without_a_system_message() -> None:
    assert chat_messages("Be brief.", "Who?") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
    ]
    assert chat_messages("", "Who?") == [{"role": "user", "content": "Who?"}]


def test_chat_messages_are_new_lists() -> None:
    # Case 12.
    first, second = chat_messages("s", "q"), chat_messages("s", "q")
    first[0]["content"] = "changed"
    assert second[0]["content"] == "s"


def test_own_file_is_stripped_and_read_as_utf8(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes("\n Réponds: {question} 東京\n\n".encode())
    assert load_prompt("research", "base", str(path)) == "Réponds: {question} 東京"
    assert load_prompt("anything", "instruct", str(path)) == "Réponds: {question} 東京"


def test_faults_of_prompt_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown prompt style 'chat'; allowed: instruct, base, question"):
        load_prompt("research", "chat")
    with pytest.raises(ConfigError, match=r"style=question takes no text, but prompt.file='x.txt'"):
        load_prompt("research", "question", "x.txt")
    with pytest.raises(ConfigError, match=r"cannot read the prompt file .*gone.txt.*prompt.file"):
        load_prompt("research", "base", str(tmp_path / "gone.txt"))
    with pytest.raises(ConfigError, match=r"protocol 'other' has no shipped prompt; set prompt.file"):
        load_prompt("other", "instruct")
    (tmp_path / "plain.txt").write_text("no place for it")
    with pytest.raises(ConfigError, match=r"plain.txt has no \{question\} placeholder"):
        load_prompt("research", "base", str(tmp_path / "plain.txt"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 {question}")
    with pytest.raises(ConfigError, match=r"cannot read the prompt file .*latin.txt"):
        load_prompt("research", "base", str(tmp_path / "latin.txt"))
    with pytest.raises(ConfigError, match="cannot read the prompt file"):
        load_prompt("research", "base", str(tmp_path))
