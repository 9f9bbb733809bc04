"""Rollouts as supervised examples: the row of the Parquet file, and its tokens with the mask that training has.

Prompt and observations are encoded as in a rollout, and only what the policy wrote is trained on. The policy's text is
encoded again turn by turn, so its tokens may differ from the sampled ones where a tokenizer has several ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from research_plugin.protocol import get_dialect
from research_plugin.tokens import HFCodec, build_prompt_ids


class Segment(TypedDict):
    """A stretch of a response and whether the policy wrote it."""

    text: str
    by_policy: bool


class SFTRow(TypedDict):
    """One example; protocol, style and prompt file are those of the rollout, so that no other prompt can be trained."""

    id: str
    data_source: str
    question: str
    segments: list[Segment]
    protocol: str
    prompt_style: str
    prompt_file: str | None
    score: float


def write_sft(rows: Sequence[SFTRow], path: Path) -> None:
    """Write the rows with a fixed schema."""
    import pyarrow as pa
    from pyarrow import parquet

    text = pa.string()
    schema = pa.schema(
        {
            **dict.fromkeys(("id", "data_source", "question"), text),
            "segments": pa.list_(pa.struct({"text": text, "by_policy": pa.bool_()})),
            **dict.fromkeys(("protocol", "prompt_style", "prompt_file"), text),
            "score": pa.float64(),
        }
    )
    parquet.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)


def encode_row(codec: HFCodec, row: Mapping[str, Any], **template_kwargs: Any) -> tuple[list[int], list[int]]:
    """Return ids and loss mask of a row, of equal length; 1 where the policy wrote the token.

    The last turn ends with the tokenizer's own end token, whichever one the rollout's server wrote down.
    """
    ids = build_prompt_ids(
        codec,
        row["question"],
        protocol=row["protocol"],
        style=row["prompt_style"],
        file=row["prompt_file"],
        prefill=get_dialect(row["protocol"]).prefill,
        **template_kwargs,
    )
    mask = [0] * len(ids)
    for segment in row["segments"]:
        encode = codec.encode_prompt if segment["by_policy"] else codec.encode
        piece = encode(segment["text"])
        ids += piece
        mask += [int(segment["by_policy"])] * len(piece)
    while ids[-1] in codec.special_ids and mask[-1]:
        ids.pop(), mask.pop()
    return [*ids, codec.tokenizer.eos_token_id], [*mask, 1]
