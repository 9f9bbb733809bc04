"""research-plugin data sft: which rollouts are chosen, and how their tokens are masked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from research_plugin.cli import main
from research_plugin.data.sft import choose
from research_plugin.data.sft_rows import encode_row
from research_plugin.data.tiny_files import tiny_dir
from research_plugin.errors import ConfigError
from research_plugin.prompts import load_prompt
from research_plugin.records import RolloutRecord
from research_plugin.tokens import HFCodec, build_prompt_ids, end_token_ids

SEGMENTS = [
    ("<think> a </think> <search> b </search>", True),
    (" <result>\nHe said <|im_end|> once.\n</result>", False),
    (r" <answer> \boxed{ c } </answer><|endoftext|>", True),
]


def record(question: str = "q", **fields: Any) -> RolloutRecord:
    values = {"method": "research", "prompt": "question", "split": "train", "stop_reason": "answered"}
    scores = {"score": 1.0, "em": 1.0, "num_searches": 1.0}
    return RolloutRecord(question, ["c"], **{"segments": list(SEGMENTS), **values, "scores": scores, **fields})


def write(path: Path, *records: RolloutRecord) -> Path:
    path.write_text("".join(each.to_line() + "\n" for each in records), encoding="utf-8")
    return path


def export(*arguments: object) -> int:
    return main(["data", "sft", *map(str, arguments)])


def test_choose_leaves_out_what_is_not_good_and_says_why() -> None:
    wrong = {"score": 0.1, "em": 0.0, "num_searches": 2.0}
    records = [
        record("a", scores=wrong),
        record("b", stop_reason="max_length"),
        record("c", split="val"),
        record("d"),
        record("e", stop_reason="", scores={"score": 1.0, "em": 1.0, "answered": 1.0}),
        record("f", stop_reason="", scores={"score": 1.0, "em": 1.0, "answered": 0.0}),
        record("g", scores={"score": 1.0, "em": float("nan")}),
    ]
    left_out: Counter[str] = Counter()
    assert [each.question for each in choose(records, {"em": 1.0}, 1, left_out)] == ["d", "e"]
    assert left_out == {"em < 1": 2, "no answer": 2, "validation": 1}
    with pytest.raises(ConfigError, match="--at-least f2: the rollouts' scores are score, em"):
        choose(records, {"f2": 1.0}, 1, left_out)


def test_choose_takes_the_best_of_a_question() -> None:
    scores = {"em": 1.0, "score": 0.9}
    records = [
        record(scores=scores, session=0),
        record(queries=["x", "y"], session=1),
        record(queries=["x"], session=2),
        record(segments=[("long" * 99, True)], queries=["x"], session=3),
    ]
    left_out: Counter[str] = Counter()
    assert [each.session for each in choose(records, {"em": 1.0}, 2, left_out)] == [2, 3]
    assert left_out == {"another one of its question is better": 2}


def test_rows_hold_the_prompt_that_the_rollout_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyarrow import parquet

    run = tmp_path / "run"
    (run / "records").mkdir(parents=True)
    write(run / "records/train_000001.jsonl", record(), record("r", method="search_r1", prompt="base"))
    assert export(run, "--out", tmp_path / "sft.parquet") == 0
    rows = parquet.read_table(tmp_path / "sft.parquet").to_pylist()
    assert [(row["question"], row["protocol"], row["prompt_style"]) for row in rows] == [
        ("q", "research", "question"),
        ("r", "search_r1", "base"),
    ]
    assert [(segment["text"], segment["by_policy"]) for segment in rows[0]["segments"]] == SEGMENTS
    assert "2 rollouts" in capsys.readouterr().out


def test_unknown_prompts_and_empty_choices_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = f"<|im_start|>system\n{load_prompt('research', 'instruct')}<|im_end|>\n<|im_start|>user ..."
    path, out = write(tmp_path / "r.jsonl", record(prompt=prompt)), tmp_path / "o"
    assert export(path, "--out", out) == 1
    assert "say with --protocol and --style" in capsys.readouterr().err
    assert export(path, "--out", out, "--style", "instruct", "--at-least", "num_searches=2") == 1
    assert "no rollout is left (1 num_searches < 2)" in capsys.readouterr().err
    assert export(path, "--out", out, "--style", "base") == 1
    assert "--style base: the prompt of the research protocol in this style is not" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        export(path, "--out", out, "--at-least", "em")
    assert "'em' is not NAME=X" in capsys.readouterr().err
    assert not out.exists()
    assert export(path, "--out", out, "--per-question", 0) == 1
    assert "--per-question 0: 1 or more" in capsys.readouterr().err
    assert export(path, path, "--out", out, "--style", "instruct", "--per-question", 2) == 0
    assert " 1 rollouts" in capsys.readouterr().out  # one run named twice is one run
    assert export(path, "--out", tmp_path, "--style", "instruct") == 1
    assert {each.name for each in tmp_path.iterdir()} == {"r.jsonl", "o"}


def test_loss_mask_is_zero_on_prompt_and_observations_and_nowhere_else() -> None:
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tiny_dir() / "model")
    codec = HFCodec(tokenizer, end_token_ids(tokenizer))
    row = {
        "question": "Who?",
        "segments": [{"text": text, "by_policy": own} for text, own in SEGMENTS],
        "protocol": "research",
        "prompt_style": "question",
        "prompt_file": None,
    }
    ids, mask = encode_row(codec, row)
    assert len(ids) == len(mask)
    prompt = build_prompt_ids(codec, "Who?", protocol="research", style="question")
    assert ids[: len(prompt)] == prompt and not any(mask[: len(prompt)])

    runs: list[tuple[int, list[int]]] = []
    for token, own in zip(ids[len(prompt) :], mask[len(prompt) :], strict=True):
        if not runs or runs[-1][0] != own:
            runs.append((own, []))
        runs[-1][1].append(token)
    assert [own for own, _ in runs] == [1, 0, 1]
    texts = [codec.decode(piece) for _, piece in runs]
    # The server wrote <|endoftext|>; the model is taught the tokenizer's own end token.
    assert texts == [SEGMENTS[0][0], SEGMENTS[1][0], r" <answer> \boxed{ c } </answer><|im_end|>"]
    assert runs[1][1] == codec.encode(SEGMENTS[1][0])
    assert ids.count(tokenizer.eos_token_id) == prompt.count(tokenizer.eos_token_id) + 1  # none inside the passage
