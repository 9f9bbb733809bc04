"""A made-up corpus of any size for the dense tests: short passages, all different, each with a question of its own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Adjective, noun, kind of thing, place, what it is known for.
_WORDS = (
    "amber silver golden iron copper crystal marble velvet winter summer autumn northern southern eastern western "
    "hidden silent broken ancient royal scarlet violet emerald ivory cobalt crimson misty frozen burning hollow",
    "falcon harbor lantern bridge garden tower river valley mountain forest island castle anchor arrow crown mirror "
    "hammer needle wagon whistle candle compass feather ladder orchard pebble rocket saddle thunder window",
    "museum school hotel theater ship novel song painting festival company airport hospital library newspaper "
    "bakery vineyard railway lighthouse cinema prison",
    "Lisbon Oslo Cairo Lima Prague Dublin Athens Kyoto Quebec Havana Warsaw Nairobi Boston Geneva Jakarta Madrid "
    "Manila Riga Tunis Zagreb",
    "maps clocks roses horses coins masks bells swords books shoes pearls violins kites stamps whales bread glass "
    "tigers trains wine",
)


@dataclass(frozen=True)
class Passage:
    """One document and a question that only it answers."""

    id: str
    contents: str
    question: str
    answer: str


def make_passages(count: int, seed: int = 0) -> Iterator[Passage]:
    """``count`` passages of 12 to 20 tokens, no two alike; the same ones for the same seed."""
    chosen, tables = random.Random(seed), [words.split() for words in _WORDS]
    seen: set[tuple[str, ...]] = set()
    while len(seen) < count:
        words = tuple(chosen.choice(table) for table in tables)
        if words[:4] in seen:
            continue
        number = len(seen)
        seen.add(words[:4])
        first, second, kind, place, thing = words
        title = f"{first} {second}".title()
        yield Passage(
            f"{number:05d}",
            f"{title}\n{title} is a {kind} in {place} known for its {thing}.",
            f"What is the {kind} {title} in {place} known for?",
            thing,
        )


def write_corpus(path: Path, count: int, seed: int = 0) -> None:
    """Write them in FlashRAG's form."""
    lines = (json.dumps({"id": passage.id, "contents": passage.contents}) for passage in make_passages(count, seed))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
