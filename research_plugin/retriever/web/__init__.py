"""The `web` engine: a Serper-shaped search API, pages and their text, summaries by a chat model, a cache of all three.

Whatever comes from the web is data: it is cleaned, cut and handed on as text, and decides nothing.
"""
