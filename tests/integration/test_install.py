"""Builds the package and installs it in every way people do, each time into its own fresh environment.

Each environment sees veRL and what it needs through links to this interpreter's site-packages, without any
research_plugin that happens to be installed there. Nothing is downloaded and the checkout is never written to.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import research_plugin

pytestmark = pytest.mark.install
pytest.importorskip("verl")

ROOT = Path(__file__).resolve().parents[2]
MODES = ("wheel", "sdist", "editable", "editable-compat", "editable-strict")
PIP_FLAGS = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation")
HAS_CLI = (ROOT / "research_plugin" / "cli.py").is_file()

PROBE = """
import importlib.metadata as metadata, json, sys
points = metadata.entry_points(group="verl.plugins")
plugin = points["research"].load()
import research_plugin
from research_plugin.prompts import load_prompt
print(json.dumps({
    "file": research_plugin.__file__,
    "version": metadata.version("research-plugin"),
    "points": [point.name for point in points],
    "verl_loaded": "verl" in sys.modules,
    "recipes": str(plugin.recipes_dir()),
    "agent_loops": plugin.recipe_file("agent_loops.yaml"),
    "prompt": load_prompt("research", "instruct"),
}))
"""

CORE_PROBE = """
import json, sys
import research_plugin, research_plugin.protocol, research_plugin.rollout, research_plugin.search_loop
import research_plugin.rewards, research_plugin.config, research_plugin.checks, research_plugin.metrics
import research_plugin.prompts, research_plugin.search, research_plugin.reports.summary
result = research_plugin.rewards.compute_score(
    "musique", "<think> a </think> <answer> \\\\boxed{Alan Turing} </answer>", ["Turing"]
)
names = {name.partition(".")[0] for name in sys.modules}
print(json.dumps({
    "file": research_plugin.__file__,
    "score": result["score"],
    "foreign": sorted(names - set(sys.stdlib_module_names) - {"research_plugin", "__main__"}),
}))
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, an empty folder to run in, and the source tree it was installed from (if any)."""

    python: Path
    cwd: Path
    source: Path | None = None

    def run(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.cwd, env=clean_env(), capture_output=True, text=True, timeout=300)
        assert not check or done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done

    def probe(self, script: str) -> dict[str, Any]:
        return json.loads(self.run("-c", script).stdout)


def clean_env() -> dict[str, str]:
    """The environment without anything that would let the checkout or a user's settings in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_", "HYDRA_"))}
    kept.pop("PYTHONPATH", None)
    kept.pop("PYTHONHOME", None)
    return {**kept, "PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1", "PIP_CONFIG_FILE": os.devnull}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would hold: tracked files and new ones that it does not ignore, links as links."""
    target = tmp_path_factory.mktemp("tree")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listing.stdout.split("\0")):
        source = ROOT / name
        if source.is_symlink() or source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    return target


def copy(tree: Path, target: Path) -> Path:
    """Copy the tree once more, for a build that writes into it."""
    return Path(shutil.copytree(tree, target, symlinks=True))


def package_files(package: Path) -> set[str]:
    """Every file of the package, as ``research_plugin/...``; follows the recipes link."""
    names = set()
    for folder, _, files in os.walk(package, followlinks=True):
        if Path(folder).name != "__pycache__":
            names |= {(Path("research_plugin") / Path(folder, file).relative_to(package)).as_posix() for file in files}
    return names


def make_environment(root: Path, stack: Path | None) -> Path:
    """Create a venv under ``root``, with the packages of ``stack`` on its path; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True, timeout=120)
    python = root / "bin" / "python"
    if stack is not None:
        query = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = subprocess.run([python, "-c", query], capture_output=True, text=True, check=True, timeout=60)
        Path(site.stdout.strip(), "stack.pth").write_text(f"{stack}\n", encoding="utf-8")
    return python


def pip_install(python: Path, *arguments: str | Path, flags: tuple[str, ...] = PIP_FLAGS) -> str:
    """Run this interpreter's pip on another environment."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", *flags, *map(str, arguments)]
    done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=300, cwd=python.parent)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links to everything installed here but this package: veRL without the plugin."""
    folder = tmp_path_factory.mktemp("stack")
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(site).iterdir():
            ours = entry.name.startswith(("research_plugin", "__editable__"))
            if not ours and entry.suffix != ".pth" and entry.name != "__pycache__":
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel, the sdist, and the wheel that the unpacked sdist gives."""
    folder = tmp_path_factory.mktemp("built")
    source = copy(tree, folder / "source")
    sdist = build("sdist", source, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = (folder / "unpacked").iterdir()
    return {
        "wheel": build("wheel", source, folder / "wheel"),
        "sdist": sdist,
        "wheel from sdist": build("wheel", unpacked, folder / "second"),
    }


def build(kind: str, source: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=300, cwd=source)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (result,) = out.iterdir()
    return result


@pytest.fixture(scope="module")
def without_plugin(stack: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    root = tmp_path_factory.mktemp("stock")
    (root / "elsewhere").mkdir()
    return Environment(make_environment(root / "venv", stack), root / "elsewhere")


@pytest.fixture(scope="module", params=MODES)
def installed(
    request: pytest.FixtureRequest,
    tree: Path,
    stack: Path,
    built: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Environment:
    """The package installed in one of `MODES`; paths hold a blank, as home folders do."""
    mode: str = request.param
    root = tmp_path_factory.mktemp(mode)
    (root / "else where").mkdir()
    python = make_environment(root / "my venv", stack)
    if mode in built:
        pip_install(python, built[mode])
        return Environment(python, root / "else where")
    source = copy(tree, root / "my checkout")
    style = mode.partition("-")[2]
    pip_install(python, *([f"--config-settings=editable_mode={style}"] if style else []), "-e", source)
    return Environment(python, root / "else where", source)


@pytest.fixture(scope="module")
def bare(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel in an environment that has nothing else at all."""
    root = tmp_path_factory.mktemp("bare")
    python = make_environment(root / "venv", None)
    pip_install(python, built["wheel"])
    return Environment(python, root)


