"""Async search for rollouts: one client over a retriever server or an engine in this process.

Knows nothing of veRL, tokens or tags; the server packages are imported only for ``engine: in_process``.
"""
