"""The turn loop with a scripted engine: masks written by hand under their text, budgets, ends, faults."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stubs import SHORT, CharTokenizer, ScriptedGenerator, StubRetriever

from research_plugin.document import Document
from research_plugin.protocol import RESEARCH, Dialect
from research_plugin.rollout import Rollout, StopReason
from research_plugin.search_loop import Episode, Generation, Limits, fit_observation, run_search_loop

CODEC = CharTokenizer()
PASSAGES = {"q": ["D"], "r": ["E", "F"]}


async def play(
    turns: Sequence[str | list[int] | Generation],
    *,
    prompt: str = "p",
    codec: CharTokenizer = CODEC,
    dialect: Dialect = SHORT,
    retriever: StubRetriever | None = None,
    response_length: int = 1_000,
    **limits: Any,
) -> tuple[Episode, ScriptedGenerator, StubRetriever]:
    """Run one rollout of the scripted turns."""
    generator = ScriptedGenerator(codec, turns)
    retriever = retriever or StubRetriever(PASSAGES)
    episode = await run_search_loop(
        codec.encode(prompt),
        generate=generator,
        search=retriever,
        codec=codec,
        dialect=dialect,
        limits=Limits(response_length, **limits),
    )
    return episode, generator, retriever


def written(rollout: Rollout, codec: CharTokenizer = CODEC) -> list[str]:
    """The response and, under it, its mask: one digit a token."""
    return [codec.decode(rollout.response_ids), "".join(map(str, rollout.response_mask))]


async def test_two_searches_and_an_answer() -> None:
    episode, _, retriever = await play(["a[q]", "b[r]", "c$"])
    rollout = episode.rollout
    assert written(rollout) == [
        "a[q](D;)b[r](E;F;)c$",
        "11110000111100000011",
    ]
    assert rollout.log_probs == [-1.0] * 4 + [0.0] * 4 + [-2.0] * 4 + [0.0] * 6 + [-3.0] * 2
    assert rollout.stop_reason is StopReason.ANSWERED
    assert [(segment.text, segment.by_policy) for segment in rollout.segments] == [
        ("a[q]", True),
        ("(D;)", False),
        ("b[r]", True),
        ("(E;F;)", False),
        ("c", True),
    ]
    assert retriever.queries == ["q", "r"]
    assert [search.query for search in episode.searches] == ["q", "r"]
    assert (episode.turns, episode.refused, episode.error) == (3, 0, None)


async def test_research_dialect_inserts_the_released_bytes_and_nothing_else() -> None:
    episode, _, _ = await play(["<search> q </search>", " so$"], dialect=RESEARCH)
    assert written(episode.rollout) == [
        "<search> q </search> <result>\nD\n</result> so$",
        "1" * 20 + "0" * 21 + "1" * 4,
    ]


@pytest.mark.parametrize(
    ("turn", "kept"),
    [("a[q]zz$", "a[q]"), ("a[q][r]", "a[q]"), ("[q]$", "[q]"), ("a$[q]", "a$")],
    ids=["words-and-end", "second-search", "end-token", "search-after-the-end"],
)
async def test_tokens_past_the_end_of_a_turn_are_dropped(turn: str, kept: str) -> None:
    # Case 1: speculative decoding returns whole drafts, and a resumed request does not see a stop string it split.
    episode, generator, _ = await play([turn, "b$"])
    expected = kept + ("" if kept.endswith("$") else "(D;)b$")
    assert written(episode.rollout)[0] == expected
    assert len(episode.rollout.log_probs) == len(expected)
    assert len(generator.calls) == (1 if kept.endswith("$") else 2)


async def test_last_token_holds_the_stop_string_and_more() -> None:
    # Case 2: "]\n" is one token; it is kept as sampled, and the observation follows it.
    codec = CharTokenizer(pieces=["]\n"])
    episode, generator, retriever = await play([[91, 113, 2_000_000], "b$"], codec=codec)
    assert episode.rollout.response_ids[:3] == [91, 113, 2_000_000]
    assert written(episode.rollout, codec) == ["[q]\n(D;)b$", "111000011"]
    assert retriever.queries == ["q"]
    assert generator.calls[1][0] == [112, 91, 113, 2_000_000, *map(ord, "(D;)")]


async def test_sampled_pairs_that_encoding_would_merge_stay_pairs() -> None:
    # Case 3: encode("ab") is one token; the engine sampled two, in the policy's turn and across the seam.
    codec = CharTokenizer(pieces=["ab", "](", ")b"])
    sampled = [ord("a"), ord("b"), ord("["), ord("q"), ord("]")]
    assert codec.encode(codec.decode(sampled)) != sampled
    episode, generator, _ = await play([sampled, "b$"], codec=codec)
    assert episode.rollout.response_ids == [97, 98, 91, 113, 93, 40, 68, 59, 41, 98, codec.END]
    assert generator.calls[1][0] == [112, 97, 98, 91, 113, 93, 40, 68, 59, 41]


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ("a$", StopReason.ANSWERED),
        ("a&", StopReason.ANSWERED),
        ("$", StopReason.ANSWERED),
        ("a", StopReason.MAX_LENGTH),
    ],
    ids=["eos", "other-end-token", "nothing-else", "no-end-token"],
)
async def test_every_end_token_finishes_and_is_trained_on(turn: str, reason: StopReason) -> None:
    # Cases 5 and 20.
    episode, _, _ = await play([turn])
    assert written(episode.rollout) == [turn, "1" * len(turn)]
    assert episode.rollout.stop_reason is reason
    assert "".join(segment.text for segment in episode.rollout.segments) == turn.strip("$&")


async def test_the_tokens_of_the_search_tag_are_trained_on() -> None:
    # Case 20.
    episode, _, _ = await play(["[q]", "$"])
    assert written(episode.rollout) == ["[q](D;)$", "11100001"]


async def test_max_tokens_is_what_is_left_of_the_response() -> None:
    # Case 6: turn 1 used 70 of 100: 60 sampled and 10 inserted, "(DDDDDDD;)".
    retriever = StubRetriever({"q": ["D" * 7]})
    _, generator, _ = await play(["x" * 57 + "[q]", "b$"], response_length=100, retriever=retriever)
    assert [max_tokens for _, max_tokens in generator.calls] == [100, 30]


async def test_max_tokens_is_what_is_left_of_the_context() -> None:
    # Case 6: prompt 2,089 in a context of 4,096.
    _, generator, _ = await play(["a$"], prompt="p" * 2_089, response_length=8_192, max_model_len=4_096)
    assert generator.calls[0][1] == 2_007


@pytest.mark.parametrize(
    ("response_length", "max_model_len", "prompt"),
    [(0, None, "p"), (10, 5, "ppppp"), (10, 5, "pppppppp")],
    ids=["no-response", "context-full", "prompt-too-long"],
)
async def test_engine_is_not_called_without_room(response_length: int, max_model_len: int | None, prompt: str) -> None:
    episode, generator, _ = await play(
        ["a$"], prompt=prompt, response_length=response_length, max_model_len=max_model_len
    )
    assert generator.calls == []
    assert (episode.rollout.response_ids, episode.rollout.stop_reason) == ([], StopReason.MAX_LENGTH)


@pytest.mark.parametrize(
    ("response_length", "expected", "searches"),
    [(3, "[q]", 0), (4, "[q]", 0), (7, "[q]", 1), (8, "[q](D;)b", 1), (9, "[q](D;)b$", 1)],
    ids=["tag-fills-it", "one-left", "observation-fills-it", "one-token-after", "all-fits"],
)
async def test_an_observation_that_leaves_no_token_is_not_inserted(
    response_length: int, expected: str, searches: int
) -> None:
    episode, generator, retriever = await play(["[q]", "b$"], response_length=response_length)
    assert written(episode.rollout)[0] == expected
    assert len(retriever.queries) == searches
    assert all(max_tokens >= 1 for _, max_tokens in generator.calls)
    reason = StopReason.ANSWERED if expected.endswith("$") else StopReason.MAX_LENGTH
    assert episode.rollout.stop_reason is reason


async def test_engine_that_returns_more_than_max_tokens_is_cut_in_every_array() -> None:
    # Case 9.
    episode, _, _ = await play([Generation(list(map(ord, "abcdef")), [-0.5] * 6)], response_length=4)
    assert written(episode.rollout) == ["abcd", "1111"]
    assert episode.rollout.log_probs == [-0.5] * 4
    assert [segment.text for segment in episode.rollout.segments] == ["abcd"]


async def test_one_rollout_without_room_leaves_its_siblings_alone() -> None:
    # Case 7: the adapter turns "maximum context length" into a turn without tokens.
    scripts: list[list[Any]] = [["a[q]", "b$"], ["a[q]", Generation([], [])], ["c$"]]
    results = await asyncio.gather(*(play(script) for script in scripts))
    assert [written(episode.rollout)[0] for episode, _, _ in results] == ["a[q](D;)b$", "a[q](D;)", "c$"]
    assert [episode.rollout.stop_reason for episode, _, _ in results] == [
        StopReason.ANSWERED,
        StopReason.MAX_LENGTH,
        StopReason.ANSWERED,
    ]


async def test_engine_without_tokens_ends_the_rollout() -> None:
    episode, generator, _ = await play([Generation([])])
    assert (len(generator.calls), episode.rollout.stop_reason) == (1, StopReason.MAX_LENGTH)
    assert (written(episode.rollout), episode.rollout.has_log_probs) == (["", ""], True)


@pytest.mark.parametrize("log_probs", [[-0.1], [-0.1] * 9], ids=["fewer", "more"])
def test_mismatched_log_probs_are_an_error_even_where_the_cut_would_hide_it(log_probs: list[float]) -> None:
    with pytest.raises(ValueError, match=f"8 tokens but {len(log_probs)} log-probabilities"):
        Generation(list(map(ord, "a$bcdefg")), log_probs)


async def test_engine_without_log_probs() -> None:
    episode, _, _ = await play([Generation(CODEC.sample("[q]")), "b$"])
    assert episode.rollout.has_log_probs is False
    assert len(episode.rollout.log_probs) == len(episode.rollout.response_ids)


async def test_aborted_request_ends_the_rollout_as_a_fault() -> None:
    episode, _, retriever = await play([Generation(CODEC.sample("a[q]"), [-1.0] * 4, aborted=True)])
    assert episode.rollout.stop_reason is StopReason.ABORTED
    assert retriever.queries == []
    assert written(episode.rollout) == ["a[q]", "1111"]


async def test_search_error_ends_the_rollout_as_a_fault() -> None:
    # Case 22.
    episode, generator, _ = await play(["[q]", "[down]", "never"])
    assert written(episode.rollout) == ["[q](D;)[down]", "1110000111111"]
    assert (episode.rollout.stop_reason, len(generator.calls)) == (StopReason.SEARCH_FAILED, 2)
    assert str(episode.error) == "no retriever answers"
    assert [search.query for search in episode.searches] == ["q"]


async def test_other_exceptions_of_the_callables_pass_through() -> None:
    async def search(query: str) -> list[Document]:
        raise KeyError(query)

    with pytest.raises(KeyError, match="q"):
        await play(["[q]"], retriever=search)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("turn", "queries", "observation"),
    [
        ("[a[q]", ["q"], "(D;)"),
        ("(think [q]", ["q"], "(D;)"),
        ("[unknown]", ["unknown"], "(none)"),
        ("[]", [], "(empty)"),
        ("[ \n\t]", [], "(empty)"),
        ("]", [], "(empty)"),
        ("[" + "x" * 10_000 + "]", ["x" * 10_000], "(none)"),
        ("['a' \"b\"]", ["'a' \"b\""], "(none)"),
        ("[a\nb]", ["a\nb"], "(none)"),
        ("[東京 🙂]", ["東京 🙂"], "(none)"),
    ],
    ids=[
        "two-opens",
        "inside-other-text",
        "nothing-found",
        "empty",
        "blank",
        "never-opened",
        "10000-characters",
        "quotes",
        "newline",
        "cjk-emoji",
    ],
)
async def test_whatever_stands_in_the_search_tags(turn: str, queries: list[str], observation: str) -> None:
    # Case 14.
    episode, _, retriever = await play([turn, "b$"], response_length=20_000)
    assert retriever.queries == queries
    assert written(episode.rollout) == [
        f"{turn}{observation}b$",
        "1" * len(turn) + "0" * len(observation) + "11",
    ]
    assert (len(episode.searches), episode.refused) == (len(queries), 1 - len(queries))


async def test_a_search_opened_in_an_earlier_turn_is_not_closed_in_a_later_one() -> None:
    _, _, retriever = await play(["[a[q]", "r]", "$"])
    assert retriever.queries == ["q"]


@pytest.mark.parametrize(("turn", "reason"), [("[q", StopReason.MAX_LENGTH), ("[q$", StopReason.ANSWERED)])
async def test_unclosed_search_asks_nothing(turn: str, reason: StopReason) -> None:
    # Case 14.
    episode, _, retriever = await play([turn])
    assert (retriever.queries, episode.rollout.stop_reason) == ([], reason)


async def test_a_result_the_policy_wrote_is_its_own_text() -> None:
    # Case 15.
    episode, _, retriever = await play(["(made up)b$"])
    assert written(episode.rollout) == ["(made up)b$", "11111111111"]
    assert retriever.queries == []
    assert [segment.by_policy for segment in episode.rollout.segments] == [True]


async def test_tags_and_end_tokens_in_documents_are_plain_text() -> None:
    # Case 11: the turn structure is that of a harmless document, and no end token comes in.
    retriever = StubRetriever({"q": ["x)[r]$&(y)"]})
    episode, generator, _ = await play(["[q]", "b$"], retriever=retriever)
    assert written(episode.rollout) == ["[q](x)[r]$&(y);)b$", "111000000000000011"]
    assert CODEC.end_ids.isdisjoint(episode.rollout.response_ids[:-1])
    assert (retriever.queries, len(generator.calls)) == (["q"], 2)
    assert [segment.by_policy for segment in episode.rollout.segments] == [True, False, True]


async def test_each_context_is_a_prefix_of_the_next() -> None:
    # Case 16: also with merges that re-encoding the text would find.
    codec = CharTokenizer(pieces=["](", ")b", "D;)"])
    _, generator, _ = await play(["a[q]", "b[r]", "c[q]", "d$"], codec=codec, prompt="pq")
    contexts = [context for context, _ in generator.calls]
    assert len(contexts) == 4
    for earlier, later in itertools.pairwise(contexts):
        assert later[: len(earlier)] == earlier
        assert len(later) > len(earlier)


@pytest.mark.parametrize(
    ("max_searches", "notice", "expected", "reason"),
    [
        (0, False, "[q]", StopReason.MAX_SEARCHES),
        (1, False, "[q](D;)[r]", StopReason.MAX_SEARCHES),
        (2, False, "[q](D;)[r](E;F;)c$", StopReason.ANSWERED),
        (0, True, "[q](spent)[r](spent)c$", StopReason.ANSWERED),
        (1, True, "[q](D;)[r](spent)c$", StopReason.ANSWERED),
        (None, False, "[q](D;)[r](E;F;)c$", StopReason.ANSWERED),
    ],
    ids=["stop-0", "stop-1", "stop-2-not-reached", "notice-0", "notice-1", "no-limit"],
)
async def test_max_searches(max_searches: int | None, notice: bool, expected: str, reason: StopReason) -> None:
    episode, _, retriever = await play(["[q]", "[r]", "c$"], max_searches=max_searches, notice_when_spent=notice)
    assert written(episode.rollout)[0] == expected
    assert episode.rollout.stop_reason is reason
    assert len(retriever.queries) == len(episode.searches) == expected.count(";)")
    assert episode.refused == expected.count("(spent)")


async def test_empty_queries_count_towards_max_searches() -> None:
    episode, _, retriever = await play(["[]", "[q]", "c$"], max_searches=1)
    assert written(episode.rollout)[0] == "[](empty)[q]"
    assert (episode.rollout.stop_reason, retriever.queries) == (StopReason.MAX_SEARCHES, [])


async def test_a_policy_that_only_searches_still_ends() -> None:
    episode, _, _ = await play(["[]"] * 1_000, response_length=100, max_searches=3, notice_when_spent=True)
    assert episode.rollout.stop_reason is StopReason.MAX_LENGTH


async def test_12_rollouts_of_3_prompts_share_nothing() -> None:
    # Case 12.
    prompts = [[100], [101], [102]]

    async def one(number: int) -> Episode:
        return await run_search_loop(
            prompts[number % 3],
            generate=ScriptedGenerator(CODEC, [f"{number}[q]", "$"]),
            search=StubRetriever(PASSAGES),
            codec=CODEC,
            dialect=SHORT,
            limits=Limits(100),
        )

    episodes = await asyncio.gather(*(one(number) for number in range(12)))
    assert len({written(episode.rollout)[0] for episode in episodes}) == 12
    assert len({id(episode.rollout.prompt_ids) for episode in episodes}) == 12
    episodes[0].rollout.prompt_ids.append(5)
    assert prompts == [[100], [101], [102]]
    assert episodes[3].rollout.prompt_ids == [100]


async def test_64_rollouts_search_at_the_same_time() -> None:
    # Case 13: serial code would have one search in flight, and never more or fewer searches than queries.
    retriever = StubRetriever({f"{turn}": ["D"] for turn in range(3)}, seconds=0.02)
    await asyncio.gather(*(play(["[0]", "[1]", "[2]", "$"], retriever=retriever) for _ in range(64)))
    assert retriever.most_in_flight == 64
    assert sorted(retriever.queries) == ["0"] * 64 + ["1"] * 64 + ["2"] * 64


async def test_the_slowest_search_does_not_hold_the_others_back() -> None:
    # Case 13.
    gate = asyncio.Event()

    async def search(query: str) -> list[Document]:
        if query == "slow":
            await gate.wait()
        return []

    slow, *fast = (
        asyncio.create_task(play([f"[{query}]", "[x]", "$"], retriever=search))  # type: ignore[arg-type]
        for query in ["slow", *"abcdefg"]
    )
    done, pending = await asyncio.wait(fast, timeout=10)
    assert (len(done), len(pending), slow.done()) == (7, 0, False)
    gate.set()
    episode, _, _ = await slow
    assert episode.rollout.stop_reason is StopReason.ANSWERED


def fitted(
    documents: list[Document], dialect: Dialect, codec: CharTokenizer, limit: int | None, room: int
) -> tuple[str, list[int]]:
    found = fit_observation(documents, dialect, codec, limit, room)
    assert found is not None
    return found


PASSAGE = '"Title {}"\n' + "word " * 40


@pytest.mark.parametrize(
    ("limit", "titles", "size"),
    [(None, 5, 1_077), (1_077, 5, 1_077), (1_076, 4, 865), (500, 2, 441), (300, 1, 229), (229, 1, 229), (100, 1, 99)],
    ids=["no-limit", "exact", "one-less", "two-fit", "one-fits", "one-exactly", "inside-the-first"],
)
def test_observation_is_cut_on_document_borders_first(limit: int | None, titles: int, size: int) -> None:
    # Case 8, with one token a character: 20 for the tags, 210 a passage, 2 between two, less the last passage's blank.
    documents = [Document(str(n), PASSAGE.format(n)) for n in range(1, 6)]
    text, ids = fitted(documents, RESEARCH, CODEC, limit, 2_000)
    assert (text.count('"Title'), len(ids)) == (titles, size)
    assert text.startswith(' <result>\n"Title 1"\nword')
    assert text.endswith("word\n</result>")
    assert (text.count("<result>"), text.count("</result>")) == (1, 1)
    assert ids == CODEC.encode(text)


def test_observation_cut_inside_its_only_document() -> None:
    text, ids = fitted([Document("1", '"T"\nabcdefghij')], RESEARCH, CODEC, 28, 2_000)
    assert text == ' <result>\n"T"\nabcd\n</result>' == CODEC.decode(ids)


@pytest.mark.parametrize("limit", [1, 5, 20], ids=str)
def test_observation_never_loses_its_tags(limit: int) -> None:
    text, _ = fitted([Document("1", "abc")], RESEARCH, CODEC, limit, 2_000)
    assert text == " <result>\n\n</result>"


class CountingTokenizer(CharTokenizer):
    """Counts the characters it is given."""

    characters = 0

    def encode(self, text: str) -> list[int]:
        self.characters += len(text)
        return super().encode(text)


def test_observation_without_a_limit_that_is_larger_than_the_room() -> None:
    codec = CountingTokenizer()
    documents = [Document("1", "abc")]
    assert fit_observation(documents, RESEARCH, codec, None, 23) == fitted(documents, RESEARCH, CODEC, 23, 2_000)
    assert fit_observation(documents, RESEARCH, codec, None, 22) is None
    codec.characters = 0
    assert fit_observation([Document("1", "abc " * 2_500_000)], RESEARCH, codec, None, 500) is None
    assert codec.characters == 0


@pytest.mark.parametrize("count", [1, 5])
def test_huge_documents_cost_what_is_kept_of_them(count: int) -> None:
    limit, piece = 60, "ab"
    costs, results = [], []
    for length in (10_000, 10_000_000):
        codec = CountingTokenizer(pieces=[piece])
        results.append(fitted([Document("1", "x" + piece * (length // 2))] * count, RESEARCH, codec, limit, 2_000))
        costs.append(codec.characters)
    assert costs[0] == costs[1] < 20 * limit * len(piece)
    # 20 tokens are the tags', one is "x", 39 are left: the same as without any bound on what is read.
    assert results[0] == results[1]
    assert results[0][0] == " <result>\nx" + piece * 39 + "\n</result>"
    assert len(results[0][1]) == limit


def test_observation_of_no_documents_within_a_limit() -> None:
    text, ids = fitted([], RESEARCH, CODEC, 40, 2_000)
    assert text == " <result>\nNo passage was found\n</result>" == CODEC.decode(ids)


async def test_max_observation_tokens_holds_in_the_loop() -> None:
    retriever = StubRetriever({"q": ["aaaa", "bbbb", "cccc"]})
    episode, _, _ = await play(["[q]", "x$"], retriever=retriever, max_observation_tokens=13)
    assert written(episode.rollout)[0] == "[q](aaaa;bbbb;)x$"
    assert [len(search.documents) for search in episode.searches] == [3]


TURN = st.text(alphabet="ab[]()$&\n", max_size=12)
PIECES = ["]\n", "](", ")a", "ab", "[a"]


@st.composite
def turns(draw: st.DrawFn) -> list[list[int]]:
    """Up to eight turns, each with merged and unmerged tokens, as likely as not to end in a search."""
    codec = CharTokenizer(PIECES)
    result = []
    for _ in range(draw(st.integers(0, 8))):
        text = draw(TURN) + draw(st.sampled_from(["", "[a]", "[b]", "[b]\n", "[]"]))
        result.append(codec.encode(text) if draw(st.booleans()) else codec.sample(text))
    return result


@given(
    script=turns(),
    passages=st.lists(st.text(alphabet="xy[]()$&;\n", max_size=20), max_size=3),
    prompt_length=st.integers(0, 12),
    response_length=st.integers(0, 70),
    max_model_len=st.none() | st.integers(0, 60),
    max_searches=st.none() | st.integers(0, 3),
    notice=st.booleans(),
    max_observation_tokens=st.none() | st.integers(1, 20),
    overrun=st.integers(0, 3),
)
@settings(deadline=None, max_examples=200)
async def test_loop_invariants(
    script: list[list[int]],
    passages: list[str],
    prompt_length: int,
    response_length: int,
    max_model_len: int | None,
    max_searches: int | None,
    notice: bool,
    max_observation_tokens: int | None,
    overrun: int,
) -> None:
    codec = CharTokenizer(PIECES)
    prompt = [112] * prompt_length
    calls: list[tuple[list[int], int]] = []
    queries: list[str] = []

    async def generate(context: list[int], max_tokens: int) -> Generation:
        calls.append((context, max_tokens))
        ids = script[len(calls) - 1][: max_tokens + overrun] if len(calls) <= len(script) else []
        return Generation(ids, [-0.5] * len(ids))

    async def search(query: str) -> list[Document]:
        queries.append(query)
        return [Document("0", text) for text in passages]

    episode = await run_search_loop(
        prompt,
        generate=generate,
        search=search,
        codec=codec,
        dialect=SHORT,
        limits=Limits(response_length, max_model_len, max_searches, notice, max_observation_tokens),
    )
    rollout = episode.rollout
    ids, mask = rollout.response_ids, rollout.response_mask
    most = response_length if max_model_len is None else min(response_length, max(0, max_model_len - prompt_length))

    assert len(ids) == len(mask) == len(rollout.log_probs) <= most
    assert rollout.log_probs == [-0.5 if digit else 0.0 for digit in mask]
    assert rollout.stop_reason is not None

    # The zero stretches of the mask are the observations, to the token.
    stretches = [[token for token, _ in pairs] for digit, pairs in _runs(ids, mask) if digit == 0]
    observations = [segment.text for segment in rollout.segments if not segment.by_policy]
    assert stretches == [codec.encode(text) for text in observations]
    assert all(text.startswith("(") and text.endswith(")") for text in observations)
    if max_observation_tokens is not None:
        tags_only = len(codec.encode(SHORT.wrap("")))
        fixed = {SHORT.wrap(SHORT.empty_query_notice), SHORT.wrap(SHORT.budget_notice)}
        sizes = [len(codec.encode(text)) for text in observations if text not in fixed]
        assert all(size <= max(max_observation_tokens, tags_only) for size in sizes)

    # Segments spell the response; only the end token of an answer is left out.
    answered = rollout.stop_reason is StopReason.ANSWERED
    assert "".join(segment.text for segment in rollout.segments) == codec.decode(ids[:-1] if answered else ids)
    assert [token for token in ids if token in codec.end_ids] == (ids[-1:] if answered else [])

    # The engine continues exactly what stands there, with exactly the room that is left.
    final = prompt + ids
    for context, max_tokens in calls:
        assert final[: len(context)] == context
        assert max_tokens == most - (len(context) - prompt_length) >= 1
    assert len(queries) == len(episode.searches)
    assert all(queries)
    if max_searches is not None:
        assert len(queries) <= max_searches


def _runs(ids: list[int], mask: list[int]) -> list[tuple[int, list[tuple[int, int]]]]:
    pairs = zip(ids, mask, strict=True)
    return [(digit, list(group)) for digit, group in itertools.groupby(pairs, key=lambda pair: pair[1])]


ANSWERING = dataclasses.replace(SHORT, name="answering", answer_close="!", invalid_notice="~")


async def test_answer_tag_ends_the_rollout_without_an_end_token() -> None:
    episode, generator, _ = await play(["a[q]", "b!"], dialect=ANSWERING)
    assert written(episode.rollout) == ["a[q](D;)b!", "1111000011"]
    assert episode.rollout.stop_reason is StopReason.ANSWERED
    assert len(generator.calls) == 2


async def test_invalid_turn_draws_a_masked_notice_and_counts_against_the_budget() -> None:
    episode, _, _ = await play(["a$", "b[q]", "c$", "d!"], dialect=ANSWERING, max_searches=3)
    assert written(episode.rollout) == ["a$~b[q](D;)c$~d!", "1101111000011011"]
    assert episode.rollout.stop_reason is StopReason.ANSWERED
    assert (len(episode.searches), episode.refused) == (1, 2)

    episode, _, _ = await play(["a$", "b$", "c!"], dialect=ANSWERING, max_searches=1)
    assert written(episode.rollout) == ["a$~b$", "11011"]
    assert episode.rollout.stop_reason is StopReason.MAX_SEARCHES


async def test_turn_cut_by_its_own_limit() -> None:
    """It ends the rollout, unless the dialect has a notice for turns that do nothing."""
    episode, _, _ = await play(["abcdef", "g$"], max_turn_tokens=3)
    assert written(episode.rollout) == ["abc", "111"]
    assert episode.rollout.stop_reason is StopReason.MAX_LENGTH

    episode, _, _ = await play(["abcdef", "g!"], dialect=ANSWERING, max_turn_tokens=3)
    assert written(episode.rollout) == ["abc~g!", "111011"]
    assert episode.rollout.stop_reason is StopReason.ANSWERED


async def test_no_notice_where_no_token_fits_after_it() -> None:
    episode, _, _ = await play(["a$"], dialect=ANSWERING, response_length=3)
    assert written(episode.rollout) == ["a$", "11"]
    assert episode.rollout.stop_reason is StopReason.MAX_LENGTH
