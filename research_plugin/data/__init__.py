"""Data: rows in veRL's form, and the tiny world on which a very small model learns to search on a CPU.

Knows no trainer, no server and no client; torch, transformers, tokenizers, bm25s and pyarrow are imported where used.
"""