def test_wheel_holds_the_package_and_nothing_else(built: dict[str, Path]) -> None:
    names = wheel_names(built["wheel"])
    assert {name.partition("/")[0] for name in names} == {"research_plugin", dist_info(built["wheel"])}


def test_wheel_holds_every_file_of_the_package(built: dict[str, Path], tree: Path) -> None:
    packed = {name for name in wheel_names(built["wheel"]) if name.startswith("research_plugin/")}
    assert packed == package_files(tree / "research_plugin")
    assert {
        "research_plugin/py.typed",
        "research_plugin/prompts/research_instruct.txt",
        "research_plugin/recipes/agent_loops.yaml",
        "research_plugin/recipes/recipe/research_7b.yaml",
        "research_plugin/recipes/recipe/engine/megatron.yaml",
        "research_plugin/recipes/retriever/wiki18_e5_gpu.yaml",
        "research_plugin/verl_ext/cpu/engine.py",
    } <= packed


def test_wheel_from_the_sdist_is_the_same(built: dict[str, Path]) -> None:
    assert wheel_names(built["wheel from sdist"]) == wheel_names(built["wheel"])


def test_wheel_requires_nothing_outside_extras(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as archive:
        text = archive.read(f"{dist_info(built['wheel'])}/METADATA").decode()
    required = [line for line in text.splitlines() if line.startswith("Requires-Dist:")]
    assert required
    assert [line for line in required if "extra ==" not in line] == []


def test_installing_moves_no_pin(built: dict[str, Path], without_plugin: Environment, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    flags = ("--quiet", "--disable-pip-version-check", "--no-index", "--dry-run", "--report", str(report))
    pip_install(without_plugin.python, built["wheel"], flags=flags)
    planned = [item["metadata"]["name"] for item in json.loads(report.read_text())["install"]]
    assert planned == ["research-plugin"]


def test_core_needs_only_the_standard_library(bare: Environment) -> None:
    result = bare.probe(CORE_PROBE)
    assert Path(result["file"]).is_relative_to(bare.cwd / "venv")
    assert result["foreign"] == []
    # "alan turing" against "turing": precision 1/2, recall 1.
    assert result["score"] == pytest.approx(2 / 3)


def test_entry_point_loads_by_itself(installed: Environment) -> None:
    result = installed.probe(PROBE)
    home = installed.source or installed.python.parents[1]
    assert Path(result["file"]).is_relative_to(home)
    assert result["version"] == research_plugin.__version__
    assert result["points"] == ["research"]
    assert not result["verl_loaded"]
    assert Path(result["agent_loops"]).is_relative_to(home)
    assert Path(result["agent_loops"]).is_file()
    assert (Path(result["recipes"]) / "recipe" / "research_7b.yaml").is_file()
    assert "<search>" in result["prompt"]


def test_data_files_are_reachable(installed: Environment, tree: Path) -> None:
    package = Path(installed.probe(PROBE)["file"]).parent
    expected = {name for name in package_files(tree / "research_plugin") if not name.endswith((".py", ".pyc"))}
    assert expected <= package_files(package)


def test_recipe_composes_from_another_folder(installed: Environment) -> None:
    done = installed.run("-m", "verl.trainer.main_ppo", "+recipe=research_7b", "--cfg", "job", "--resolve")
    config = yaml.safe_load(done.stdout)
    assert "recipe" not in config
    assert config["algorithm"]["adv_estimator"] == "grpo"
    assert config["data"]["max_response_length"] == 8192
    agent = config["actor_rollout_ref"]["rollout"]["agent"]
    assert agent["default_agent_loop"] == "research_search"
    path = Path(agent["agent_loop_config_path"])
    assert path.is_relative_to(installed.source or installed.python.parents[1])
    assert "research_search" in path.read_text()
    assert list(installed.cwd.iterdir()) == []


@pytest.mark.skipif(not HAS_CLI, reason="research_plugin/cli.py does not exist")
def test_console_script_starts(installed: Environment) -> None:
    script = installed.python.parent / "research-plugin"
    done = subprocess.run(
        [script, "--help"], cwd=installed.cwd, env=clean_env(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "research-plugin" in done.stdout


@pytest.mark.skipif(not HAS_CLI, reason="research_plugin/cli.py does not exist")
def test_console_script_starts_without_any_dependency(bare: Environment) -> None:
    bare.run("-m", "research_plugin.cli", "--help")


def test_the_readmes_check_notices_a_missing_plugin(without_plugin: Environment) -> None:
    # Stock veRL takes +recipe= for a new key and would train with its own defaults; the line is what users grep for.
    done = without_plugin.run("-m", "verl.trainer.main_ppo", "+recipe=research_7b", "--cfg", "job")
    assert "recipe: research_7b" in done.stdout.splitlines()
    assert yaml.safe_load(done.stdout)["algorithm"]["adv_estimator"] == "gae"


def wheel_names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def dist_info(path: Path) -> str:
    name, version = path.name.split("-")[:2]
    return f"{name}-{version}.dist-info"
