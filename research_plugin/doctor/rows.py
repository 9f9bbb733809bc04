"""Reads the data files of a run: golden answers, questions, and whether validation measures something new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from research_plugin.doctor.finding import FAIL, OK, WARNING, Finding
from research_plugin.errors import DataError
from research_plugin.rewards import golden_answers

_FIRST = 32  # questions kept to try the prompt with
_COLUMNS = ("data_source", "prompt", "reward_model", "extra_info")


@dataclass
class RowsSeen:
    """What the files of one split hold."""

    count: int = 0
    questions: set[str] = field(default_factory=set)
    first: list[str] = field(default_factory=list)
    """The first questions, at most 32."""
    faulty: int = 0
    """Rows without a golden answer or a user message."""
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
        readable = [path for path in paths if path.endswith(".parquet") and Path(path).expanduser().is_file()]
        unread = [path for path in paths if path not in readable and ("://" in path or Path(path).is_file())]
        findings += [
            Finding("rows", WARNING, f"data.{key}={path} was not read: no local parquet file") for path in unread
        ]
        if readable:
            splits[key] = seen = RowsSeen()
            try:
                for path in readable:
                    _read(path, data.get("prompt_key", "prompt"), seen)
            except DataError as error:
                findings.append(Finding("rows", FAIL, f"data.{key}: {error}"))
    for key, seen in splits.items():
        findings += _split_faults(key, seen)
    if len(splits) == 2:
        findings += _comparison(splits["train_files"], splits["val_files"], data["train_batch_size"])
    if splits and not any(finding.status == FAIL for finding in findings):
        counts = ", ".join(f"{key.partition('_')[0]} {seen.count:,}" for key, seen in splits.items())
        findings.append(Finding("rows", OK, f"{counts}; each has a question and a golden answer"))
    return findings, splits["train_files"].first if "train_files" in splits else []


def sample_row(train_files: Any) -> dict[str, Any]:
    """Return the first training row as a reward function's arguments, or a made-up one if there is none to read."""
    for path in _paths(train_files):
        if path.endswith(".parquet") and Path(path).expanduser().is_file():
            for row in _rows(path, _COLUMNS):
                return {
                    "data_source": row.get("data_source"),
                    "ground_truth": (row.get("reward_model") or {}).get("ground_truth"),
                    "extra_info": row.get("extra_info") or {},
                }
    return {"data_source": "sample", "ground_truth": ["Paris"], "extra_info": {}}


def _paths(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(path) for path in value or []]


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


def _read(path: str, prompt_key: str, seen: RowsSeen) -> None:
    for number, row in enumerate(_rows(path, (prompt_key, "reward_model"))):
        where = f"{path}, row {number}"
        seen.count += 1
        try:
            question = _question(row.get(prompt_key), where, prompt_key)
            golden_answers((row.get("reward_model") or {}).get("ground_truth"), where)
        except DataError as error:
            seen.faulty += 1
            seen.fault = seen.fault or str(error)
            continue
        seen.questions.add(question)
        if len(seen.first) < _FIRST:
            seen.first.append(question)


def _question(messages: Any, where: str, key: str) -> str:
    """Return the text that the agent loop takes as the question: the last user message."""
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role") == "user" and str(message.get("content") or "").strip():
            return str(message["content"])
    raise DataError(f"{where}: {key} holds no user message with text: {messages!r:.200}")


def _split_faults(key: str, seen: RowsSeen) -> Iterator[Finding]:
    if not seen.count:
        yield Finding("rows", FAIL, f"data.{key} holds no row")
    if seen.faulty:
        text = f"data.{key}: {seen.faulty:,} of {seen.count:,} rows cannot be used, the first: {seen.fault}"
        yield Finding("rows", FAIL, text)


def _comparison(train: RowsSeen, val: RowsSeen, batch: int) -> Iterator[Finding]:
    if 0 < train.count < batch:
        text = f"data.train_files holds {train.count} rows, fewer than data.train_batch_size={batch}: not one step"
        yield Finding("rows", FAIL, text)
    shared = len(train.questions & val.questions)
    if shared:
        text = f"{shared:,} of {len(val.questions):,} validation questions are training questions, too"
        yield Finding("rows", FAIL if shared == len(val.questions) else WARNING, f"{text}: validation measures memory")
