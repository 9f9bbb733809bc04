"""What the short training run wrote down of itself: records, metrics and the run card."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from tiny_training import QUESTIONS, STEPS

from research_plugin.cli import main
from research_plugin.records import RolloutRecord
from research_plugin.reports.read_records import RunRecords
from research_plugin.reports.summary import read_metrics

pytest.importorskip("verl")
pytest.importorskip("vllm")
pytestmark = [pytest.mark.e2e, pytest.mark.verl]

SHARES = {"format_ok", "answered", "truncated", "golden_in_results", "cache_hits", "search_failed"}
HEALTH = {"repeated_queries", "copied_text", "own_results", "answers_without_search", "retrieved_tokens", "repetition"}
NAMES = {
    *(f"rollout/{name}/share" for name in SHARES),
    *(f"rollout/{name}/mean" for name in ("num_searches", "em", "f1", "generated_tokens", "retrieved_tokens")),
    *(f"rollout/search_seconds/{percent}" for percent in ("p50", "p95")),
    *(f"health/{name}/share" for name in HEALTH),
    "rollout/num_searches/max",
}


@pytest.fixture(scope="module")
def records(tiny_run: Path) -> dict[tuple[str, int], list[RolloutRecord]]:
    steps: dict[tuple[str, int], list[RolloutRecord]] = {}
    for _, record in RunRecords(tiny_run).new():
        steps.setdefault((record.split, record.step), []).append(record)
    return steps


def test_every_step_and_validation_is_recorded_in_whole_groups(
    records: dict[tuple[str, int], list[RolloutRecord]],
) -> None:
    assert {key: len(found) for key, found in records.items()} == {
        **{("train", step): 16 * 5 for step in range(1, STEPS + 1)},
        **{("val", step): QUESTIONS for step in (0, STEPS)},
    }
    groups = Counter(
        (record.step, record.uid) for (split, _), found in records.items() if split == "train" for record in found
    )
    assert set(groups.values()) == {5}
    assert {record.question for record in records["val", 0]} == {record.question for record in records["val", STEPS]}


def test_the_recorded_mask_is_what_was_trained_on(
    tiny_run: Path, records: dict[tuple[str, int], list[RolloutRecord]]
) -> None:
    """veRL's own figures of the batch it updated with: they change if a mask or an advantage is another."""
    metrics = dict(read_metrics(tiny_run / "metrics.jsonl"))
    for step in range(1, STEPS + 1):
        rollouts = records["train", step]
        own = [sum(record.tokens.mask) for record in rollouts if record.tokens]
        advantages = [record.advantage for record in rollouts if record.advantage is not None]
        assert len(own) == len(advantages) == len(rollouts)
        mean = sum(a * count for a, count in zip(advantages, own, strict=True)) / sum(own)
        logged = {name: metrics[step][f"critic/advantages/{name}"] for name in ("mean", "max", "min")}
        assert logged == pytest.approx({"mean": mean, "max": max(advantages), "min": min(advantages)}, abs=1e-4)
        lengths = [len(record.tokens.mask) for record in rollouts if record.tokens]
        assert metrics[step]["response_length/mean"] == pytest.approx(sum(lengths) / len(lengths), rel=1e-5)
        assert metrics[step]["critic/score/mean"] == pytest.approx(
            sum(record.scores["score"] for record in rollouts) / len(rollouts), rel=1e-4
        )


def test_a_recorded_mask_is_0_exactly_on_what_was_retrieved(
    records: dict[tuple[str, int], list[RolloutRecord]],
) -> None:
    searched = [record for found in records.values() for record in found if record.queries]
    assert searched
    for record in searched:
        tokens = record.tokens
        assert tokens is not None
        assert tokens.log_probs is not None
        observed = "".join(text for text, own in zip(tokens.texts, tokens.mask, strict=True) if not own)
        assert observed == "".join(text for text, by_policy in record.segments if not by_policy)
        assert all(own or not log_prob for own, log_prob in zip(tokens.mask, tokens.log_probs, strict=True))
        assert len(record.documents) == len(record.queries)
        # The last search's passages may have had no room any more.
        shown = record.documents[:-1] if record.stop_reason == "max_length" else record.documents
        assert all(document["contents"] in record.response for found in shown for document in found)


def test_every_metric_is_logged_for_training_and_validation(tiny_run: Path) -> None:
    rows = read_metrics(tiny_run / "metrics.jsonl")
    trained = [data for _, data in rows if "actor/grad_norm" in data]
    validated = [data for _, data in rows if "val-aux/rollout/em/mean" in data]
    assert (len(trained), len(validated)) == (STEPS, 2)
    for data in trained:
        missing = {name for name in NAMES if not math.isfinite(data.get(name, math.nan))}
        assert missing == set()
    for data in validated:
        missing = {name for name in NAMES if not math.isfinite(data.get(f"val-aux/{name}", math.nan))}
        assert missing == set()
        assert data["val-aux/rollout/em/mean"] == pytest.approx(data["val-aux/tiny_world/em/mean@1"])


def test_the_run_leaves_its_card(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = json.loads((tiny_run / "run_card.json").read_text())
    assert (card["recipe"], card["state"], card["steps"]) == ("research_tiny", "finished", STEPS)
    assert card["gpu_hours"] == 0
    assert 0 < card["hours"] < 0.5
    assert min(card["training"].values()) > 0
    assert card["training"]["retrieval_calls"] <= card["training"]["searches"]
    assert card["validation"]["last"]["step"] == STEPS
    assert card["retriever"].popitem()[1]["size"] == 1570
    assert main(["report", "card", str(tiny_run)]) == 0
    assert (tiny_run / "run_card.md").read_text() in capsys.readouterr().out
