"""The numbers that describe one rollout."""

from __future__ import annotations

import pytest

from research_plugin.document import Document
from research_plugin.metrics import rollout_metrics
from research_plugin.rollout import Rollout
from research_plugin.search_loop import Episode, Searched

KEYS = [
    "generated_tokens",
    "golden_in_results",
    "num_refused_searches",
    "num_repeated_queries",
    "num_searches",
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
    }


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
