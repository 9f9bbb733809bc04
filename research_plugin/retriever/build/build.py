"""``index build``: corpus -> embeddings (`workers`, `progress`) -> index (`write`) -> checks -> manifest.

It can be killed at any moment and repeated: finished blocks of embeddings are recorded, and the index gets its name
only after it has passed its checks.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from research_plugin.errors import ConfigError, DataError
from research_plugin.retriever.build import write
from research_plugin.retriever.build.check import require
from research_plugin.retriever.build.progress import Progress
from research_plugin.retriever.build.recall import check_effort, noisy_sample, tune
from research_plugin.retriever.build.worker import Task
from research_plugin.retriever.build.workers import Workers
from research_plugin.retriever.documents import DocumentStore
from research_plugin.retriever.flat_file import map_vectors, write_flat
from research_plugin.retriever.manifest import Manifest, read_manifest, write_manifest
from research_plugin.retriever.memory import available_memory
from research_plugin.retriever.settings import RetrieverConfig

_REPORT_QUERIES, _REPORT_K = 256, 5


@dataclass(frozen=True)
class Target:
    """The files of one build, in one folder, with FlashRAG's names."""

    index: Path
    method: str
    faiss_type: str
    save_embedding: bool = False
    """Keep the embeddings beside a flat index, which holds the same vectors."""

    @property
    def partial(self) -> Path:
        """The index before it has passed its checks."""
        return self.index.with_name(f"{self.index.name}.part")

    @property
    def embeddings(self) -> Path:
        """Raw float32 [rows, dimension]."""
        return self.index.with_name(f"emb_{self.method}.memmap")

    @property
    def progress(self) -> Path:
        """See `Progress`."""
        return self.index.with_name(f"emb_{self.method}.progress")


def build(config: RetrieverConfig, target: Target, workers: int | None, block_rows: int) -> None:
    """Build the index that ``config`` will serve, or go on with it.

    Args:
        config: corpus, encoder, threads, and the search effort to store; ``index.path`` is not looked at.
        target: files to write; their folder is there.
        workers: encoder processes; None: one per GPU, or one.
        block_rows: passages that are encoded, written and recorded together.

    Raises:
        ResearchPluginError: something does not fit, the disk is too small, or the finished index fails its checks.
    """
    corpus = str(config.corpus)
    store = DocumentStore(corpus)
    if config.corpus_rows not in (None, len(store)):
        raise DataError(f"corpus {corpus}: has {len(store)} documents, corpus_rows={config.corpus_rows}; is it whole?")
    if target.index.exists():
        known = read_manifest(target.index)
        if known is not None and known.kind != target.faiss_type:
            raise ConfigError(f"{target.index}: is there already, as {known.kind}; delete it or choose another name")
        print(f"{target.index} is there already")
        require(replace(config, index=replace(config.index, path=str(target.index))))
        _clean_up(target)
        return
    devices = worker_devices(config.encoder.device, workers)
    print(f"{len(store):,} passages; loading the encoder on {', '.join(devices)}", flush=True)
    with Workers(devices, Task(corpus, str(target.embeddings), config.encoder, config.threads)) as running:
        ready = running.ready()[0]
        facts = Manifest(len(store), ready.dimension, "ip", target.faiss_type, store.fingerprint(), ready.fingerprint)
        with Progress(target.progress, facts, block_rows) as progress:
            index = write.make_index(facts.rows, facts.dimension, target.faiss_type)
            check_effort(index, config.index)
            _allocate(target, facts, progress)
            _estimate(index, target, facts, progress, ready.seconds_per_passage / len(devices))
            _embed(running, progress, facts)
            running.close()
            _write(index, config, target, facts, config.threads * len(devices))
            write_manifest(target.partial, facts)
            require(replace(config, index=replace(config.index, path=str(target.partial))))
            write.publish(target.partial, target.index)
            _clean_up(target)


