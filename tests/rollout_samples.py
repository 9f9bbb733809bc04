"""A run folder with records as a training writes them: a group with documents and tokens, and text that bites."""

from __future__ import annotations

from pathlib import Path

from research_plugin.protocol import RESEARCH, Document
from research_plugin.records import RolloutRecord, Tokens

HOSTILE = '</script><script>window.hit=1</script><img src=x onerror="window.hit=1"><!-- ]]> &amp; <b>bold</b>'
QUESTION = "In which city lies the university where the author of The Silent Orchard taught?"
PASSAGES = (
    {"id": "11", "contents": "The Silent Orchard\nThe Silent Orchard is a novel of 1931 by Mara Velden."},
    {"id": "12", "contents": "Mara Velden\nMara Velden taught history at the University of Lindholm in Torvik."},
    {"id": "13", "contents": f"Notes\n{HOSTILE}"},
)


def search_rollout(session: int, answer: str, score: float, *, step: int = 12, doubt: float = 0.0) -> RolloutRecord:
    """Return a rollout with one search; ``doubt`` lowers the log-probability of every other token it wrote."""
    found = list(PASSAGES[session % 2 :])
    observation = RESEARCH.format_observation([Document(each["id"], each["contents"]) for each in found])
    query = "who wrote The Silent Orchard"
    segments = [
        (f"<think> I need the author first. </think> <search> {query} </search>", True),
        (observation, False),
        (f" <think> She taught in {answer}. </think>\n<answer> \\boxed{{{answer}}} </answer>", True),
    ]
    return RolloutRecord(
        question=QUESTION,
        golden_answers=["Torvik"],
        segments=segments,
        step=step,
        split="train",
        uid="group-a",
        session=session,
        id="q7",
        data_source="sample",
        method="research",
        prompt=f"user\n{QUESTION}\nassistant\n",
        queries=[query],
        documents=[found],
        scores={
            "score": score,
            "f1": float(score > 0.1),
            "em": float(score > 0.1),
            "format_ok": 1.0,
            "num_searches": 1,
        },
        pred=answer,
        reason="answer matches" if score > 0.1 else "wrong answer, right format",
        stop_reason="answered",
        advantage=0.45 if score > 0.55 else -0.45,
        tokens=tokens_of(segments, doubt),
    )


def tokens_of(segments: list[tuple[str, bool]], doubt: float) -> Tokens:
    """Cut the segments into tokens of four characters."""
    pieces = [(text[at : at + 4], own) for text, own in segments for at in range(0, len(text), 4)]
    logs = [-(doubt * (number % 7) + 0.01) if own else 0.0 for number, (_, own) in enumerate(pieces)]
    return Tokens([text for text, _ in pieces], [int(own) for _, own in pieces], logs)


def plain_rollout(number: int, **changes: object) -> RolloutRecord:
    """Return a short rollout without a search: question ``number``, of step ``number``, answered wrongly."""
    values: dict[str, object] = {
        "question": f"Question {number}?",
        "golden_answers": [f"gold {number}"],
        "segments": [(f"<think> no idea </think> <answer> guess {number} </answer>", True)],
        "step": number,
        "split": "val",
        "uid": f"q{number}",
        "pred": f"guess {number}",
        "scores": {"score": 0.0, "f1": 0.0, "num_searches": 0},
        "stop_reason": "max_length",
    }
    return RolloutRecord(**{**values, **changes})  # type: ignore[arg-type]


def sample_records() -> list[RolloutRecord]:
    """Return a group of three, and three single rollouts; one of these is hostile from end to end."""
    return [
        search_rollout(0, "Torvik", 1.0),
        search_rollout(1, "Lindholm", 0.1, doubt=0.9),
        search_rollout(2, "Torvik", 1.0, doubt=0.2),
        plain_rollout(1),
        plain_rollout(2, scores={"score": 0.4, "f1": 0.4, "num_searches": 0}),
        plain_rollout(
            3,
            question=HOSTILE,
            pred=HOSTILE,
            reason=HOSTILE,
            golden_answers=[HOSTILE],
            segments=[(f"<answer>{HOSTILE}</answer>", True)],
            prompt=HOSTILE,
        ),
    ]


def write_run(folder: Path, records: list[RolloutRecord]) -> Path:
    """Write the records of a run, one file a split, and return its folder."""
    for split in {record.split for record in records}:
        path = folder / "records" / f"{split}_000001.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (record.to_line() for record in records if record.split == split)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder
