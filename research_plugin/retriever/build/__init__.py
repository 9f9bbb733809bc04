"""``research-plugin index``: corpus to embeddings to FAISS index, with FlashRAG's file names; info, check, convert.

BM25 has nothing to build here: bm25s indexes the corpus when the server starts.
"""
