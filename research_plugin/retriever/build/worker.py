"""One worker process of ``index build``: encodes the blocks it is told to and writes their vectors in place."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from research_plugin.errors import ResearchPluginError
from research_plugin.retriever.settings import EncoderSettings

if TYPE_CHECKING:
    from research_plugin.retriever.documents import DocumentStore
    from research_plugin.retriever.encoder import Encoder

_TRIAL_PASSAGES = 32


@dataclass(frozen=True)
class Ready:
    """A worker's first message, once its encoder is loaded."""

    dimension: int
    fingerprint: dict[str, Any]
    seconds_per_passage: float


@dataclass(frozen=True)
class Task:
    """What all workers of a build share."""

    corpus: str
    embeddings: str
    encoder: EncoderSettings
    threads: int


def work(connection: Connection, task: Task) -> None:
    """Send `Ready`, then take ``(first row, last row + 1)`` and answer None for each, until the pipe closes.

    An error that names what to do is sent instead of an answer; any other one ends the process with its traceback.
    """
    # Ctrl-C reaches the whole group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        from tqdm import tqdm

        from research_plugin.retriever.documents import DocumentStore
        from research_plugin.retriever.encoder import Encoder

        # tqdm's own lock holds a semaphore between processes, which a killed worker would leave behind.
        tqdm.set_lock(threading.RLock())
        encoder, store = Encoder(task.encoder, task.threads), DocumentStore(task.corpus)
        connection.send(Ready(encoder.dimension, encoder.fingerprint(), _trial(encoder, store)))
        while True:
            first, last = connection.recv()
            _embed(encoder, store, first, last, task.embeddings)
            connection.send(None)
    except ResearchPluginError as error:
        connection.send(error)
    except (EOFError, BrokenPipeError):
        pass


def _end_with_parent() -> None:
    """End with the parent even if that was killed: a process left over would go on computing beside its successor."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _trial(encoder: Encoder, store: DocumentStore) -> float:
    """Seconds per passage over a few that are spread over the corpus; the first pass only warms up."""
    step = max(1, len(store) // _TRIAL_PASSAGES)
    texts = [document.contents for document in store.documents(range(0, len(store), step)[:_TRIAL_PASSAGES])]
    encoder.encode_passages(texts[:4])
    started = time.perf_counter()
    encoder.encode_passages(texts)
    return (time.perf_counter() - started) / len(texts)


def _embed(encoder: Encoder, store: DocumentStore, first: int, last: int, path: str) -> None:
    vectors = encoder.encode_passages([document.contents for document in store.documents(range(first, last))])
    with open(path, "r+b") as file:
        file.seek(first * vectors.shape[1] * 4)
        file.write(vectors.astype("<f4", copy=False).tobytes())
        file.flush()
        # Only then may the block be recorded as finished, should the machine lose its power.
        os.fdatasync(file.fileno())
