"""veRL's platform interface for machines without an accelerator, registered as "cpu".

Imported by the entry point inside ``import verl`` when ``VERL_PLATFORM=cpu``, before veRL asks for its platform. Ray is
told about logical GPUs (``ray_kwargs.ray_init.num_gpus``), because veRL's resource pools count in them.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from research_plugin.verl_ext.cpu import patches

# The environment of vLLM's CPU build: KV cache in GiB; no core binding, since trainer and engine take turns on the same
# cores.
ROLLOUT_ENV = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


def _device_module() -> ModuleType:
    """Return ``torch.cpu`` with the calls that veRL makes on ``torch.cuda`` and that mean nothing here."""
    module = ModuleType("research_plugin_cpu_device")
    nothing = {
        "empty_cache": None,
        "ipc_collect": None,
        "reset_peak_memory_stats": None,
        "set_device": None,
        "manual_seed": None,
        "manual_seed_all": None,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "get_device_name": "cpu",
    }
    for name, value in nothing.items():
        setattr(module, name, lambda *args, _value=value, **kwargs: _value)
    module.mem_get_info = lambda *args: (_memory(), _memory())  # type: ignore[attr-defined]
    module.get_rng_state = lambda *args: torch.get_rng_state()  # type: ignore[attr-defined]
    module.set_rng_state = lambda state, *args: torch.set_rng_state(state)  # type: ignore[attr-defined]
    module.__getattr__ = lambda name: getattr(torch.cpu, name)  # type: ignore[method-assign]
    return module


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One logical device, gloo, shared memory instead of device IPC."""

    _module = _device_module()

    @property
    def device_name(self) -> str:
        """Return "cpu"."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """Return "cpu": no vendor-specific engine exists."""
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        """Return the stand-in for ``torch.cuda``."""
        return self._module

    def is_available(self) -> bool:
        """Return True."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return False: the CPU is only ever chosen by name, never because a head node sees no GPU."""
        return False

    def current_device(self) -> str:  # type: ignore[override]
        """Return "cpu"; veRL passes it to ``Tensor.to``, where an int would mean a CUDA index."""
        return "cpu"

    def device_count(self) -> int:
        """Return 1."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Do nothing."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: CPU work is done when the call returns."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: there is no device allocator."""

    def empty_cache(self) -> None:
        """Do nothing."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Return (None, None)."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return "gloo"."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return Ray's variable for its logical GPUs."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Any:
        """Do nothing."""
        yield

    def profiler_start(self) -> None:
        """Do nothing."""

    def profiler_stop(self) -> None:
        """Do nothing."""

    def ray_resource_name(self) -> str:
        """Return "GPU": veRL asks Ray for that, and Ray accepts logical ones that do not exist."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return no variable."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return False: veRL then sends weights through shared memory."""
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        """Return vLLM's CPU environment, a user's own settings first."""
        return {name: os.environ.get(name, value) for name, value in ROLLOUT_ENV.items()}

    def cudart(self) -> None:
        """Return None."""
        return None


patches.apply()
