"""What each baseline asks and searches for, turn by turn, against a model that follows a script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from research_plugin.document import Document
from research_plugin.evaluation.baselines.ircot import Passages, first_sentence
from research_plugin.evaluation.best_of import best_of, majority
from research_plugin.evaluation.method import METHODS, Attempt, Settings, World, get_method

QUESTION = "Who built {question} bridge?"
PASSAGES = {
    QUESTION: [Document("1", "Bridge\nBuilt by Ida.", 2.0), Document("2", "River\nLong.", 1.0)],
    "Ida built it.": [Document("3", "Ida\nBorn in Tessel.", 3.0), Document("2", "River\nLong.", 0.5)],
}


class Script:
    """Answers the requests of a method one after another and keeps them; "..." at the end: cut at max_tokens."""

    def __init__(self, *turns: str, **settings: Any) -> None:
        self.turns, self.requests, self.queries = list(turns), list[tuple[str, Mapping[str, Any]]](), list[str]()
        self.world = World(self.ask, self.find, Settings(**settings))

    async def ask(self, route: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.requests.append((route, request))
        text = self.turns.pop(0)
        written = {"message": {"content": text}} if route == "chat/completions" else {"text": text}
        finish = "length" if text.endswith("...") else "stop"
        return {
            "choices": [{**written, "finish_reason": finish}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2},
        }

    async def find(self, query: str) -> Sequence[Document]:
        self.queries.append(query)
        return PASSAGES.get(query, [])

    def prompt(self, number: int) -> str:
        """All text of a request."""
        request = self.requests[number][1]
        return request.get("prompt") or "\n".join(message["content"] for message in request["messages"])


async def run(method: str, script: Script) -> Attempt:
    attempt = await get_method(method)(QUESTION, script.world)
    assert script.turns == []
    assert attempt.queries == script.queries
    assert attempt.model_calls == len(script.requests)
    assert attempt.generated_tokens == 2 * len(script.requests)
    return attempt


async def test_iter_retgen_searches_with_each_answer_and_reads_fresh_passages() -> None:
    script = Script("Ida", "Eva", "Ada")
    attempt = await run("iter_retgen", script)
    assert attempt.pred == "Ada"
    assert script.queries == [QUESTION, f"{QUESTION} Ida", f"{QUESTION} Eva"]
    assert "Built by Ida." in script.prompt(0) and "Built by Ida." not in script.prompt(1)


async def test_iter_retgen_takes_the_number_of_rounds() -> None:
    assert (await run("iter_retgen", Script("Ida", rounds=1))).pred == "Ida"


async def test_ircot_searches_with_each_sentence_and_collects_passages() -> None:
    script = Script("Ida built it. So the answer is: no.", "So the answer is: J. R. Ida.")
    attempt = await run("ircot", script)
    assert attempt.pred == "J. R. Ida"
    assert script.queries == [QUESTION, "Ida built it."]
    first, second = script.prompt(0), script.prompt(1)
    assert first.endswith(f"Question: {QUESTION}\nThought:")
    assert second.endswith(f"Question: {QUESTION}\nThought: Ida built it.")
    contents = ["River\nLong.", "Bridge\nBuilt by Ida.", "Ida\nBorn in Tessel."]
    assert re.findall("|".join(contents), second) == contents
    assert second.count("River") == 1
    assert {route for route, _ in script.requests} == {"completions"}


async def test_ircot_without_an_answer_returns_the_chain() -> None:
    attempt = await run("ircot", Script(*(f"Step {number}." for number in range(5))))
    assert attempt.pred == "Step 0. Step 1. Step 2. Step 3. Step 4."
    assert attempt.stop_reason == "max_searches"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One thing. Another.", "One thing."),
        ("It costs 3.5 million! Yes", "It costs 3.5 million!"),
        ("J. R. Smith wrote it. He", "J. R. Smith wrote it."),
        ("So the answer is: St. Ives. Bye.", "So the answer is: St. Ives. Bye."),
        ("no end\nnext line.", "no end"),
        ("", ""),
    ],
)
def test_first_sentence(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


def test_passages_without_scores_or_ids_are_ordered_by_rank() -> None:
    passages = Passages()
    passages.add([Document("", "a"), Document("", "b"), Document("", "c")])
    passages.add([Document("", "c"), Document("", "b")])
    assert passages.text() == "Title: b\n\nTitle: a\n\nTitle: c"


async def test_search_o1_reads_the_passages_before_they_enter_the_thinking() -> None:
    script = Script(
        f"First the builder. <search> {QUESTION} ", "Ida built it.", r"So it is \boxed{\text{Ida}}.", temperature=0.7
    )
    attempt = await run("search_o1", script)
    assert attempt.pred == "Ida" and attempt.stop_reason == "answered"
    assert script.queries == [QUESTION]
    reading, last = script.prompt(1), script.requests[2][1]["messages"]
    assert "First the builder." in reading and "Built by Ida." in reading and f"Question: {QUESTION}" in reading
    assert last[-2] == {"role": "assistant", "content": f"First the builder. <search> {QUESTION}</search>"}
    assert last[-1] == {"role": "user", "content": "<result>\nIda built it.\n</result>"}
    assert all(request["temperature"] == 0.7 for _, request in script.requests)


async def test_search_o1_answers_when_its_searches_are_spent() -> None:
    script = Script("<search>a", "Nothing.", "<search>b", r"\boxed{Eva}", rounds=1)
    attempt = await run("search_o1", script)
    assert attempt.pred == "Eva" and script.queries == ["a"]
    assert "No more searches" in script.prompt(3)


async def test_search_o1_without_a_box_has_no_answer_and_a_cut_reply_ends_it() -> None:
    attempt = await run("search_o1", Script("Ida, <search>perhaps..."))
    assert attempt.pred is None and attempt.stop_reason == "max_length"


@pytest.mark.parametrize(
    ("preds", "chosen"),
    [
        (["Rome", "the Paris", "paris!"], 1),
        (["Rome", "Paris", "Paris", "Rome"], 0),
        (["", "", "Paris"], 2),
        (["", ""], 0),
    ],
    ids=["normalised", "tie_goes_to_the_first", "no_answer_is_no_vote", "none"],
)
def test_majority(preds: list[str], chosen: int) -> None:
    assert majority(preds) == chosen


async def test_best_of_adds_up_the_costs_of_all_attempts_and_seeds_each_differently() -> None:
    script = Script("Rome", "Paris", "paris", temperature=1.0, seed=7)
    attempt = await best_of(get_method("rag"), 3, "majority")(QUESTION, script.world)
    assert attempt.pred == "Paris"
    assert attempt.queries == [QUESTION] * 3 and len(attempt.documents) == 3
    assert (attempt.model_calls, attempt.prompt_tokens, attempt.generated_tokens) == (3, 30, 6)
    assert sorted(request["seed"] for _, request in script.requests) == [7, 8, 9]


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [("Paris is larger.\n2", "Paris"), ("**2.**", "Paris"), ("Neither.", "Rome"), ("3", "Rome")],
    ids=["number", "marked", "no_number", "out_of_range"],
)
async def test_best_of_by_the_judge_asks_once_about_the_different_answers(reply: str, chosen: str) -> None:
    script = Script("Rome", "rome.", "Paris", reply)
    attempt = await best_of(get_method("direct"), 3, "judge")(QUESTION, script.world)
    assert attempt.pred == chosen
    assert attempt.model_calls == 4
    assert "1. Rome\n2. Paris" in script.prompt(3)


async def test_best_of_by_the_judge_asks_nothing_when_all_agree() -> None:
    script = Script("Rome", "Rome")
    assert (await best_of(get_method("direct"), 2, "judge")(QUESTION, script.world)).model_calls == 2


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_imported(name: str) -> None:
    assert callable(get_method(name))
