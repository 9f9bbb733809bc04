"""What one check found, and its line on the screen."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, FAIL = "ok", "warning", "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check: what it looked at, how it went, and what was seen or is to be done."""

    check: str
    status: str
    """`OK`, `WARNING` or `FAIL`."""
    text: str

    def line(self) -> str:
        """Return the finding as one line, whatever line breaks its text has."""
        return f"{self.status:<8} {self.check:<12} {' '.join(self.text.split())}"
