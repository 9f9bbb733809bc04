"""What a chat shows of a rollout, in whatever pieces it arrives."""

from __future__ import annotations

import io

import pytest

from research_plugin.chat.display import Display
from research_plugin.document import Document
from research_plugin.protocol import R1_SEARCHER, RESEARCH

DOCUMENTS = [Document("7", '"Anner"\nA river to Port Lorne.'), Document("8", "Grey Hills\nRain.")]

FIRST = "<think> Where does it end?\n\n2 < 3 </think>\n<search> Anner river </search>"
SECOND = "<think> Now I know. </think> <answer> It is \\boxed{Port Lorne}. </answer>"
SHOWN = r"""
Where does it end?
2 < 3
search: Anner river
  2 passages: Anner | Grey Hills
Now I know.
answer: It is \boxed{Port Lorne}.
= Port Lorne
  source: Anner [7]
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(out: io.StringIO, size: int) -> str:
    display = Display(out, RESEARCH)
    for turn in (FIRST, SECOND):
        for piece in ["", *(turn[at : at + size] for at in range(0, len(turn), size))]:
            display.text(piece)
        if turn is FIRST:
            display.results(DOCUMENTS)
    display.answer("Port Lorne", "", DOCUMENTS * 2)
    return out.getvalue()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pieces_of_any_size_look_the_same(size: int) -> None:
    lines = [line.rstrip() for line in show(io.StringIO(), size).splitlines()]
    assert lines == SHOWN.strip("\n").splitlines()


def test_only_a_terminal_gets_colours() -> None:
    assert "\033" not in show(io.StringIO(), 5)
    coloured = show(Terminal(), 5)
    assert "\033[2mWhere does it end?" in coloured and coloured.rstrip().endswith("[7]")
    assert coloured.rindex("\033[0m") > max(coloured.rindex(style) for style in ("\033[1m", "\033[2m", "\033[34m"))


def test_text_is_shown_while_it_comes_unless_it_may_be_a_tag() -> None:
    out = io.StringIO()
    display = Display(out, RESEARCH)
    display.text("abc <sea")
    assert out.getvalue() == "abc "
    display.text("l> x")
    assert out.getvalue() == "abc <seal> x"


def test_a_turn_that_ends_within_a_tag_is_shown_whole() -> None:
    out = io.StringIO()
    display = Display(out, RESEARCH)
    display.text("so <answ")
    display.answer(None, "no answer block", [])
    assert out.getvalue() == "so <answ\n= no answer (no answer block)\n"


def test_an_answer_that_stands_in_no_passage_names_all_that_was_read() -> None:
    out = io.StringIO()
    Display(out, RESEARCH).answer("Rome", "", DOCUMENTS)
    assert out.getvalue() == "= Rome\n  read: Anner [7]\n  read: Grey Hills [8]\n"


def test_an_error_starts_a_line_of_its_own() -> None:
    out = io.StringIO()
    display = Display(out, R1_SEARCHER)
    display.text("half a <|begin_of_query|> thou")
    display.error("the model is gone")
    assert out.getvalue() == "half a \nsearch: thou\n! the model is gone\n"


def test_no_command_of_a_model_or_a_passage_reaches_the_terminal() -> None:
    out = io.StringIO()
    display = Display(out, RESEARCH)
    display.text("a\x1b]0;title\x07b\r\n")
    display.results([Document("1", "\x1b[2JTitle\x9b\ntext")])
    assert out.getvalue() == "a]0;titleb\n  1 passages: [2JTitle\n"


def test_a_search_without_results_and_a_long_title() -> None:
    out = io.StringIO()
    display = Display(out, RESEARCH)
    display.results([])
    display.results([Document("1", "x" * 100)])
    assert out.getvalue() == f"  nothing found\n  1 passages: {'x' * 60}...\n"
