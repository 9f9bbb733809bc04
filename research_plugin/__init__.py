"""Search-while-reasoning RL (ReSearch and relatives) as a plugin for stock veRL.

Importing this package imports nothing beyond the standard library; veRL, torch and the HTTP stack are imported by
the modules that need them (see docs/architecture.md).
"""

__version__ = "0.1.0"
