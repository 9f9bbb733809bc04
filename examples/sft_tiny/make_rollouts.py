"""Writes rollouts.jsonl: a careless searcher's attempts at the tiny world's training questions, scored as in training.

They stand in for the records of a training or of research-plugin eval, which have the same form.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from research_plugin.data.build_tiny import DATA_SOURCE, TRAIN_QUESTIONS
from research_plugin.data.tiny_traces import Faults, bm25_search, write_trace
from research_plugin.data.tiny_world import TRAIN, make_world, sample_questions
from research_plugin.records import RolloutRecord
from research_plugin.rewards import compute_score


def main(attempts: int = 2) -> None:
    """Write ``attempts`` rollouts a question."""
    world, rng = make_world(), random.Random(0)
    search, guesses = bm25_search(world.corpus), world.names(TRAIN)
    with Path("rollouts.jsonl").open("w", encoding="utf-8") as out:
        for index, question in enumerate(sample_questions(world, TRAIN, TRAIN_QUESTIONS)):
            for session in range(attempts):
                segments = write_trace(question, search, rng, Faults(), guesses)
                score = compute_score(
                    DATA_SOURCE, "", question.golden_answers, {"segments": segments, "stop_reason": "answered"}
                )
                record = RolloutRecord(
                    question=question.text,
                    golden_answers=list(question.golden_answers),
                    segments=[(segment.text, segment.by_policy) for segment in segments],
                    split="train",
                    session=session,
                    id=f"{DATA_SOURCE}-{TRAIN}-{index:05d}",
                    data_source=DATA_SOURCE,
                    method="research",
                    prompt="question",
                    scores={name: float(value) for name, value in score.items() if not isinstance(value, str)},
                    stop_reason="answered",
                )
                out.write(record.to_line() + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
