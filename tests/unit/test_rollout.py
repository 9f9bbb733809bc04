"""Token bookkeeping: what is appended, what is cut, and the two searches for where a turn ends."""

from __future__ import annotations

import pytest
from stubs import CharTokenizer

from research_plugin.protocol import Segment
from research_plugin.rollout import Rollout, StopReason, cut_at_end, cut_at_stop

CODEC = CharTokenizer(pieces=["</search>", "</search>\n", "</", "search", ">.", "]\n"])
CLOSE, CLOSE_NEWLINE, LT_SLASH, SEARCH, GT_DOT = sorted(CODEC.pieces)[:5]


def test_rollout_arrays_beside_each_other() -> None:
    rollout = Rollout([7, 8], response_length=10)
    rollout.add_policy([1, 2, 3], [-0.1, -0.2, -0.3], "abc")
    assert rollout.add_observation([4, 5], "(d)")
    rollout.add_policy([6], [-0.4], "e")
    assert rollout.response_ids == [1, 2, 3, 4, 5, 6]
    assert rollout.response_mask == [1, 1, 1, 0, 0, 1]
    assert rollout.log_probs == [-0.1, -0.2, -0.3, 0.0, 0.0, -0.4]
    assert rollout.segments == [Segment("abc", True), Segment("(d)", False), Segment("e", True)]
    assert rollout.context_ids == [7, 8, 1, 2, 3, 4, 5, 6]
    assert (rollout.remaining, rollout.has_log_probs, rollout.stop_reason) == (4, True, None)


def test_generated_tokens_count_mask_1_only() -> None:
    # Case 19: 000 1111 000 11111 -> 9.
    rollout = Rollout([], response_length=100)
    for ids, by_policy in (([0] * 3, False), ([1] * 4, True), ([0] * 3, False), ([1] * 5, True)):
        if by_policy:
            rollout.add_policy(ids, [-1.0] * len(ids), "")
        else:
            assert rollout.add_observation(ids, "")
    assert rollout.response_mask == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]
    assert (rollout.generated_tokens, rollout.retrieved_tokens) == (9, 6)


