"""For all tests: this folder on the import path (``from stubs import ...``), and Ctrl-C for child processes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

# A shell without job control starts what it puts in the background with SIGINT ignored, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
