"""The retriever server: engines over a corpus, an HTTP front with four dialects, dynamic batching.

It runs in its own process and knows neither veRL nor the search client; the two sides share only `Document`.
"""
