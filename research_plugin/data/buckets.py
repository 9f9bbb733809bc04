"""Questions by difficulty, and mixes drawn from them for the stages of a curriculum. Pure."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from research_plugin.data.rows import Row
from research_plugin.errors import ConfigError

BUCKETS = ("easy", "medium", "hard")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the buckets, in rollouts until the first right answer (R1-Searcher, arXiv 2503.05592)."""

    easy_below: int = 10
    medium_to: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.easy_below <= self.medium_to:
            raise ConfigError(f"--easy-below {self.easy_below} --medium-to {self.medium_to}: medium has no place")

    def bucket(self, first_right: int | None) -> str:
        """Return the bucket of a question by the number of its first right rollout; None: there was none."""
        if first_right is None or first_right > self.medium_to:
            return "hard"
        return "easy" if first_right < self.easy_below else "medium"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a mix: so many questions of a bucket, from one data source or any."""

    source: str | None
    bucket: str
    count: int


def parse_mix(text: str) -> tuple[str, list[Share]]:
    """Read ``NAME=[SOURCE/]BUCKET:COUNT,...``, such as ``stage1=medium:350`` or ``s1=hotpotqa/medium:200,hard:9``.

    Raises:
        ConfigError: it is something else.
    """
    name, _, parts = text.partition("=")
    shares = []
    for part in parts.split(","):
        found = re.fullmatch(rf"(?:(.+)/)?({'|'.join(BUCKETS)}):([1-9]\d*)", part.strip())
        if found is None or not re.fullmatch(r"[\w.-]+", name) or name in BUCKETS:
            raise ConfigError(
                f"--mix {text!r}; give NAME=BUCKET:COUNT,... with a bucket of {', '.join(BUCKETS)}, before it a data "
                "source if you like (hotpotqa/medium:200), and a name that is no bucket's"
            )
        shares.append(Share(found[1], found[2], int(found[3])))
    return name, shares


def draw_mixes(
    mixes: Mapping[str, Sequence[Share]], buckets: Mapping[str, Sequence[Row]], seed: int
) -> dict[str, list[Row]]:
    """Draw every mix at random, in order; no question is in two of them. The same seed draws the same ones.

    Raises:
        ConfigError: there are fewer questions than a mix asks for.
    """
    chance = random.Random(seed)
    left = {name: chance.sample(list(rows), len(rows)) for name, rows in buckets.items()}
    drawn: dict[str, list[Row]] = {}
    for name, shares in mixes.items():
        rows: list[Row] = []
        for share in shares:
            fitting = [row for row in left[share.bucket] if share.source in (None, row["data_source"])]
            if len(fitting) < share.count:
                left_over = dict(Counter(row["data_source"] for row in left[share.bucket]))
                raise ConfigError(
                    f"mix {name}: {share.count} {share.bucket} questions of {share.source or 'any source'} are wanted "
                    f"and {len(fitting)} are left (by source: {left_over})"
                )
            rows += fitting[: share.count]
            taken = {row["extra_info"]["id"] for row in fitting[: share.count]}
            left[share.bucket] = [row for row in left[share.bucket] if row["extra_info"]["id"] not in taken]
        chance.shuffle(rows)
        drawn[name] = rows
    return drawn
