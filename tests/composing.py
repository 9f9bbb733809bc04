"""Composes a recipe as ``python -m verl.trainer.main_ppo`` would, in this process."""

from __future__ import annotations

import copy
import functools
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "recipes" / "recipe"
RECIPE_NAMES = tuple(
    path.relative_to(RECIPES).with_suffix("").as_posix()
    for path in sorted(RECIPES.rglob("*.yaml"))
    if path.relative_to(RECIPES).parts[0] not in ("base", "engine")
)
CUSTOM = "actor_rollout_ref.rollout.custom"


def compose_config(*overrides: str, with_hydra: bool = False) -> Any:
    """Return veRL's config with the overrides of a command line, such as ``+recipe=research_7b``."""
    return copy.deepcopy(_compose(overrides, with_hydra))


@functools.cache
def _compose(overrides: tuple[str, ...], with_hydra: bool) -> Any:
    import verl  # noqa: F401  (loads the plugin)
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides), return_hydra_config=with_hydra)


def clean_environment() -> dict[str, str]:
    """Return this process's environment without anything that a recipe has to set up itself."""
    hidden = ("VERL_", "VLLM_", "RAY_", "HYDRA_", "OMP_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
