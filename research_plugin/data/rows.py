"""Rows in veRL's dataset form (``verl/utils/dataset/rl_dataset.py``), and their Parquet file.

The prompt is the bare question as a user message: the recipe, not the file, picks the prompt style, so one file
serves base and instruct models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from research_plugin.errors import DataError
from research_plugin.rewards import golden_answers


class Row(TypedDict):
    """One question as veRL reads it."""

    data_source: str
    prompt: list[dict[str, str]]
    ability: str
    reward_model: dict[str, Any]
    extra_info: dict[str, Any]


def make_row(data_source: str, split: str, index: int, question: str, golden_answers: Sequence[str]) -> Row:
    """Build one row; ``index`` is its place in the file and part of its id.

    Raises:
        DataError: the question is blank, there is no golden answer or a blank one, or a text is no valid Unicode.
    """
    row_id = f"{data_source}-{split}-{index:05d}"
    if not question.strip():
        raise DataError(f"row {row_id}: the question is blank; give its text")
    if isinstance(golden_answers, str) or not golden_answers or not all(answer.strip() for answer in golden_answers):
        raise DataError(
            f"row {row_id}: golden_answers={golden_answers!r}; give a list of one or more non-blank strings"
        )
    try:
        "".join((question, *golden_answers)).encode()
    except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair, Parquet cannot
        raise DataError(f"row {row_id}: {error}; mend or drop the character") from error
    return Row(
        data_source=data_source,
        prompt=[{"role": "user", "content": question}],
        ability="qa",
        reward_model={"style": "rule", "ground_truth": list(golden_answers)},
        extra_info={"id": row_id, "split": split, "index": index, "question": question},
    )


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write rows with a fixed schema; equal rows give equal columns whatever pyarrow would infer."""
    import pyarrow as pa
    from pyarrow import parquet

    text = pa.string()
    schema = pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pa.struct({"style": text, "ground_truth": pa.list_(text)}),
            "extra_info": pa.struct({"id": text, "split": text, "index": pa.int64(), "question": text}),
        }
    )
    parquet.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)


def read_parquet(paths: Sequence[Path]) -> dict[str, Row]:
    """Read the rows of veRL parquet files, by id.

    Raises:
        DataError: a file cannot be read, a row lacks what `Row` has or a golden answer, or an id comes twice.
    """
    from pyarrow import ArrowException, parquet

    questions: dict[str, Row] = {}
    for path in paths:
        try:
            rows = parquet.read_table(path).to_pylist()
        except (OSError, ArrowException) as error:
            raise DataError(f"{path} cannot be read: {error}; a parquet file of questions is needed") from error
        for number, row in enumerate(rows):
            try:
                row_id = row["extra_info"]["id"]
                golden_answers(row["reward_model"]["ground_truth"], f"{path}, row {number}")
                question_text(row)
            except (KeyError, TypeError, IndexError) as error:
                raise DataError(
                    f"{path}, row {number}: {error!r}; docs/data.md has the columns that are needed"
                ) from error
            if questions.setdefault(row_id, row) is not row:
                raise DataError(f"{path}, row {number}: the id {row_id!r} came before; ids must differ over all files")
    return questions


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal, which says later whether it is still the same data."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def question_text(row: Row) -> str:
    """Return the question: the last user message of the row's prompt."""
    return [message["content"] for message in row["prompt"] if message["role"] == "user"][-1]
