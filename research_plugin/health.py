"""Signs that a training is falling apart: numbers of one rollout's text, and when a run's course earns a warning.

Pure. A healthy level depends on model, data and method, so each sign is compared with the run's own first steps; the
thresholds are in `SIGNS` and in docs/metrics.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

WINDOW = 5
"""Steps that are averaged: the first ones are the run's start, the last ones its present."""
REPEATED_WORDS = 4
COPIED_WORDS = 8


@dataclass(frozen=True, slots=True)
class Sign:
    """A metric and how far it may move.

    It has risen when it is above both start + ``add`` and start x ``times``, and fallen when it is below start x
    ``times``; ``best``: below its best present so far x ``times``.
    """

    metric: str
    label: str
    direction: Literal["rise", "fall", "best"]
    add: float = 0.0
    times: float = 1.0


SIGNS = (
    Sign("health/repeated_queries/share", "queries asked before", "rise", add=0.2),
    Sign("health/copied_text/share", "text copied from results", "rise", add=0.15),
    Sign("health/own_results/share", "rollouts with results the policy made up", "rise", add=0.1),
    Sign("health/answers_without_search/share", "answers without a search", "rise", add=0.3),
    Sign("health/retrieved_tokens/share", "retrieved share of the tokens", "rise", add=0.3),
    Sign("health/repetition/share", "text that repeats itself", "rise", add=0.15),
    Sign("rollout/groups_without_spread/share", "groups without spread", "rise", add=0.5),
    Sign("rollout/truncated/share", "truncated rollouts", "rise", add=0.3),
    Sign("actor/entropy", "entropy", "rise", add=0.5, times=3.0),
    Sign("actor/entropy", "entropy", "fall", times=0.1),
    Sign("rollout/format_ok/share", "right format", "best", times=0.7),
    Sign("critic/score/mean", "reward", "best", times=0.5),
)


@dataclass(frozen=True, slots=True)
class Alarm:
    """A sign that moved too far: the step, and the levels it is judged by."""

    step: int
    sign: Sign
    before: float
    now: float

    def __str__(self) -> str:
        since = "at best" if self.sign.direction == "best" else f"in the first {WINDOW} steps"
        return f"{self.sign.label} {self.now:.3g} ({self.before:.3g} {since})"


class Watch:
    """Follows a run step by step; each sign raises its alarm once."""

    def __init__(self) -> None:
        """Start without a past."""
        self._start: dict[Sign, list[float]] = {sign: [] for sign in SIGNS}
        self._present: dict[Sign, deque[float]] = {sign: deque(maxlen=WINDOW) for sign in SIGNS}
        self._best: dict[Sign, float] = {}
        self._raised: set[Sign] = set()

    def update(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """Take in one training step's metrics; return the alarms that it raises, mostly none."""
        alarms = []
        for sign in SIGNS:
            value = metrics.get(sign.metric)
            if value is None or sign in self._raised or value != value:
                continue
            if len(self._start[sign]) < WINDOW:
                self._start[sign].append(float(value))
                continue
            self._present[sign].append(float(value))
            if len(self._present[sign]) == WINDOW and (alarm := self._judge(step, sign)):
                self._raised.add(sign)
                alarms.append(alarm)
        return alarms

    def _judge(self, step: int, sign: Sign) -> Alarm | None:
        start, now = (sum(values) / WINDOW for values in (self._start[sign], self._present[sign]))
        if sign.direction == "rise":
            return Alarm(step, sign, start, now) if now > max(start + sign.add, start * sign.times) else None
        before = start
        if sign.direction == "best":
            before = self._best[sign] = max(start, now, self._best.get(sign, now))
        return Alarm(step, sign, before, now) if now < before * sign.times else None


def warning_line(alarms: Sequence[Alarm]) -> str:
    """Return what to print for the alarms of one step."""
    what = ", ".join(map(str, alarms))
    return f"WARNING: this run may be collapsing, step {alarms[0].step}: {what}; docs/metrics.md says what to look at"


def find_alarms(steps: Iterable[tuple[int, Mapping[str, float]]]) -> list[Alarm]:
    """Return every alarm of a whole run, given its steps in order."""
    watch = Watch()
    return [alarm for step, metrics in steps for alarm in watch.update(step, metrics)]


def repetition(text: str) -> float:
    """Return which share of the text's runs of `REPEATED_WORDS` words stood in it before."""
    words = text.split()
    count = len(words) - REPEATED_WORDS + 1
    return 1.0 - len(set(_runs(words, REPEATED_WORDS))) / count if count > 0 else 0.0


def copied(texts: Iterable[str], results: Iterable[str]) -> float:
    """Return which share of the policy's runs of `COPIED_WORDS` words stands in a result, too."""
    own = [text.split() for text in texts]
    vocabulary = {word for words in own for word in words}
    known: set[tuple[str, ...]] = set()
    for words in map(str.split, results):
        # Few results have a run of the policy's words at all; the others are not cut into runs.
        if b"\1" * COPIED_WORDS in bytes(map(vocabulary.__contains__, words)):
            known.update(_runs(words, COPIED_WORDS))
    count = sum(max(0, len(words) - COPIED_WORDS + 1) for words in own)
    if not known or not count:
        return 0.0
    return sum(sum(map(known.__contains__, _runs(words, COPIED_WORDS))) for words in own) / count


def _runs(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    # Nothing in Python per run: this is done for every rollout.
    return zip(*(words[start:] for start in range(length)), strict=False)
