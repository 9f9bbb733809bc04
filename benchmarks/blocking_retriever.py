"""The baseline of `retriever.py`: a server of the published design. Not a benchmark itself.

    python benchmarks/blocking_retriever.py INDEX CORPUS MODEL PORT DTYPE

What ReSearch's and Search-R1's servers have in common (facts are theirs, the code is not): FastAPI with pydantic models
for requests and answers; the handler itself encodes and searches, one request at a time, each with what it brought;
FAISS as it comes; documents are rows of a `datasets` table, read one by one. They run on a GPU; here both sides are on
a CPU with one thread. Not in here, though published: printing every request, guessing its language.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from pydantic import BaseModel


class Document(BaseModel):
    """A row of the corpus."""

    id: str
    contents: str


class SearchRequest(BaseModel):
    """Body of /search."""

    query: str
    top_n: int = 10
    return_score: bool = False


class BatchRequest(BaseModel):
    """Body of /batch_search."""

    query: list[str]
    top_n: int = 10
    return_score: bool = False


def main() -> None:
    import datasets
    import faiss
    import torch
    import uvicorn
    from fastapi import FastAPI
    from transformers import AutoModel, AutoTokenizer

    index_path, corpus_path, model_path, port, dtype = sys.argv[1:]
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    index = faiss.read_index(index_path)
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        corpus: Any = datasets.load_dataset("json", data_files=corpus_path, split="train", cache_dir=cache)
        tokenizer = AutoTokenizer.from_pretrained(model_path)
        model = AutoModel.from_pretrained(model_path, dtype=getattr(torch, dtype)).eval()

        @torch.inference_mode()
        def search(queries: list[str], topk: int) -> list[list[Document]]:
            batch = tokenizer(queries, padding=True, truncation=True, max_length=128, return_tensors="pt")
            hidden = model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"][..., None]
            vectors = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
            _, rows = index.search(vectors.numpy(), topk)
            return [[Document(**corpus[row]) for row in found] for found in rows.tolist()]

        app = FastAPI()

        @app.post("/search", response_model=list[Document])
        async def search_one(given: SearchRequest) -> list[Document]:
            return search([given.query], given.top_n)[0]

        @app.post("/batch_search", response_model=list[list[Document]])
        async def search_batch(given: BatchRequest) -> list[list[Document]]:
            return search(given.query, given.top_n)

        @app.get("/health")
        async def health() -> dict[str, str]:
            return {"status": "healthy"}

        uvicorn.run(app, port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
