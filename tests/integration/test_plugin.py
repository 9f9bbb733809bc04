"""The veRL entry point: light enough for every `import verl`, and loud when its one risky job fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("hydra")


def run_python(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env={**kept, **env}, capture_output=True, text=True, timeout=300)


def test_entry_point_is_registered_and_loads() -> None:
    (point,) = entry_points(group="verl.plugins", name="research")
    assert point.value == "research_plugin.plugin"
    assert point.load().__name__ == "research_plugin.plugin"


def test_plugin_imports_nothing_heavy() -> None:
    script = """
import json, sys
import research_plugin.plugin
names = {name.partition(".")[0] for name in sys.modules}
print(json.dumps(sorted(names & {"verl", "torch", "numpy", "ray", "vllm", "transformers", "httpx", "fastapi"})))
"""
    assert json.loads(run_python(script).stdout) == []


def test_plugin_puts_the_recipes_on_the_search_path() -> None:
    from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    from research_plugin import plugin

    found = [cls for cls in Plugins.instance().discover(SearchPathPlugin) if cls.__name__ == "RecipeSearchPath"]
    assert found == [plugin.RecipeSearchPath]
    path = ConfigSearchPathImpl()
    path.append(provider="main", path="pkg://verl.trainer.config")
    plugin.RecipeSearchPath().manipulate_search_path(path)
    assert [(entry.provider, entry.path) for entry in path.get_path()] == [
        ("main", "pkg://verl.trainer.config"),
        ("research-plugin", f"file://{plugin.recipes_dir()}"),
    ]


def test_resolvers_give_absolute_paths() -> None:
    from omegaconf import OmegaConf

    from research_plugin import plugin

    config = OmegaConf.create(
        {"loops": "${research_plugin:agent_loops.yaml}", "data": "${research_plugin_data:rows.py}"}
    )
    assert config.loops == plugin.recipe_file("agent_loops.yaml")
    assert Path(config.loops).is_absolute()
    assert Path(config.data).is_file()


@pytest.mark.parametrize(("function", "kind"), [("recipe_file", "recipe"), ("data_file", "data")])
def test_missing_file_is_named_with_where_it_was_looked_for(function: str, kind: str) -> None:
    from research_plugin import plugin

    with pytest.raises(FileNotFoundError, match=f"no {kind} file 'nothing.here': looked for /.*nothing.here"):
        getattr(plugin, function)("nothing.here")


BROKEN_PLATFORM = """
import sys
sys.modules["research_plugin.verl_ext.cpu.platform"] = None
import research_plugin.plugin
"""


def test_failing_cpu_platform_is_logged() -> None:
    # veRL swallows what an entry point raises, so the log line is all that a user sees.
    done = run_python(BROKEN_PLATFORM, VERL_PLATFORM="cpu")
    assert done.returncode != 0
    assert "could not set up veRL's CPU platform (VERL_PLATFORM=cpu)" in done.stderr


def test_other_platforms_leave_the_cpu_code_alone() -> None:
    assert run_python(BROKEN_PLATFORM, VERL_PLATFORM="nvidia").returncode == 0
