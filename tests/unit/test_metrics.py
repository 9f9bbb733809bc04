"""The numbers that describe one rollout, and those of a step."""

from __future__ import annotations

import pytest

from research_plugin.document import Document
from research_plugin.metrics import rollout_metrics, step_metrics
from research_plugin.rollout import Rollout
from research_plugin.search_loop import Episode, Searched

KEYS = [
    "copied_text",
    "generated_tokens",
    "golden_in_results",
    "num_refused_searches",
    "num_repeated_queries",
    "num_searches",
    "own_results",
    "repetition",
    "retrieved_tokens",
    "search_seconds",
]


def episode() -> Episode:
    rollout = Rollout([1], 100)
    rollout.add_policy([5] * 4, [-1.0] * 4, "")
    rollout.add_observation([6] * 3, "")
    rollout.add_policy([5] * 2, [-1.0] * 2, "")
    documents = (Document("1", '"Torvale"\nA city.'), Document("2", '"Hm"\nNothing.'))
    searches = [
        Searched("Glass  Harbour", documents, 0.25),
        Searched("glass harbour", documents, 0.5),
        Searched("other", (), 0.25),
    ]
    return Episode(rollout, searches, refused=2, turns=5)


def test_rollout_metrics_by_hand() -> None:
    # Case 19: generated and retrieved tokens apart.
    assert rollout_metrics(episode(), ["torvale"]) == {
        "num_searches": 3.0,
        "num_refused_searches": 2.0,
        "num_repeated_queries": 1.0,
        "generated_tokens": 6.0,
        "retrieved_tokens": 3.0,
        "golden_in_results": 1.0,
        "search_seconds": 1.0,
        "copied_text": 0.0,
        "own_results": 0.0,
        "repetition": 0.0,
    }


def test_text_of_the_policy_is_told_from_results() -> None:
    rollout = Rollout([1], 100)
    passage = "one two three four five six seven eight nine"
    rollout.add_policy([5], [-1.0], "a b c d a b c d")  # 5 runs of 4 words, the last one seen before
    rollout.add_observation([6], f"<result> {passage} </result>")
    rollout.add_policy([5], [-1.0], f"so {passage}")  # 3 runs of 8 words, two of them copied
    metrics = rollout_metrics(Episode(rollout), result_open="<result>")
    assert metrics["copied_text"] == pytest.approx(2 / 4)
    assert metrics["own_results"] == 0.0
    assert metrics["repetition"] == pytest.approx(1 / 15)
    rollout.add_policy([5], [-1.0], " <result> made up </result>")
    assert rollout_metrics(Episode(rollout), result_open="<result>")["own_results"] == 1.0
    assert rollout_metrics(Episode(rollout))["own_results"] == 0.0


def test_empty_rollout_has_the_same_keys_and_zeros() -> None:
    metrics = rollout_metrics(Episode(Rollout([], 5)))
    assert sorted(metrics) == KEYS
    assert set(metrics.values()) == {0}


@pytest.mark.parametrize(
    ("golden", "found"),
    [(["TORVALE"], 1.0), (["Brenlow", "a city"], 1.0), (["Brenlow"], 0.0), ([], 0.0), ([""], 0.0)],
    ids=["case", "second-one", "absent", "no-gold", "empty-gold"],
)
def test_golden_in_results(golden: list[str], found: float) -> None:
    assert rollout_metrics(episode(), golden)["golden_in_results"] == found


def test_every_number_is_a_float() -> None:
    # Rollouts with and without a search meet in one column.
    for of in (episode(), Episode(Rollout([], 5))):
        assert {type(value) for value in rollout_metrics(of).values()} == {float}


def tokens(generated: float, retrieved: float) -> dict[str, float]:
    return {"generated_tokens": generated, "retrieved_tokens": retrieved}


NOTHING_LEFT_OUT = {
    f"rollout/{reason}/{kind}": 0.0 for reason in ("search_failed", "aborted", "no_room") for kind in ("total", "share")
}


