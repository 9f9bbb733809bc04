"""What the viewer shows of a record, how its files are read, and its page in a terminal."""

from __future__ import annotations

import io
import json
import os
import socket
from pathlib import Path

import pytest
from rollout_samples import HOSTILE, plain_rollout, sample_records, search_rollout, write_run

from research_plugin.cli import main
from research_plugin.errors import DataError
from research_plugin.protocol import R1_SEARCHER, SEARCH_R1, Document
from research_plugin.records import RolloutRecord, Tokens
from research_plugin.reports.read_records import RunRecords
from research_plugin.viewer.pages import COLUMNS, blocks_of, has_failed, page_of, row_of


def blocks(*segments: tuple[str, bool], documents: list[list[dict[str, str]]] | None = None) -> list[tuple[str, str]]:
    record = RolloutRecord("q", ["a"], list(segments), documents=documents or [])
    found = blocks_of(record)
    assert "".join(block.text for block in found) == record.response
    return [(block.kind, block.text) for block in found]


QUERY = "<|begin_of_query|> b <|end_of_query|>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think> a </think> <search> b", [("think", "<think> a </think> "), ("search", "<search> b")]),
        ("hm <answer>b</answer>.", [("text", "hm "), ("answer", "<answer>b</answer>"), ("text", ".")]),
        (f"a </think>\n\n{QUERY}", [("think", "a </think>\n\n"), ("search", QUERY)]),
        ("<think> cut", [("think", "<think> cut")]),
        ("<think> a <search> b", [("think", "<think> a "), ("search", "<search> b")]),
        ("\n<think>a</think>", [("think", "\n<think>a</think>")]),
        ("no tags", [("text", "no tags")]),
        ("", []),
    ],
)
def test_a_turn_is_cut_at_its_tags(text: str, expected: list[tuple[str, str]]) -> None:
    assert blocks((text, True)) == expected


def test_tags_in_an_observation_are_not_the_policys() -> None:
    observation = " <result>\n<answer>no</answer>\n</result>"
    assert blocks(("<search>q</search>", True), (observation, False)) == [
        ("search", "<search>q</search>"),
        ("result", observation),
    ]


@pytest.mark.parametrize("dialect", [R1_SEARCHER, SEARCH_R1], ids=lambda dialect: dialect.name)
def test_observations_get_their_own_documents(dialect) -> None:
    first, second = ([{"id": str(n), "contents": f"T{n}\ntext of {n}"}] for n in (1, 2))
    shown = [dialect.format_observation([Document("", found[0]["contents"])]) for found in (first, second)]
    notice = dialect.wrap(dialect.budget_notice)
    segments = [("a", True), (shown[0], False), ("b", True), (notice, False), ("c", True), (shown[1], False)]
    record = RolloutRecord("q", ["a"], segments, documents=[first, [], second])
    assert [block.documents for block in blocks_of(record) if block.kind == "result"] == [first, [], second]


def test_a_row_names_what_the_list_shows() -> None:
    row = dict(zip(COLUMNS, row_of(search_rollout(1, "Lindholm", 0.1)), strict=True))
    assert (row["step"], row["split"], row["searches"], row["failed"], row["advantage"]) == (12, "train", 1, 1, -0.45)
    assert row["own"] + row["retrieved"] == len(search_rollout(1, "Lindholm", 0.1).tokens.mask)


@pytest.mark.parametrize(
    ("scores", "failed"),
    [({"f1": 0.0, "score": 0.1}, True), ({"f1": 0.2, "score": 0.0}, False), ({"score": 0.0}, True), ({}, False)],
)
def test_a_rollout_fails_when_nothing_of_its_answer_is_right(scores: dict[str, float], failed: bool) -> None:
    assert has_failed(plain_rollout(1, scores=scores)) is failed


def test_pages_are_valid_json_whatever_the_numbers() -> None:
    nan, inf = float("nan"), float("inf")
    record = plain_rollout(
        1,
        scores={"score": nan, "f1": inf, "num_searches": nan},
        metrics={"generated_tokens": inf},
        advantage=-inf,
        tokens=Tokens(["a", "b"], [1, 1], [nan, -inf]),
    )
    json.dumps([row_of(record), page_of(record)], allow_nan=False)
    pytest.importorskip("rich")
    from research_plugin.viewer.tty import mask_text

    assert mask_text(record).plain == "ab"


