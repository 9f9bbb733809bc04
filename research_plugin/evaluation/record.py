"""An attempt as a line of the run's records: its numbers, beside what was written and read."""

from __future__ import annotations

from dataclasses import asdict

from research_plugin.data.rows import Row, question_text
from research_plugin.evaluation.method import Attempt
from research_plugin.metrics import search_metrics
from research_plugin.records import RolloutRecord
from research_plugin.rewards import compute_score, golden_answers
from research_plugin.rewards.golden import name_row
from research_plugin.rewards.text_metrics import compare


def make_record(row: Row, attempt: Attempt, *, reward: str | None, seconds: float) -> RolloutRecord:
    """Score an attempt and put it down.

    Args:
        reward: Whose rules judge the response; None: there is none to judge, only the answer counts.
        seconds: How long it took.
    """
    info = row["extra_info"]
    golden = list(golden_answers(row["reward_model"]["ground_truth"], name_row(row["data_source"], info)))
    record = RolloutRecord(
        question=question_text(row),
        golden_answers=golden,
        segments=attempt.segments,
        uid=info["id"],
        id=info["id"],
        data_source=row["data_source"],
        queries=attempt.queries,
        documents=[[{"id": doc.id, "contents": doc.contents} for doc in docs] for docs in attempt.documents],
        pred=attempt.pred or "",
        stop_reason=attempt.stop_reason,
        metrics=_numbers(attempt, golden, seconds),
    )
    record.scores = {
        **asdict(compare(record.pred, golden)),
        "answered": float(bool(record.pred)),
        "truncated": float(attempt.stop_reason == "max_length"),
    }
    if reward is not None:
        extra = {**info, "segments": attempt.segments, "stop_reason": attempt.stop_reason}
        judged = compute_score(row["data_source"], "", golden, extra, method=reward)
        record.reason = str(judged["reason"])
        record.scores |= {name: float(value) for name, value in judged.items() if not isinstance(value, str)}
    record.scores["num_searches"] = record.metrics["num_searches"]  # of all attempts, where the best of several counts
    return record


def _numbers(attempt: Attempt, golden: list[str], seconds: float) -> dict[str, float]:
    numbers = search_metrics(attempt.queries, attempt.documents, golden)
    for name in ("prompt_tokens", "generated_tokens", "retrieved_tokens", "model_calls"):
        if (value := getattr(attempt, name)) is not None:
            numbers[name] = float(value)
    return {**numbers, "seconds": seconds}
