"""Reads the data files of a run: golden answers, questions, and whether validation measures something new."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from research_plugin.errors import DataError
from research_plugin.finding import FAIL, OK, WARNING, Finding
from research_plugin.rewards import golden_answers

_FIRST = 32  # questions kept to try the prompt with


@dataclass
class RowsSeen:
    """What the files of one split hold."""

    count: int = 0
    questions: set[str] = field(default_factory=set)
    first: list[str] = field(default_factory=list)
    """The first questions, at most 32."""
    faulty: int = 0
    """Rows without a golden answer, a user message or a data source."""
    fault: str = ""
    """What is wrong with the first of them."""


def check_rows(config: Mapping[str, Any]) -> tuple[list[Finding], list[str]]:
    """Read every row of the data files that exist here.

    Files that do not are `check_config`'s business; remote ones and JSON, which veRL takes too, are not read.

    Returns:
        The findings, and the first training questions.
    """
    data = config["data"]
    findings: list[Finding] = []
    splits: dict[str, RowsSeen] = {}
    for key in ("train_files", "val_files"):
        paths = _paths(data[key])
        findings += _unread(key, paths)
        try:
            splits[key] = _read(_readable(paths), data.get("prompt_key", "prompt"))
        except DataError as error:
            findings.append(Finding("rows", FAIL, f"data.{key}: {error}"))
    for key, seen in splits.items():
        if seen.faulty:
            text = f"data.{key}: {seen.faulty:,} of {seen.count:,} rows cannot be used, the first: {seen.fault}"
            findings.append(Finding("rows", FAIL, text))
    train, val = splits.get("train_files", RowsSeen()), splits.get("val_files", RowsSeen())
    findings += _comparison(train, val, data["train_batch_size"])
    if train.count and val.count and not any(finding.status == FAIL for finding in findings):
        text = f"train {train.count:,}, val {val.count:,}; each has a question and a golden answer"
        findings.append(Finding("rows", OK, text))
    return findings, train.first


def sample_row(train_files: Any) -> dict[str, Any]:
    """Return the first training row as a reward function's arguments, or a made-up one if there is none to read."""
    row: dict[str, Any] = {"data_source": "sample", "reward_model": {"ground_truth": ["Paris"]}}
    for path in _readable(_paths(train_files)):
        with contextlib.suppress(DataError):  # check_rows says so
            row = next(_rows(path, ("data_source", "reward_model", "extra_info")), row)
            break
    return {
        "data_source": row.get("data_source"),
        "ground_truth": (row.get("reward_model") or {}).get("ground_truth"),
        "extra_info": row.get("extra_info") or {},
    }


def _paths(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(path) for path in value or []]


def _readable(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if path.endswith(".parquet") and Path(path).expanduser().is_file()]


def _rows(path: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file, its other columns left out.

    Raises:
        DataError: it is no parquet file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(Path(path).expanduser())
        present = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=present):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is no parquet file that can be read ({error})") from error


def _unread(key: str, paths: Sequence[str]) -> Iterator[Finding]:
    for path in paths:
        if "://" in path or path.endswith((".json", ".jsonl")):
            yield Finding("rows", WARNING, f"data.{key}={path} was not read: no local parquet file")
        elif not path.endswith(".parquet"):
            yield Finding("rows", FAIL, f"data.{key}={path}: veRL reads .parquet, .json and .jsonl")


def _read(paths: Sequence[str], prompt_key: str) -> RowsSeen:
    """Read all rows of a split.

    Raises:
        DataError: a file is no parquet file, or holds no row.
    """
    seen = RowsSeen()
    for path in paths:
        before = seen.count
        for number, row in enumerate(_rows(path, (prompt_key, "reward_model", "data_source"))):
            seen.count += 1
            where = f"{path}, row {number}"
            try:
                if "data_source" not in row:  # reward_manager/naive.py: a KeyError in every rollout
                    raise DataError(
                        f"{where}: no column data_source, which veRL's reward manager reads; any text will do"
                    )
                golden_answers((row.get("reward_model") or {}).get("ground_truth"), where)
                question = _question(row.get(prompt_key), where, prompt_key)
            except DataError as error:
                seen.faulty += 1
                seen.fault = seen.fault or str(error)
                continue
            seen.questions.add(question)
            if len(seen.first) < _FIRST:
                seen.first.append(question)
        if seen.count == before:
            raise DataError(f"{path} holds no row")
    return seen


def _question(messages: Any, where: str, key: str) -> str:
    """Return the text that the agent loop takes as the question: the last user message."""
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role") == "user" and str(message.get("content") or "").strip():
            return str(message["content"])
    raise DataError(f"{where}: {key} holds no user message with text: {messages!r:.200}")


def _comparison(train: RowsSeen, val: RowsSeen, batch: int) -> Iterator[Finding]:
    if 0 < train.count < batch:
        text = f"data.train_files holds {train.count} rows, fewer than data.train_batch_size={batch}: not one step"
        yield Finding("rows", FAIL, text)
    shared = len(train.questions & val.questions)
    if shared:
        text = f"{shared:,} of {len(val.questions):,} validation questions are training questions, too"
        yield Finding("rows", FAIL if shared == len(val.questions) else WARNING, f"{text}: validation measures memory")