def test_step_metrics_by_hand() -> None:
    # Cases 17 and 19: group a has spread, b has none, c lost all but one rollout and cannot tell.
    rollouts = [
        ("a", 1.0, tokens(10, 4)),
        ("a", 0.1, tokens(20, 0)),
        ("b", 0.1, tokens(30, 8)),
        ("b", 0.1, tokens(40, 0)),
        ("c", 1.0, tokens(50, 3)),
    ]
    assert step_metrics(rollouts, ["search_failed", "search_failed", "aborted"]) == {
        "rollout/generated_tokens/mean": 30.0,
        "rollout/retrieved_tokens/mean": 3.0,
        "rollout/generated_tokens/total": 150.0,
        "rollout/retrieved_tokens/total": 15.0,
        "health/retrieved_tokens/share": pytest.approx(15 / 165),
        "rollout/groups_without_spread/share": 0.5,
        "rollout/search_failed/total": 2.0,
        "rollout/search_failed/share": 0.25,
        "rollout/aborted/total": 1.0,
        "rollout/aborted/share": 0.125,
        "rollout/no_room/total": 0.0,
        "rollout/no_room/share": 0.0,
    }


def test_step_metrics_of_searches_and_scores_by_hand() -> None:
    def fields(searches: int, repeated: int, cached: int, latencies: list[float], answered: float) -> dict[str, object]:
        return {
            "num_searches": float(searches),
            "num_repeated_queries": float(repeated),
            "num_cached_searches": float(cached),
            "search_latencies": latencies,
            "golden_in_results": float(searches > 0),
            "copied_text": 0.25,
            "own_results": 0.0,
            "repetition": 0.5,
            "reward_extra_info": {
                "em": answered, "f1": answered / 2, "format_ok": 1.0, "answered": answered, "truncated": 1 - answered,
                "pred": "x",
            },
        }  # fmt: skip

    rollouts = [
        ("a", 1.0, fields(3, 1, 1, [0.1, 0.3], 1.0)),
        ("b", 1.0, fields(1, 0, 0, [0.2], 0.0)),
        ("c", 1.0, fields(0, 0, 0, [], 1.0)),
        ("d", 1.0, fields(0, 0, 0, [], 0.0)),
    ]
    values = step_metrics(rollouts, prefix="val-aux/")
    assert {name: value for name, value in values.items() if value} == {
        "val-aux/rollout/num_searches/mean": 1.0,
        "val-aux/rollout/num_searches/max": 3.0,
        "val-aux/rollout/num_searches/total": 4.0,
        "val-aux/rollout/golden_in_results/share": 0.5,
        "val-aux/rollout/em/mean": 0.5,
        "val-aux/rollout/f1/mean": 0.25,
        "val-aux/rollout/format_ok/share": 1.0,
        "val-aux/rollout/answered/share": 0.5,
        "val-aux/rollout/truncated/share": 0.5,
        "val-aux/rollout/cache_hits/share": 0.25,
        "val-aux/rollout/search_seconds/p50": 0.2,
        "val-aux/rollout/search_seconds/p95": 0.2,
        "val-aux/health/repeated_queries/share": 0.25,
        "val-aux/health/copied_text/share": 0.25,
        "val-aux/health/repetition/share": 0.5,
        "val-aux/health/answers_without_search/share": 0.5,
    }


def test_step_metrics_of_an_empty_step_and_of_rollouts_without_rewards_or_numbers() -> None:
    assert step_metrics([]) == NOTHING_LEFT_OUT
    assert step_metrics([("a", None, {}), ("a", None, {})]) == NOTHING_LEFT_OUT
    mixed = step_metrics([("a", 1.0, tokens(6, 2)), ("a", 1.0, {"turn_scores": []})])
    assert mixed["rollout/generated_tokens/mean"] == 6.0
    assert mixed["rollout/groups_without_spread/share"] == 1.0
