"""What a training writes down of its rollouts, and what it says when they go wrong.

Only the groups that are kept are read from TransferQueue, on the trainer's thread; decoding, JSON and the disk are
another thread's. That one never holds the training up: a step that ends while two files are still waiting for the disk
is not recorded.
"""

from __future__ import annotations

import logging
import random
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import transfer_queue as tq
from omegaconf import OmegaConf

from research_plugin.config import AgentConfig, build_config
from research_plugin.health import Watch, warning_line
from research_plugin.metrics import step_metrics
from research_plugin.reports.records_folder import record_file, trim_records, write_records
from research_plugin.reports.run_card import RUN_FILE, write_card
from research_plugin.verl_ext.record_rows import build_record, read_rows
from research_plugin.verl_ext.step_metrics import batch_rollouts, group_of

_CARD_SECONDS = 60.0
logger = logging.getLogger(__name__)


class Journal:
    """Records and alarms of one run.

    Args:
        config: veRL's whole config, composed with one of our recipes.
        tokenizer: The policy's.
    """

    def __init__(self, config: Any, tokenizer: Any) -> None:
        custom = config.actor_rollout_ref.rollout.get("custom")
        settings = build_config(AgentConfig, None if custom is None else OmegaConf.to_container(custom, resolve=True))
        self.settings = settings.records
        self.method = str((config.reward.custom_reward_function.get("reward_kwargs") or {}).get("method", ""))
        self.tokenizer = tokenizer
        self.run_dir = Path(config.trainer.default_local_dir)
        self.watch = Watch()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollout-records")
        self._writing: list[Future[None]] = []
        self._token_texts: dict[int, str] | None = {} if self.settings.tokens else None
        self._card_written = time.monotonic()
        self._start_validation()

    def end_step(self, batch: Any, metrics: dict[str, Any], step: int) -> None:
        """Record a training step, whose advantages are known, and warn where its metrics give reason to."""
        if alarms := self.watch.update(step, metrics):
            print(warning_line(alarms), flush=True)
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        groups = sorted({group_of(key) for key in keys})
        random.Random(step).shuffle(groups)
        kept = set(groups[: self.settings.groups_per_step])
        if self.files_to_write > 1:  # one is the validation of the same step
            logger.warning("the rollouts of step %d are not recorded: those before are still being written", step)
        elif kept:
            self._write("train", step, read_rows([key for key in keys if group_of(key) in kept], batch.partition_id))

    def add_validation(self, batch: Any, left_out: list[str]) -> None:
        """Take in one batch of a validation, which is gone from TransferQueue when the validation ends."""
        self._validated += batch_rollouts(batch)
        self._left_out += left_out
        room = self.settings.questions_per_validation - len({group_of(row["key"]) for row in self._kept})
        if not batch.keys or room < 1:
            return
        # The same questions each time, whichever the set's order and whichever are done first.
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["raw_prompt"])
        marks = {
            group_of(key): zlib.crc32(repr(prompt).encode())
            for key, prompt in zip(batch.keys, data["raw_prompt"], strict=True)
        }
        kept = set(sorted(marks, key=lambda group: marks[group])[:room])
        self._kept += read_rows([key for key in batch.keys if group_of(key) in kept], batch.partition_id)

    def end_validation(self, step: int) -> dict[str, float]:
        """Record the validation; return its metrics."""
        metrics = step_metrics(self._validated, self._left_out, prefix="val-aux/")
        if self._kept:
            self._write("val", step, self._kept)
        self._start_validation()
        return metrics

    @property
    def files_to_write(self) -> int:
        """How many files are not on the disk yet."""
        self._writing = [future for future in self._writing if not future.done()]
        return len(self._writing)

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._writer.shutdown(wait=True)

    def _start_validation(self) -> None:
        self._validated: list[tuple[str, float | None, dict[str, Any]]] = []
        self._left_out: list[str] = []
        self._kept: list[dict[str, Any]] = []

    def _write(self, split: str, step: int, rows: list[dict[str, Any]]) -> None:
        self._writing.append(self._writer.submit(self._write_file, split, step, rows))

    def _write_file(self, split: str, step: int, rows: list[dict[str, Any]]) -> None:
        rows.sort(key=lambda row: row["key"])
        records = (
            build_record(row, self.tokenizer, self._token_texts, split=split, step=step, method=self.method)
            for row in rows
        )
        try:
            write_records(record_file(self.run_dir, split, step), records)
            trim_records(self.run_dir, self.settings.max_mb)
            self._refresh_card()
        except Exception:  # a full disk must not end the training
            logger.exception("the rollouts of step %d (%s) are not recorded", step, split)

    def _refresh_card(self) -> None:
        """Leave a card that is a minute or two old to a run that is killed."""
        if time.monotonic() - self._card_written > _CARD_SECONDS and (self.run_dir / RUN_FILE).is_file():
            write_card(self.run_dir)
            self._card_written = time.monotonic()
