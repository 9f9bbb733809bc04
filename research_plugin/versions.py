"""Which veRL the plugin fits (docs/versions.md says what was run with which)."""

from __future__ import annotations

import importlib.metadata
import re

from research_plugin.errors import VersionError

FIRST, NEXT = (0, 9), (0, 10)
"""The first minor version of veRL that loads the plugin, and the first one that it was never tried with."""


def check_verl(installed: str | None = None) -> str | None:
    """Refuse a veRL that cannot run the recipes.

    Args:
        installed: A version such as "0.9.1"; None: the one in this environment.

    Returns:
        A warning for a veRL newer than any that was tried, or None.

    Raises:
        VersionError: none is installed, or one from before 0.9, which has no entry point ``verl.plugins``, no V1
            trainers and no platform interface.
    """
    first = ".".join(map(str, FIRST))
    try:
        version = installed or importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < FIRST:
        raise VersionError(
            f"research_plugin needs veRL {first} or newer, but verl is {version}; older ones have neither its "
            "plugin entry point nor the trainers that the recipes set. Run: pip install 'verl==0.9.1'"
        )
    if numbers >= NEXT:
        return f"veRL {version} was never tried with this plugin, which was made for {first} (docs/versions.md)"
    return None