def test_new_records_are_found_once_when_their_line_is_whole(tmp_path: Path) -> None:
    run = write_run(tmp_path, sample_records())
    records = RunRecords(run)
    assert len(list(records.new())) == 6
    with (run / "records" / "val_000001.jsonl").open("a") as out:
        line = plain_rollout(9).to_line()
        out.write('{"question": "torn\n\n' + line[:-1])
        out.flush()
        assert list(records.new()) == []
        out.write(line[-1])  # the last line of a file made by hand may have no end
        out.flush()
        [(place, record)] = records.new()
        out.write("\n")
    assert record == records.read(place) == plain_rollout(9)
    assert list(records.new()) == []
    assert len(records.unreadable) == 1
    place.path.unlink()
    with pytest.raises(DataError, match="cannot be read any more"):
        records.read(place)


def test_a_digit_that_is_no_number_is_a_name(tmp_path: Path) -> None:
    line = plain_rollout(1).to_line() + "\n"
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "train_².jsonl").write_text(line)
    (tmp_path / "records" / "train_000001.jsonl").write_text(line)
    assert [path.stem for path in RunRecords(tmp_path).files()] == ["train_²", "train_000001"]


def test_verls_dumps_become_records(tmp_path: Path) -> None:
    output = (
        "<think> a </think> <search> who </search> <result>\nT\nMara\n</result> <think> b </think> "
        "<answer> \\boxed{Mara} </answer>"
    )
    line = {"input": "system\nuser\nWho was it?\nassistant\n", "output": output, "gts": {"target": ["Mara"]}}
    line["score"] = 0.7
    for folder, step, extra in (
        ("rollouts", 10, {}),
        ("rollouts", 9, {}),
        ("validation", 10, {"f1": 0.5, "pred": "x"}),
    ):
        path = tmp_path / folder / f"{step}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**line, "step": step, "uid": "abc_2_0", **extra}) + "\n")
    first, second, third = (record for _, record in RunRecords(tmp_path).new())
    assert [(each.split, each.step) for each in (first, second, third)] == [("train", 9), ("train", 10), ("val", 10)]
    assert (first.question, first.uid, first.session, first.queries) == ("Who was it?", "abc", 2, ["who"])
    assert [own for _, own in first.segments] == [True, False, True]
    assert (first.golden_answers, first.scores["score"], first.scores["f1"]) == (["Mara"], 0.7, 1.0)
    assert first.pred == "Mara"
    assert (third.scores["f1"], third.pred) == (0.5, "x")


def test_a_run_without_rollouts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path)]) == 1
    assert "holds no rollouts: looked for" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["view", str(tmp_path / "nowhere")]) == 1
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {}}\n')
    assert main(["view", str(tmp_path / "metrics.jsonl")]) == 1
    assert "is no rollout record" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_runs_name_need_not_be_unicode(tmp_path: Path) -> None:
    run = write_run(tmp_path / os.fsdecode(b"run\xff"), sample_records())
    (run / "metrics.jsonl").write_text('{"step": 1, "data": {"critic/score/mean": 0.5}}\n')
    assert main(["view", str(run), "--out", str(tmp_path / "viewer.html")]) == 0
    assert "<title>run?</title>" in (tmp_path / "viewer.html").read_text()
    pytest.importorskip("matplotlib")
    assert main(["report", "curves", str(run), "--out", str(tmp_path)]) == 0


def test_what_cannot_be_written_or_served_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", sample_records())
    (tmp_path / "file").touch()
    assert main(["view", str(run), "--out", str(tmp_path / "file" / "viewer.html")]) == 1
    assert "choose another place with --out" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["view", str(run), "--serve", "--port", str(taken.getsockname()[1])]) == 1
    assert "--port 0 takes a free one" in capsys.readouterr().err


def test_terminal_marks_trained_tokens(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    from research_plugin.viewer.tty import mask_text

    record = search_rollout(1, "Lindholm", 0.1, doubt=0.9)
    text = mask_text(record)
    assert text.plain == record.response
    trained = {at for span in text.spans if "underline" in str(span.style) for at in range(span.start, span.end)}
    tokens = zip(record.tokens.texts, record.tokens.mask, strict=True)
    expected = [bool(own) for token, own in tokens for _ in token]
    assert [at in trained for at in range(len(text.plain))] == expected


def test_terminal_text_steers_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    from rich.console import Console

    from research_plugin.viewer.tty import page_text

    record = plain_rollout(1, question="\x1b[2J[red]q", segments=[(f"\x1b]0;x\x07[bold]{HOSTILE}", True)])
    out = io.StringIO()
    Console(file=out, width=200).print(page_text(record))
    assert "\x1b" not in out.getvalue()
    assert f"[bold]{HOSTILE}" in out.getvalue()
    assert main(["view", str(write_run(tmp_path, [record])), "--tty"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b[2J" not in printed
    assert "[red]q" in printed
