"""One HTML page out of a template, a style and scripts, that runs nothing but these and asks nobody for anything.

The template marks what is filled in with comments such as ``<!-- title -->``. The hashes of the one script and the one
style stand in the page's Content-Security-Policy, so whatever else the page may hold cannot run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

__all__ = ["html_page"]


def html_page(
    package: str, name: str, scripts: Sequence[str], title: str, settings: Any, *, connects: bool = False
) -> str:
    """Return the page.

    Args:
        package: Where the folder ``static`` with the template and the rest lies.
        name: ``NAME.html`` is the template and ``NAME.css`` the style.
        scripts: Files that are put together to one script, in this order.
        title: The page's title, as text.
        settings: What the script finds as JSON in ``document.documentElement.dataset.settings``.
        connects: The page may ask the server that it came from.
    """
    static = resources.files(package) / "static"
    script = "".join((static / each).read_text(encoding="utf-8") for each in scripts)
    style = (static / f"{name}.css").read_text(encoding="utf-8")
    source = "'self'" if connects else "'none'"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        f"connect-src {source}; base-uri 'none'; form-action 'none'"
    )
    page = (static / f"{name}.html").read_text(encoding="utf-8")
    values = {
        "policy": policy,
        "title": html.escape(title),
        "settings": html.escape(json.dumps(settings)),
        "style": style,
        "script": script,
    }
    for key, value in values.items():
        page = page.replace(f"<!-- {key} -->", value, 1)
    return page


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
