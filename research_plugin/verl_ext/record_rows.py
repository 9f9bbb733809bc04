"""Rollout records out of what veRL keeps of rollouts in TransferQueue: which fields to read, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import transfer_queue as tq

from research_plugin.records import RolloutRecord, Tokens
from research_plugin.verl_ext.agent_loop import row_golden_answers, row_question

# Beside tokens and reward: what the dataset's row and our agent loop put there. TransferQueue skips what is not there,
# such as advantages in a validation.
_FIELDS = (
    "prompts",
    "responses",
    "response_mask",
    "rollout_log_probs",
    "old_log_probs",
    "advantages",
    "extra_fields",
    "raw_prompt",
    "reward_model",
    "data_source",
    "extra_info",
)
_METRIC_NAMES_OF_VERL = ("global_steps", "min_global_steps", "max_global_steps")


def read_rows(keys: Sequence[str], partition: str) -> list[dict[str, Any]]:
    """Return the rollouts as one dictionary of veRL's fields each, with their ``key``."""
    data = tq.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=list(_FIELDS))
    columns = {name: list(data[name]) for name in _FIELDS if name in data}
    return [{"key": key, **{name: values[i] for name, values in columns.items()}} for i, key in enumerate(keys)]


def build_record(
    row: Mapping[str, Any], tokenizer: Any, token_texts: dict[int, str] | None, **fields: Any
) -> RolloutRecord:
    """Return one row of `read_rows` as a record.

    Args:
        token_texts: What each token reads as, filled as tokens come up; None: do not record tokens.
        **fields: Those of the record that the row does not tell, such as the step.
    """
    extra: Mapping[str, Any] = row["extra_fields"]
    group, session, _ = row["key"].rsplit("_", 2)  # {uid}_{session}_{index}
    judged = extra.get("reward_extra_info") or {}
    ids = row["responses"].tolist()
    info = row.get("extra_info") or {}
    return RolloutRecord(
        question=row_question(row["raw_prompt"]),
        golden_answers=row_golden_answers(dict(row)),
        # Another agent loop than ours keeps no segments.
        segments=[tuple(each) for each in extra.get("segments") or [(tokenizer.decode(ids), True)]],
        uid=group,
        session=int(session),
        id=str(info.get("id", info.get("index", ""))),
        data_source=str(row.get("data_source", "")),
        prompt=tokenizer.decode(row["prompts"].tolist()),
        queries=list(extra.get("queries", ())),
        documents=list(extra.get("documents", ())),
        scores=_numbers(judged),
        pred=str(judged.get("pred", "")),
        reason=str(judged.get("reason", "")),
        stop_reason=str(extra.get("stop_reason", "")),
        metrics=_numbers({name: value for name, value in extra.items() if name not in _METRIC_NAMES_OF_VERL}),
        advantage=_advantage(row),
        tokens=None if token_texts is None else _tokens(row, ids, tokenizer, token_texts),
        **fields,
    )


def _tokens(row: Mapping[str, Any], ids: Sequence[int], tokenizer: Any, known: dict[int, str]) -> Tokens:
    if new := list(set(ids) - known.keys()):
        texts = tokenizer.batch_decode([[token] for token in new], clean_up_tokenization_spaces=False)
        known.update(zip(new, texts, strict=True))
    log_probs = row.get("rollout_log_probs", row.get("old_log_probs"))
    return Tokens(
        texts=[known[token] for token in ids],
        mask=row["response_mask"].tolist(),
        log_probs=None if log_probs is None else [round(value, 4) + 0.0 for value in log_probs.tolist()],
    )


def _advantage(row: Mapping[str, Any]) -> float | None:
    """Return the advantage of the policy's first token: GRPO gives all of them the same."""
    if "advantages" not in row:
        return None
    own = row["response_mask"].nonzero()
    return round(float(row["advantages"][own[0]]), 6) if len(own) else None


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