def worker_devices(device: str, workers: int | None) -> list[str]:
    """One device per worker: ``encoder.device``, or every GPU in turn where that is left open."""
    devices = [device]
    if device in ("auto", "cuda"):
        import torch

        gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        devices = gpus or ["cpu" if device == "auto" else device]
    return [devices[number % len(devices)] for number in range(workers or len(devices))]


def _allocate(target: Target, facts: Manifest, progress: Progress) -> None:
    """Give the embeddings file its length; its disk space is taken as blocks are written."""
    size = 4 * facts.rows * facts.dimension
    if progress.done and (not target.embeddings.is_file() or target.embeddings.stat().st_size != size):
        raise DataError(
            f"{target.embeddings}: missing or of another size, although {target.progress.name} records finished "
            "blocks; delete that file to start over"
        )
    with target.embeddings.open("ab") as file:
        file.truncate(size)


def _estimate(index: Any, target: Target, facts: Manifest, progress: Progress, seconds_per_passage: float) -> None:
    """Print what the build will take, and refuse what cannot fit."""
    size = 4 * facts.rows * facts.dimension
    left = facts.rows - min(facts.rows, len(progress.done) * progress.block_rows)
    index_bytes = facts.rows * write.bytes_per_vector(index)
    sample_bytes = 4 * facts.dimension * write.training_rows(index, facts.rows)
    memory = 0 if target.faiss_type == write.FLAT else index_bytes + sample_bytes
    disk = 4 * left * facts.dimension + index_bytes
    free_disk, free_memory = shutil.disk_usage(target.index.parent).free, available_memory()
    print(
        f"embeddings {_size(size)}, {target.faiss_type} index {_size(index_bytes)}; still to write: {_size(disk)}, "
        f"free: {_size(free_disk)}\n"
        f"memory besides the encoders: {_size(memory)}\n"
        f"{left:,} passages to encode{f', about {_duration(left * seconds_per_passage)}' if left else ''}",
        flush=True,
    )
    if disk > free_disk:
        raise ConfigError(
            f"{target.index.parent}: {_size(disk)} are needed, {_size(free_disk)} are free; choose another "
            "folder, or a smaller --faiss-type"
        )
    if free_memory is not None and memory > free_memory:
        raise ConfigError(
            f"--faiss-type {target.faiss_type}: {_size(memory)} of memory are needed to fill it, "
            f"{_size(free_memory)} are available; Flat needs none, IVF with SQ8 or PQ less"
        )


def _embed(running: Workers, progress: Progress, facts: Manifest) -> None:
    from tqdm import tqdm

    size = progress.block_rows
    blocks = {number * size: number for number in range(-(-facts.rows // size))}
    todo = [(first, min(first + size, facts.rows)) for first, number in blocks.items() if number not in progress.done]
    done = facts.rows - sum(last - first for first, last in todo)
    with tqdm(total=facts.rows, initial=done, desc="encode", unit="passages", smoothing=0.05) as bar:
        for first, last in running.encode(todo):
            progress.finish(blocks[first])
            bar.update(last - first)


def _write(index: Any, config: RetrieverConfig, target: Target, facts: Manifest, threads: int) -> None:
    import faiss

    vectors = map_vectors(target.embeddings, facts.rows, facts.dimension)
    if target.faiss_type == write.FLAT:
        write_flat(vectors, target.partial)
        return
    write.fill(index, vectors, threads)
    tune(index, vectors, noisy_sample(vectors, _REPORT_QUERIES), _REPORT_K, config.index)
    faiss.write_index(index, str(target.partial))


def _clean_up(target: Target) -> None:
    if target.faiss_type == write.FLAT and not target.save_embedding:
        target.embeddings.unlink(missing_ok=True)
        target.progress.unlink(missing_ok=True)
    elif target.embeddings.exists():
        print(f"kept: {target.embeddings}, from which other index types can be built without encoding again")


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min" if minutes else "a minute"
