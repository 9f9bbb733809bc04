"""Writes a corpus and questions of one's own: corpus.jsonl, train.parquet and val.parquet, beside this file."""

from __future__ import annotations

import json
from pathlib import Path

from research_plugin.data.rows import make_row, write_parquet

FOLDER = Path(__file__).resolve().parent
MACHINES = ("lathe", "mill", "saw", "drill", "press", "forge", "kiln", "loom")
PEOPLE = ("Ines", "Otto", "Mira", "Jon")
DAYS = ("Monday", "Tuesday", "Thursday", "Friday")


def main() -> None:
    """Each machine has a keeper, each keeper a day in the workshop."""
    keepers = {machine: PEOPLE[index % len(PEOPLE)] for index, machine in enumerate(MACHINES)}
    days = dict(zip(PEOPLE, DAYS, strict=True))
    facts = [f"The {machine} is kept by {person}." for machine, person in keepers.items()]
    facts += [f"{person} is in the workshop on {day}." for person, day in days.items()]
    with (FOLDER / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
        for index, fact in enumerate(facts):
            corpus.write(json.dumps({"id": str(index), "contents": fact}) + "\n")

    questions = [
        (f"On which day can the {machine} be repaired?", days[person]) for machine, person in keepers.items()
    ] + [(f"Who keeps the {machine}?", person) for machine, person in keepers.items()]
    rows = [make_row("workshop", "train", index, q, [a]) for index, (q, a) in enumerate(questions[:-2] * 2)]
    write_parquet(rows, FOLDER / "train.parquet")
    write_parquet(
        [make_row("workshop", "val", i, q, [a]) for i, (q, a) in enumerate(questions[-2:])], FOLDER / "val.parquet"
    )


if __name__ == "__main__":
    main()
