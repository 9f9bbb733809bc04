"""``research-plugin doctor``: what can be found out about an installation and a run before money is spent.

Each module here holds one kind of check and returns `Finding`s. The checks that the preflight of every recipe makes
live in `research_plugin.checks` and `research_plugin.search.check`; here stand those that take longer or read more.
"""
