"""When a run's course earns a warning, and the numbers of a rollout's text."""

from __future__ import annotations

import pytest

from research_plugin.health import WINDOW, Watch, copied, find_alarms, repetition, warning_line

REPEATED = "health/repeated_queries/share"


def course(metric: str, *levels: float) -> list[tuple[int, dict[str, float]]]:
    """A run that stays at each level for as many steps as are averaged."""
    values = [level for level in levels for _ in range(WINDOW)]
    return [(step, {metric: value, "other": 1.0}) for step, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("metric", "levels", "alarms"),
    [
        (REPEATED, (0.1, 0.29), 0),
        (REPEATED, (0.1, 0.31), 1),
        (REPEATED, (0.6, 0.75), 0),
        ("actor/entropy", (1.0, 0.2), 0),
        ("actor/entropy", (1.0, 0.09), 1),
        ("actor/entropy", (0.1, 0.59), 0),
        ("actor/entropy", (0.1, 0.61), 1),
        ("actor/entropy", (1.0, 2.9), 0),
        ("critic/score/mean", (0.2, 0.11), 0),
        ("critic/score/mean", (0.2, 0.8, 0.41), 0),
        ("critic/score/mean", (0.2, 0.8, 0.39), 1),
        ("critic/score/mean", (0.0, 0.0), 0),
    ],
)
def test_alarms_are_judged_by_the_runs_own_levels(metric: str, levels: tuple[float, ...], alarms: int) -> None:
    assert len(find_alarms(course(metric, *levels))) == alarms


def test_an_alarm_is_raised_once_and_says_what_it_is_judged_by() -> None:
    alarms = find_alarms(course(REPEATED, 0.1, 0.1, 0.9, 0.1, 0.9))
    assert [(alarm.step, alarm.before, round(alarm.now, 2)) for alarm in alarms] == [(12, pytest.approx(0.1), 0.42)]
    line = warning_line(alarms)
    assert line.startswith(
        "WARNING: this run may be collapsing, step 12: queries asked before 0.42 (0.1 in the first 5"
    )
    assert "\n" not in line


def test_one_bad_step_and_missing_numbers_raise_nothing() -> None:
    steps = course("health/repetition/share", 0.1, 0.1, 0.1)
    steps[11][1]["health/repetition/share"] = 0.5
    steps[12] = (13, {})
    steps[13][1]["health/repetition/share"] = float("nan")
    assert find_alarms(steps) == []
    watch = Watch()
    assert [watch.update(step, {}) for step in range(30)] == [[]] * 30


def test_repetition() -> None:
    assert repetition("") == repetition("a b c") == repetition("a b c d e") == 0.0
    assert repetition("a b c d " * 5) == pytest.approx(13 / 17)


def test_copied_needs_a_run_of_words() -> None:
    result = "the mayor of the town was born in the north"
    assert copied(["I think the mayor of the town was born there"], [result]) == 0.0
    assert copied(["the mayor of the town was born in"], [result, ""]) == 1.0
    assert copied(["the mayor of the town", "was born in the north"], [result]) == 0.0
    assert copied([], [result]) == copied(["a " * 20], []) == 0.0
