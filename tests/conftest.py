"""Puts this folder on the import path, so that tests can say ``from stubs import ...`` under importlib mode."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