@pytest.mark.parametrize(
    ("prompt", "used", "response_length", "max_model_len", "left"),
    [
        (10, 70, 100, None, 30),
        (2_089, 0, 8_192, 4_096, 2_007),
        (2_089, 0, 1_000, 4_096, 1_000),
        (90, 10, 100, 100, 0),
        (200, 0, 100, 100, 0),
        (0, 0, 0, None, 0),
    ],
    ids=["70-of-100", "context-4096", "response-is-less", "context-full", "prompt-too-long", "no-response"],
)
def test_remaining(prompt: int, used: int, response_length: int, max_model_len: int | None, left: int) -> None:
    # Case 6; "used" counts own and inserted tokens alike.
    rollout = Rollout([5] * prompt, response_length, max_model_len)
    rollout.add_observation([5] * (used // 2), "")
    rollout.add_policy([5] * (used - used // 2), None, "")
    assert rollout.remaining == left


def test_add_policy_cuts_ids_mask_and_log_probs_together() -> None:
    # Case 9.
    rollout = Rollout([0], response_length=3)
    rollout.add_policy([1, 2, 3, 4, 5], [-0.1, -0.2, -0.3, -0.4, -0.5], "abcde")
    assert (rollout.response_ids, rollout.response_mask) == ([1, 2, 3], [1, 1, 1])
    assert rollout.log_probs == [-0.1, -0.2, -0.3]


@pytest.mark.parametrize("log_probs", [[-0.1], [-0.1] * 3, []], ids=["short", "long", "empty"])
def test_add_policy_mismatched_log_probs(log_probs: list[float]) -> None:
    with pytest.raises(ValueError, match=f"2 tokens but {len(log_probs)} log-probabilities"):
        Rollout([], response_length=1).add_policy([1, 2], log_probs, "ab")


def test_add_policy_without_log_probs_is_remembered() -> None:
    rollout = Rollout([], response_length=9)
    rollout.add_policy([1], [-0.5], "a")
    rollout.add_policy([2, 3], None, "b")
    rollout.add_policy([4], [-0.5], "c")
    assert (rollout.log_probs, rollout.has_log_probs) == ([-0.5, 0.0, 0.0, -0.5], False)


def test_add_policy_of_no_tokens_misses_no_log_probs() -> None:
    rollout = Rollout([], response_length=9)
    rollout.add_policy([1], [-0.5], "a")
    rollout.add_policy([], None, "")
    assert rollout.has_log_probs


@pytest.mark.parametrize(("size", "fits"), [(4, True), (5, False), (6, False)], ids=["one-left", "none-left", "over"])
def test_add_observation_is_whole_or_not_at_all(size: int, fits: bool) -> None:
    rollout = Rollout([0], response_length=5)
    assert rollout.add_observation([9] * size, "(x)") is fits
    assert rollout.response_ids == ([9] * size if fits else [])
    assert len(rollout.response_mask) == len(rollout.log_probs) == len(rollout.response_ids)
    assert len(rollout.segments) == fits


def test_context_ids_is_a_fresh_list() -> None:
    rollout = Rollout([1, 2], response_length=5)
    rollout.context_ids.append(99)
    assert (rollout.context_ids, rollout.prompt_ids, rollout.response_ids) == ([1, 2], [1, 2], [])


@pytest.mark.parametrize(
    ("ids", "length"),
    [([5, 6, 7], 3), ([5, 1], 2), ([5, 2, 1, 6], 2), ([1], 1), ([], 0)],
    ids=["none", "last", "first-of-two", "only", "empty"],
)
def test_cut_at_end(ids: list[int], length: int) -> None:
    assert cut_at_end(ids, {1, 2}) == length


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        (CODEC.sample("a</search>"), "a</search>"),
        (CODEC.sample("a</search> <answer> 42"), "a</search>"),
        (CODEC.sample("a</search>b</search>"), "a</search>"),
        ([97, CLOSE_NEWLINE, 98, 99], "a</search>\n"),
        ([97, CLOSE_NEWLINE], "a</search>\n"),
        ([97, LT_SLASH, SEARCH, GT_DOT, 98], "a</search>."),
        ([CLOSE, 98, 99], "</search>"),
        (CODEC.sample("no stop here"), "no stop here"),
        (CODEC.sample("</search"), "</search"),
        ([CLOSE], "</search>"),
        ([], ""),
    ],
    ids=[
        "exact",
        "ran-past",
        "two-closes",
        "one-token-with-newline-ran-past",
        "one-token-with-newline",
        "last-token-holds-more",
        "first-token",
        "none",
        "cut-tag",
        "only-token",
        "empty",
    ],
)
def test_cut_at_stop(ids: list[int], kept: str) -> None:
    # Cases 1 and 2: whatever was sampled past the stop string goes, and no token is split.
    assert CODEC.decode(ids[: cut_at_stop(ids, ("</search>",), CODEC.decode)]) == kept


def test_cut_at_stop_with_a_stop_string_that_is_a_suffix_of_another_has_one_boundary() -> None:
    # Case 4.
    ids = CODEC.sample("ab</search>cd</search>")
    assert {cut_at_stop(ids, stop, CODEC.decode) for stop in (("</search>", "h>"), ("h>", "</search>"))} == {11}


def test_cut_at_stop_ignores_a_stop_string_split_over_an_invalid_character() -> None:
    def decode(ids: object) -> str:
        return bytes(ids).decode("utf-8", errors="replace")  # type: ignore[call-overload,no-any-return]

    ids = list("é]é".encode())
    assert [cut_at_stop(ids[:size], ("]",), decode) for size in range(1, 6)] == [1, 2, 3, 3, 3]


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        (StopReason.ANSWERED, False),
        (StopReason.MAX_LENGTH, False),
        (StopReason.MAX_SEARCHES, False),
        (StopReason.SEARCH_FAILED, True),
        (StopReason.ABORTED, True),
    ],
    ids=lambda value: str(getattr(value, "value", value)),
)
def test_stop_reason_faults_are_kept_out_of_training(reason: StopReason, fault: bool) -> None:
    # Case 22: a rollout without any search is no fault.
    assert reason.is_fault is fault


def test_stop_reasons_are_those_the_reward_knows() -> None:
    from research_plugin.rewards.response import STOP_REASONS

    assert {reason.value for reason in StopReason} == set(STOP_REASONS)
