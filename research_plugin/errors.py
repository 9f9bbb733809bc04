"""Every error the package raises on purpose.

Each class also inherits the standard-library error a caller would expect, so ``except ValueError`` keeps working.
A message says what failed, what was given, what is allowed and what to do. All of them pickle (one string
argument), because Ray carries them between processes.
"""

from __future__ import annotations


class ResearchPluginError(Exception):
    """Base of all errors of this package."""


class ConfigError(ResearchPluginError, ValueError):
    """A setting is unknown, has the wrong type or a value outside what is allowed."""


class DataError(ResearchPluginError, ValueError):
    """A data row, corpus line or golden answer cannot be used."""


class SearchError(ResearchPluginError, RuntimeError):
    """A query got no answer from any retriever after all retries: an infrastructure fault, never the model's."""


class ModelError(ResearchPluginError, RuntimeError):
    """A served model gave no answer after all retries: an infrastructure fault, too."""


class VersionError(ResearchPluginError, RuntimeError):
    """An installed package has a version that a patch of ours does not fit."""
