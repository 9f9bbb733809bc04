"""The baseline of `retriever.py`: a server of the published design. Not a benchmark itself.

    python benchmarks/blocking_retriever.py INDEX CORPUS MODEL PORT DTYPE

What ReSearch's and Search-R1's servers have in common (facts are theirs, the code is not): the handler itself encodes
and searches, one request at a time, each with what it brought; FAISS as it comes; documents in memory. They run on a
GPU; here both sides are on a CPU with one thread.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    import faiss
    import torch
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from transformers import AutoModel, AutoTokenizer

    index_path, corpus_path, model_path, port, dtype = sys.argv[1:]
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    index = faiss.read_index(index_path)
    if hasattr(index, "nprobe"):
        index.nprobe = 32
    lines = Path(corpus_path).read_text(encoding="utf-8").splitlines()
    documents = [{key: row[key] for key in ("id", "contents")} for row in map(json.loads, lines)]
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModel.from_pretrained(model_path, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def search(queries: list[str], topk: int) -> list[list[dict[str, str]]]:
        batch = tokenizer(queries, padding=True, truncation=True, max_length=128, return_tensors="pt")
        hidden = model(**batch).last_hidden_state.float()
        mask = batch["attention_mask"][..., None]
        vectors = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
        _, rows = index.search(vectors.numpy(), topk)
        return [[documents[row] for row in found] for found in rows.tolist()]

    async def search_one(request: Request) -> Response:
        given = await request.json()
        return JSONResponse(search([given["query"]], given["top_n"])[0])

    async def search_batch(request: Request) -> Response:
        given = await request.json()
        return JSONResponse(search(given["query"], given["top_n"]))

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    app = Starlette(
        routes=[
            Route("/search", search_one, methods=["POST"]),
            Route("/batch_search", search_batch, methods=["POST"]),
            Route("/health", health),
        ]
    )
    uvicorn.run(app, port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
