"""Which part of the package may import what: read from the sources, and tried in fresh processes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "research_plugin"
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if "recipes" not in path.parts)

# The only modules that import something beyond the standard library and numpy while they are imported themselves.
HEAVY_AT_TOP = {
    "plugin.py": {"hydra", "omegaconf"},
    "data/tiny_muon.py": {"torch"},
    "retriever/metrics.py": {"prometheus_client"},
    "search/http.py": {"httpx"},
    "search/check.py": {"httpx"},
}
CORE_MAY_USE = {"rewards", "prompts", "search.settings"}


def imports(file: str, top_only: bool = False) -> set[str]:
    """Absolute module names that ``file`` imports; with ``top_only`` those that run when it is imported."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse((PACKAGE / file).read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found.update({node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)})
        skipped = top_only and (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        )
        if not skipped:
            pending.extend(ast.iter_child_nodes(node))
    return found


def third_party(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"research_plugin", "numpy"}


def part(file: str) -> str:
    """The subpackage a file belongs to, "" for the package's own modules."""
    return file.split("/")[0] if "/" in file else ""


def uses(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


CORE = [file for file in FILES if part(file) in ("", "rewards", "prompts") and file not in ("plugin.py", "cli.py")]


@pytest.mark.parametrize("file", CORE)
def test_core_imports_the_standard_library_numpy_and_core_only(file: str) -> None:
    names = imports(file)
    assert third_party(names) == set()
    modules = {other.removesuffix(".py") for other in CORE if part(other) == ""}
    for name in names:
        if name.startswith("research_plugin."):
            inner = name.removeprefix("research_plugin.")
            assert inner.split(".")[0] in modules or uses(inner, *CORE_MAY_USE), f"{file} imports {name}"


@pytest.mark.parametrize("file", FILES)
def test_only_verl_ext_imports_verl_and_one_server_module_ray(file: str) -> None:
    if part(file) != "verl_ext":
        forbidden = ["verl"] if file == "retriever/ray_serve.py" else ["verl", "ray"]
        assert not [name for name in imports(file) if uses(name, *forbidden)]


@pytest.mark.parametrize("file", FILES)
def test_nobody_imports_verl_ext(file: str) -> None:
    names = [name for name in imports(file) if uses(name, "research_plugin.verl_ext")]
    if file == "plugin.py":  # the CPU platform, where VERL_PLATFORM asks for it; the trainers, where a config does
        assert all(uses(name, "research_plugin.verl_ext.cpu", "research_plugin.verl_ext.trainers") for name in names)
    elif part(file) != "verl_ext":
        assert names == []


@pytest.mark.parametrize("file", [file for file in FILES if part(file) == "retriever"])
def test_server_imports_neither_client_nor_loop(file: str) -> None:
    forbidden = ("search", "verl_ext", "search_loop", "rollout", "protocol", "rewards", "prompts", "config")
    assert not [name for name in imports(file) if uses(name, *(f"research_plugin.{part}" for part in forbidden))]


@pytest.mark.parametrize("file", [file for file in FILES if part(file) == "search"])
def test_client_imports_the_server_only_inside_a_function(file: str) -> None:
    assert not [name for name in imports(file, top_only=True) if uses(name, "research_plugin.retriever")]


@pytest.mark.parametrize("file", [file for file in FILES if part(file) in ("served", "evaluation")])
def test_served_models_and_evaluation_import_no_server(file: str) -> None:
    forbidden = ["retriever", "doctor", "viewer"]
    if part(file) == "served":
        forbidden += ["data", "evaluation", "reports"]
    assert not [name for name in imports(file) if uses(name, *(f"research_plugin.{other}" for other in forbidden))]


@pytest.mark.parametrize("file", [file for file in FILES if part(file) != "verl_ext"])
def test_heavy_packages_are_imported_inside_functions(file: str) -> None:
    assert third_party(imports(file, top_only=True)) <= HEAVY_AT_TOP.get(file, set())


@pytest.mark.parametrize("file", FILES)
def test_numpy_is_imported_inside_functions(file: str) -> None:
    if part(file) != "verl_ext":
        assert not [name for name in imports(file, top_only=True) if uses(name, "numpy")]


CORE_MODULES = (
    "import research_plugin, research_plugin.protocol, research_plugin.rollout, research_plugin.search_loop,"
    " research_plugin.config, research_plugin.metrics, research_plugin.checks, research_plugin.rewards,"
    " research_plugin.prompts, research_plugin.tokens, research_plugin.search.client, research_plugin.reports.summary"
)


@pytest.mark.parametrize("statement", ["import research_plugin", CORE_MODULES], ids=["package", "core"])
def test_core_runs_without_any_installed_package(statement: str) -> None:
    # -S: no site-packages; -I: no environment variables and no current folder either.
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert third_party(loaded - {name for name in loaded if name.startswith("_")}) <= {"sitecustomize", "__main__"}


def test_client_and_server_modules_load_no_heavy_package() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); {CORE_MODULES}, research_plugin.retriever.app,"
        " research_plugin.retriever.bm25, research_plugin.retriever.command; print(*sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    heavy = {"torch", "verl", "ray", "omegaconf", "hydra", "transformers", "bm25s", "fastapi", "uvicorn", "httpx"}
    assert heavy.isdisjoint(result.stdout.split())
