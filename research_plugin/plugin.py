"""veRL entry point (group ``verl.plugins``): runs inside every ``import verl``, so it must stay tiny.

Three jobs: put the recipes on Hydra's search path, OmegaConf resolvers that turn
``${research_plugin:agent_loops.yaml}`` into an absolute path inside the installed package and
``${research_plugin_trainer:sync}`` into the name of a trainer that is then registered, and the CPU platform when
``VERL_PLATFORM=cpu`` asks for it. veRL finds everything else by name in the recipes. veRL 0.9.1 logs a plugin's
exception at DEBUG and goes on (verl/__init__.py), hence the log call here.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

logger = logging.getLogger(__name__)


def recipes_dir() -> Path:
    """Return the folder that Hydra searches for ``recipe/<name>.yaml``: a folder in a wheel, a link in a checkout."""
    return Path(__file__).resolve().parent / "recipes"


def recipe_file(name: str) -> str:
    """Return the absolute path of a file under `recipes_dir`; used by recipes as ``${research_plugin:NAME}``.

    Raises:
        FileNotFoundError: the file is not part of this installation.
    """
    path = recipes_dir() / name
    if not path.is_file():
        raise FileNotFoundError(f"research_plugin has no recipe file {name!r}: looked for {path}")
    return str(path)


def data_file(name: str) -> str:
    """Return the absolute path of an embedded data file or folder; ``${research_plugin_data:NAME}`` in recipes.

    Raises:
        FileNotFoundError: it is not part of this installation.
    """
    path = Path(__file__).resolve().parent / "data" / name
    if not path.exists():
        raise FileNotFoundError(f"research_plugin has no data file {name!r}: looked for {path}")
    return str(path)


def trainer_name(mode: str) -> str:
    """Register our trainers; return the name of the one for veRL's trainer mode ``mode``."""
    import research_plugin.verl_ext.trainers  # noqa: F401  (registers them)

    return f"research_{mode}"


class RecipeSearchPath(SearchPathPlugin):
    """Appends ``file://.../recipes`` to Hydra's search path, so that ``+recipe=<name>`` composes."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folder; veRL's own configs keep precedence."""
        search_path.append(provider="research-plugin", path=f"file://{recipes_dir()}")


# Registered here and not in a hydra_plugins namespace package, which Hydra finds by walking the file system: it does
# not see the import hooks of an editable install, and then ignores +recipe= without a word (hydra issue 2359).
Plugins.instance().register(RecipeSearchPath)
OmegaConf.register_new_resolver("research_plugin", recipe_file, replace=True)
OmegaConf.register_new_resolver("research_plugin_data", data_file, replace=True)
OmegaConf.register_new_resolver("research_plugin_trainer", trainer_name, replace=True)

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    try:
        import research_plugin.verl_ext.cpu.platform  # noqa: F401  (registers itself)
    except Exception:
        logger.exception("research_plugin could not set up veRL's CPU platform (VERL_PLATFORM=cpu)")
        raise
