"""What a retriever recipe can set: ``recipes/retriever/*.yaml``, ``research-plugin serve key=value``.

Plain dataclasses; `recipe` reads YAML and the command line into them and knows FlashRAG's names for the same things.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class EncoderSettings:
    """A text encoder. Nothing here is guessed from a path or a name: what an index was built with must be said."""

    model_path: str | None = None
    """Folder of a Hugging Face or sentence-transformers model, or a hub name."""
    backend: str = "transformers"
    """"transformers" (pooled here) or "sentence_transformers" (the model's own modules, which pool, too)."""
    pooling: str = "mean"
    """"mean" (over real tokens), "cls" (first token), "last" (last real token) or "pooler" (the model's own head)."""
    normalize: bool = True
    """Scale every vector to length 1 (E5: inner product is then cosine)."""
    query_instruction: str = "query: "
    """Text put before every query, exactly as written here; "" for none."""
    passage_instruction: str = "passage: "
    """Text put before every passage when an index is built."""
    query_max_length: int = 128
    """Tokens of a query, instruction and special tokens included; the rest is cut."""
    passage_max_length: int = 180
    """Tokens of a passage, the same way."""
    dtype: str = "auto"
    """"float32", "float16", "bfloat16"; "auto": float16 on a GPU, bfloat16 on a CPU that multiplies it in hardware,
    else float32."""
    device: str = "auto"
    """"auto", "cpu", "cuda" or "cuda:N"."""
    batch_tokens: int = 16_384
    """Most tokens, padding included, in one forward pass."""


@dataclass
class IndexSettings:
    """A vector index file."""

    path: str | None = None
    """FAISS index file, as FlashRAG's builder or ``research-plugin index build`` writes it."""
    backend: str = "faiss"
    """"faiss" (any type it can read) or "torch" (exact, over the vectors of a flat index; several GPUs or the CPU)."""
    mmap: bool = True
    """Map the file instead of reading it: several servers of a machine then share one copy."""
    nprobe: int | None = None
    """IVF: lists visited per query. None: what the file says, which is 1 unless somebody set it - too few."""
    ef_search: int | None = None
    """HNSW: candidates kept per query."""
    blas_threshold: int = 6
    """FAISS: queries in one search from which it multiplies matrices. At 100,000 x 384 on one core, 64 queries then
    take 1.0 ms each instead of 4.7, but fewer than 6 more; with several threads the right number is higher."""
    devices: list[str] = field(default_factory=list)
    """torch: where the shards live, such as ["cuda:0", "cuda:1"]; empty: every GPU, or the CPU."""
    dtype: str = "auto"
    """torch: "float32", "float16" or "bfloat16"; "auto": float16 on a GPU, float32 on the CPU. The results are those of
    float32 in any; on a CPU that multiplies it in hardware, bfloat16 is the fastest, for a copy of half the size."""
    memory_gb: float | None = None
    """torch: most memory per device for vectors and scratch; None: what is free, less a tenth."""


@dataclass
class RerankSettings:
    """A cross-encoder that scores the engine's best documents again."""

    model_path: str | None = None
    """Hugging Face sequence-classification model; None: no reranking."""
    candidates: int = 50
    """Documents per query handed to it; a request may ask for no more."""
    max_length: int = 512
    """Tokens of query and document together."""
    dtype: str = "auto"
    device: str = "auto"
    batch_tokens: int = 16_384


@dataclass
class WebSettings:
    """Search through a Serper-shaped API, as R1-Searcher evaluates online."""

    endpoint: str = "https://google.serper.dev/search"
    key_env: str = "SERPER_API_KEY"
    """Environment variable that holds the key; never the key itself."""
    site: str | None = None
    """Only this site and what is below it, such as en.wikipedia.org."""
    country: str | None = None
    """Two letters (the API's gl), such as us."""
    language: str | None = None
    """Two letters (the API's hl), such as en."""
    fetch_pages: bool = False
    """Read the pages found instead of returning the search engine's snippets."""
    page_chars: int = 4_000
    """Most characters of one document's text, whatever it is made of."""
    user_agent: str = "research-plugin (search agent research)"
    """What pages are fetched as. Wikimedia asks for a way to reach you in here: a mail address or a URL."""
    timeout: float = 20.0
    """Seconds for one request of any kind."""
    retries: int = 3
    """Tries after the first one of a search or a summary. A page is tried once: its snippet can stand for it."""
    requests_per_second: float = 5.0
    """Most search requests a second, evenly spaced, over all queries."""
    max_concurrency: int = 16
    """Requests under way at once, of each kind: searches, pages, summaries."""
    cache_dir: str | None = None
    """Folder, on a local disk, of a cache of searches, pages and summaries that outlives the server; None: the latest
    2,000 in memory."""
    cache_days: float = 30.0
    allow_private_addresses: bool = False
    """Fetch pages from anywhere, loopback and private networks included, and through a proxy that the environment names
    (HTTPS_PROXY). Off, because a page's address comes from outside: only for networks that guard themselves."""
    summarize_url: str | None = None
    """Base URL, /v1 included, of an OpenAI-compatible server that summarises each page for the query; None: no
    summaries."""
    summarize_model: str | None = None
    """Model name there."""
    summarize_key_env: str | None = None
    """Environment variable that holds the key for it; None: it wants none."""
    summarize_chars: int = 35_000
    """Characters of a page that the model reads (35,000 in R1-Searcher)."""


@dataclass
class ServerSettings:
    """The HTTP front."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    token_env: str | None = None
    """Environment variable that holds the bearer token to ask for; None: no token."""
    max_topk: int = 100
    max_queries: int = 1024
    """Queries in one request."""
    max_query_chars: int = 32_768
    max_body_mb: int = 8
    max_queue: int = 4096
    """Queries that may wait; beyond it the answer is 429."""
    max_batch: int = 256
    """Queries in one engine call."""
    max_batch_tokens: int = 32_768
    """Estimated tokens in one engine call."""
    deadline: float = 60.0
    """Seconds a query may wait and compute before the answer is 503; a client may ask for less (X-Deadline-Seconds)."""
    cache_size: int = 10_000
    """Queries whose results are kept (least recently used out first); 0: none."""
    drain: float = 10.0
    """Seconds that requests in progress get after SIGTERM."""


@dataclass
class RayServeSettings:
    """Replicas under Ray Serve (``serve --ray``). Each one reserves `RetrieverConfig.threads` CPUs."""

    min_replicas: int = 2
    """With two, one may die without a gap."""
    max_replicas: int = 8
    """The same as min_replicas: no autoscaling."""
    target_ongoing: int = 32
    """Requests per replica, waiting ones included, that autoscaling aims at."""
    gpus: float | None = None
    """GPUs that each replica reserves; Ray hides all others from it. None: as many as index.devices names, else 1 if
    encoder.device or rerank.device is a GPU, else 0 - then "auto" means the CPU."""


@dataclass
class RetrieverConfig:
    """Everything about one retriever server."""

    engine: str = "bm25"
    """"bm25", "dense", "flashrag", "hybrid" or "web"."""
    corpus: str | None = None
    """JSONL corpus in FlashRAG's form."""
    corpus_rows: int | None = None
    """Documents that the corpus must have: a half-downloaded one is refused at start. None: not checked."""
    topk: int | None = None
    """Documents when a request names no number; None: the route's own (10 or 3)."""
    stemmer: str | None = None
    """bm25: Snowball language such as "english" (needs PyStemmer); None: whole words."""
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    index: IndexSettings = field(default_factory=IndexSettings)
    rerank: RerankSettings = field(default_factory=RerankSettings)
    web: WebSettings = field(default_factory=WebSettings)
    hybrid: list[str] = field(default_factory=lambda: ["bm25", "dense"])
    """hybrid: the engines whose rankings are fused (reciprocal rank)."""
    hybrid_candidates: int = 50
    """hybrid: documents taken from each ranking; a request may ask for no more."""
    flashrag_config: str | None = None
    """flashrag: FlashRAG's own YAML file for the retriever."""
    threads: int = 1
    """CPU threads of one computation (torch, FAISS, BLAS). More than the free cores makes it slower, not faster."""
    server: ServerSettings = field(default_factory=ServerSettings)
    ray: RayServeSettings = field(default_factory=RayServeSettings)
