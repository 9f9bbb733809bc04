"""The data sets of the published tables: where their files are, how many rows each split has, which are prepared. Pure.

The files are FlashRAG's, one JSON object a line with ``id``, ``question`` and ``golden_answers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

REPOSITORY = "RUC-NLPIR/FlashRAG_datasets"
"""Data set repository on the Hugging Face hub; it holds NAME/SPLIT.jsonl."""


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """One data set.

    Attributes:
        rows: Number of questions of each split that has published answers.
        splits: What is prepared unless splits are named.
    """

    rows: Mapping[str, int]
    splits: tuple[str, ...] = ("dev",)


# Rows: facts of FlashRAG's data card; ReSearch (arXiv 2503.19470) trains on MuSiQue's train split and evaluates on the
# development sets, and on Bamboogle's only split. No test split of the first three has public answers.
PUBLISHED_SETS: dict[str, PublishedSet] = {
    "musique": PublishedSet({"train": 19_938, "dev": 2_417}, ("train", "dev")),
    "hotpotqa": PublishedSet({"train": 90_447, "dev": 7_405}),
    "2wikimultihopqa": PublishedSet({"train": 15_000, "dev": 12_576}),
    "bamboogle": PublishedSet({"test": 125}, ("test",)),
}


def count_problem(name: str, split: str, rows: int) -> str | None:
    """Return what is wrong with ``rows`` questions as this split of a published data set; None: nothing."""
    published = PUBLISHED_SETS[name].rows if name in PUBLISHED_SETS else {}
    if not published or published.get(split) == rows:
        return None
    same = [other for other, count in published.items() if count == rows]
    hint = f"; {rows:,} is the number of its {same[0]} split" if same else ""
    if split in published:
        return f"{name} {split}: {rows:,} rows, published are {published[split]:,}{hint}"
    known = ", ".join(f"{other} ({count:,} rows)" for other, count in published.items())
    return f"{name} {split}: {rows:,} rows, but this split has no public answers; those with answers: {known}{hint}"
