"""Adds the recipes to Hydra's search path; Hydra finds this module by scanning ``hydra_plugins`` (no __init__ there)."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from research_plugin.plugin import recipes_dir


class ResearchSearchPath(SearchPathPlugin):
    """Appends ``file://.../recipes`` so that ``+recipe=<name>`` composes."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folder; veRL's own configs keep precedence."""
        search_path.append(provider="research-plugin", path=f"file://{recipes_dir()}")
