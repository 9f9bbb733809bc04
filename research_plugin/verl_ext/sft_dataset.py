"""The dataset class of veRL's SFT trainer for rollouts (``data sft``): named by ``data.custom_cls``.

veRL's own (utils/dataset/multiturn_sft_dataset.py) can only mask whole chat messages; a rollout is one assistant turn
with observations inside.
"""

from __future__ import annotations

from typing import Any

import torch
from pyarrow import parquet
from torch.utils.data import Dataset
from verl.utils.fs import copy_to_local

from research_plugin.data.sft_rows import encode_row
from research_plugin.errors import ConfigError, DataError
from research_plugin.tokens import HFCodec, end_token_ids


class RolloutDataset(Dataset):
    """Rows of ``data sft`` as ``input_ids``, ``position_ids`` and ``loss_mask`` of equal length, without padding."""

    def __init__(
        self, parquet_files: Any, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ) -> None:
        if config.pad_mode != "no_padding":
            raise ConfigError(f"data.pad_mode={config.pad_mode}; RolloutDataset needs no_padding")
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self.rows = [row for file in files for row in parquet.read_table(copy_to_local(file)).to_pylist()]
        if max_samples > 0:
            self.rows = self.rows[:max_samples]
        self.codec = HFCodec(tokenizer, end_token_ids(tokenizer))
        self.max_length, self.truncation = config.max_length, config.truncation
        self.template_kwargs = dict(config.apply_chat_template_kwargs)

    def __len__(self) -> int:
        """Return the number of rollouts."""
        return len(self.rows)

    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        """Return one rollout; one that is too long is an error, or cut at its end with ``data.truncation=right``."""
        row = self.rows[item]
        ids, mask = encode_row(self.codec, row, **self.template_kwargs)
        if len(ids) > self.max_length and self.truncation != "right":
            raise DataError(
                f"rollout {row['id']}: {len(ids)} tokens, data.max_length={self.max_length}; raise it, or cut the end "
                "off with data.truncation=right"
            )
        ids, mask = torch.tensor(ids[: self.max_length]), torch.tensor(mask[: self.max_length])
        return {"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask}
