"""The short view of a training log."""

from __future__ import annotations

import io
import re

from research_plugin.reports.follow import follow

PREFIX = "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m "
LOG = [
    "(raylet) noise\n",
    f"{PREFIX}all initialize finished, ready to fit\n",
    f"{PREFIX}all initialize finished, ready to fit\n",
    f"{PREFIX}step:3 - critic/score/mean:0.41 - response_length/mean:99.0 - rollout/generated_tokens/mean:61.5"
    " - rollout/retrieved_tokens/mean:37.5 - actor/grad_norm:np.float64(0.11) - timing_s/step:9.25\n",
    f"{PREFIX}WARNING: this run may be collapsing, step 3: entropy 0.01\n",
]
END = [
    "greedy, held-out questions    before   after\n",
    "(raylet) late\n",
    "logs, rollouts and summary.json: /runs/x\n",
]


def test_follow_shows_steps_milestones_and_the_table_and_keeps_every_line() -> None:
    log, out = io.StringIO(), io.StringIO()
    assert follow(iter([*LOG, *END, "after the end\n"]), log, out)
    assert log.getvalue() == "".join([*LOG, *END, "after the end\n"])
    assert [re.sub(r"^\[ *\d+ s\] ", "", line) for line in out.getvalue().splitlines()] == [
        "everything is ready, validating before training",
        "step 3: reward 0.41, own tokens 61.5, retrieved 37.5, grad norm 0.11, seconds 9.25",
        "WARNING: this run may be collapsing, step 3: entropy 0.01",
        "greedy, held-out questions    before   after",
        "logs, rollouts and summary.json: /runs/x",
    ]


def test_follow_ends_with_the_last_lines_of_a_run_without_a_summary() -> None:
    out = io.StringIO()
    assert not follow(iter([*LOG, "ValueError: the reason\n"]), io.StringIO(), out)
    assert out.getvalue().endswith("entropy 0.01\nValueError: the reason\n")
