"""Which device, which number format, how many threads: shared by everything here that computes with PyTorch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from research_plugin.errors import ConfigError

if TYPE_CHECKING:
    import torch


def pick_device(name: str) -> torch.device:
    """Return the device of that name; "auto" takes a GPU if there is one.

    Raises:
        ConfigError: there is no such device.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r}: unknown; allowed: auto, cpu, cuda, cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r}: this process sees {torch.cuda.device_count()} GPUs; allowed: auto, cpu")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the format of that name; "auto": float16 on a GPU, bfloat16 on a CPU that multiplies it in hardware."""
    import torch

    if name == "auto":
        name = "float16" if device.type == "cuda" else "bfloat16" if _cpu_multiplies_bfloat16() else "float32"
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def use_threads(threads: int) -> None:
    """Bound the threads of computations that the calling thread starts: OpenMP keeps the number per thread."""
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def _cpu_multiplies_bfloat16() -> bool:
    """Without the instructions, bfloat16 is slower than float32. x86 lists them under "flags", ARM under "Features"."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", text) is not None
