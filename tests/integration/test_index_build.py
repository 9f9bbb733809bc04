"""``research-plugin index`` with a real encoder and FAISS: killed and repeated, read back, checked, converted."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from dense_world import DenseWorld, environment, index_command, write_recipe
from passages import make_passages, write_corpus

from research_plugin.cli import main
from research_plugin.errors import ConfigError
from research_plugin.retriever.build import write
from research_plugin.retriever.faiss_index import FaissIndex
from research_plugin.retriever.manifest import manifest_path, read_manifest
from research_plugin.retriever.settings import IndexSettings

ROWS, BLOCK, DIMENSION = 1200, 64, 384


@pytest.fixture(autouse=True, scope="module")
def child_environment() -> Iterator[None]:
    """Worker processes are started from here, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    write_corpus(path, ROWS, seed=1)
    return path


def build(folder: Path, corpus: Path, *arguments: object) -> list[object]:
    """Arguments of a build of ``corpus`` in ``folder``; further ones come last and win."""
    recipe = folder / "recipe.yaml"
    write_recipe(recipe, corpus, folder / "minilm_Flat.index")
    return ["build", "--recipe", recipe, "--method", "minilm", "--block", BLOCK, *arguments]


def index(*arguments: object) -> int:
    """Run the command in this process: FAISS and torch are imported already."""
    return main(["index", *map(str, arguments)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """Folder of an uninterrupted build by two workers, embeddings kept."""
    folder = tmp_path_factory.mktemp("whole")
    assert index(*build(folder, corpus, "--workers", 2, "--save-embedding")) == 0
    return folder


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        index_command(*arguments),
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def wait_until(true: Callable[[], bool], what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for: {what}"
        time.sleep(0.02)


def finished(folder: Path) -> set[int]:
    """Blocks recorded as finished."""
    path = folder / "emb_minilm.progress"
    lines = path.read_text().split("\n")[1:-1] if path.exists() else []
    return {int(line) for line in lines}


def children(pid: int) -> list[int]:
    """Processes that ``pid`` started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def stop_midway(folder: Path, corpus: Path, number: int) -> str:
    """Start a build with one worker, send it a signal when three more blocks are finished, return what it printed."""
    before = len(finished(folder))
    process = start(*build(folder, corpus))
    try:
        wait_until(lambda: len(finished(folder)) >= before + 3 or process.poll() is not None, "three blocks")
        assert process.poll() is None, process.communicate()[0]
        workers = children(process.pid)
        if number == signal.SIGINT:  # a terminal sends it to everybody
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        output = process.communicate(timeout=60)[0]
    finally:
        process.kill()
        process.wait()
    assert workers
    wait_until(lambda: not any(map(is_alive, workers)), "the workers to end with their parent", 30)
    assert process.returncode == (130 if number == signal.SIGINT else -number), output
    assert "Traceback" not in output
    assert before + 3 <= len(finished(folder)) < -(-ROWS // BLOCK)
    return output


def test_interrupted_and_killed_build_gives_the_same_bytes(tmp_path: Path, corpus: Path, whole: Path) -> None:
    assert "goes on from there" in stop_midway(tmp_path, corpus, signal.SIGINT)
    stop_midway(tmp_path, corpus, signal.SIGKILL)
    embeddings, done = tmp_path / "emb_minilm.memmap", finished(tmp_path)
    vectors = np.memmap(embeddings, np.float32, "r+", shape=(ROWS, DIMENSION))
    unfinished = next(block for block in range(ROWS // BLOCK) if block not in done)
    vectors[unfinished * BLOCK : unfinished * BLOCK + 10] = 7.0  # half a block, as a killed worker leaves it
    finished_before = np.array(vectors[min(done) * BLOCK])
    vectors[min(done) * BLOCK] = 0.0  # a finished one: must not be encoded again
    assert index(*build(tmp_path, corpus, "encoder.pooling=cls")) == 1
    assert index(*build(tmp_path, corpus, "--save-embedding")) == 0
    assert not vectors[min(done) * BLOCK].any()
    vectors[min(done) * BLOCK] = finished_before
    assert embeddings.read_bytes() == (whole / "emb_minilm.memmap").read_bytes()


def test_index_is_what_faiss_itself_would_write(whole: Path, tmp_path: Path) -> None:
    import faiss

    vectors = np.fromfile(whole / "emb_minilm.memmap", np.float32).reshape(ROWS, DIMENSION)
    theirs = faiss.IndexFlatIP(DIMENSION)
    theirs.add(vectors)
    faiss.write_index(theirs, str(tmp_path / "theirs.index"))
    assert (whole / "minilm_Flat.index").read_bytes() == (tmp_path / "theirs.index").read_bytes()
    assert not list(whole.glob("*.part*"))


def test_world_is_read_by_faiss_and_by_the_server(dense_world: DenseWorld) -> None:
    import faiss

    from research_plugin.retriever.encoder import Encoder
    from research_plugin.retriever.recipe import load_config

    config = load_config(str(dense_world.recipe))
    theirs, ours = faiss.read_index(str(dense_world.index)), FaissIndex(config.index)
    assert (theirs.ntotal, theirs.d) == (ours.size, ours.dimension) == (20_000, DIMENSION)
    passages = list(make_passages(20_000))[::500]
    queries = Encoder(config.encoder).encode_queries([passage.question for passage in passages])
    rows = theirs.search(queries, 5)[1]
    assert (ours.search(queries, 5)[1] == rows).all()
    found = [int(passage.id) in row for passage, row in zip(passages, rows.tolist(), strict=True)]
    assert sum(found) >= 36, f"{sum(found)} of 40 questions find their passage"
    assert not list(dense_world.folder.glob("emb_*"))


def test_finished_build_is_checked_and_not_repeated(
    whole: Path, corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = (whole / "minilm_Flat.index").stat().st_mtime_ns
    assert index(*build(whole, corpus, "--save-embedding")) == 0
    assert "is there already" in capfd.readouterr().out
    assert index(*build(whole, corpus, "--faiss-type", "SQ8")) == 1
    assert "is there already, as Flat" in capfd.readouterr().err
    assert (whole / "minilm_Flat.index").stat().st_mtime_ns == before


def test_other_types_are_built_from_the_same_embeddings(
    whole: Path, corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = (whole / "emb_minilm.progress").read_bytes()
    assert index(*build(whole, corpus, "--out", whole, "--faiss-type", "IVF16,SQ8", "index.nprobe=8")) == 0
    output = capfd.readouterr().out
    assert "0 passages to encode" in output and "stored in the file: nprobe=8" in output
    assert (whole / "emb_minilm.progress").read_bytes() == before
    assert (whole / "emb_minilm.memmap").exists()
    assert index("info", whole / "minilm_IVF16,SQ8.index") == 0
    shown = capfd.readouterr().out
    assert "IndexIVFScalarQuantizer" in shown and "nprobe 8 of 16 lists" in shown and "1,200" in shown


def test_limit_makes_a_corpus_of_its_own(tmp_path: Path, corpus: Path) -> None:
    assert index(*build(tmp_path, corpus, "--limit", 100, "corpus_rows=1200")) == 0
    short = tmp_path / "corpus_first_100.jsonl"
    assert short.read_bytes() == b"".join(corpus.read_bytes().splitlines(keepends=True)[:100])
    path = tmp_path / "minilm_Flat.index"
    assert FaissIndex(IndexSettings(str(path))).size == 100
    assert index("check", "--recipe", tmp_path / "recipe.yaml", "--corpus", short) == 0


@pytest.fixture
def copy(tmp_path: Path, whole: Path, corpus: Path) -> Path:
    """Folder with a corpus, its index, manifest and recipe, to be spoilt."""
    for name in ("minilm_Flat.index", "minilm_Flat.index.json"):
        shutil.copy(whole / name, tmp_path / name)
    shutil.copy(corpus, tmp_path / "corpus.jsonl")
    write_recipe(tmp_path / "recipe.yaml", tmp_path / "corpus.jsonl", tmp_path / "minilm_Flat.index")
    return tmp_path


def failures(folder: Path, capfd: pytest.CaptureFixture[str], *overrides: str) -> dict[str, str]:
    """Run ``index check``; the failed checks by name. The exit status must agree."""
    status = index("check", "--recipe", folder / "recipe.yaml", *overrides)
    lines = capfd.readouterr().out.splitlines()
    failed = {line.split()[1]: line for line in lines if line.startswith("FAIL")}
    assert status == bool(failed), lines
    return failed


def shuffle(folder: Path) -> None:
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    random.Random(0).shuffle(lines)
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")


def cut_corpus(folder: Path) -> None:
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    (folder / "corpus.jsonl").write_text("\n".join(lines[:-1]) + "\n")


def cut_index(folder: Path) -> None:
    os.truncate(folder / "minilm_Flat.index", 100_000)


def other_dimension(folder: Path) -> None:
    import faiss

    other = faiss.IndexFlatIP(8)
    other.add(np.zeros((ROWS, 8), np.float32))
    faiss.write_index(other, str(folder / "minilm_Flat.index"))


def keep(folder: Path) -> None:
    pass


ORDER = {"manifest": "another order", "vectors": "another order"}
POOLING = {"manifest": "encoder.pooling='cls': the index was built with 'mean'", "vectors": "encoder.pooling='mean'"}
INSTRUCTION = {"manifest": "encoder.passage_instruction='passage: '", "vectors": "encoder.passage_instruction=''"}
SHORT = {"rows": "1,200 in the index, 1,199 in the corpus", "manifest": "this corpus has 1199"}
DIMENSION_8 = {"dimension": "8 in the index, 384 from the encoder", "manifest": "dimension"}


@pytest.mark.parametrize("with_manifest", [True, False], ids=["manifest", "no-manifest"])
@pytest.mark.parametrize(
    ("spoil", "override", "faults"),
    [
        (keep, "threads=1", {}),
        (shuffle, "threads=1", ORDER),
        (keep, "encoder.pooling=cls", POOLING),
        (keep, "encoder.passage_instruction=passage: ", INSTRUCTION),
        (keep, "encoder.query_instruction=query: ", {"manifest": "query_instruction"}),
        (cut_corpus, "threads=1", SHORT),
        (other_dimension, "threads=1", DIMENSION_8),
        (cut_index, "threads=1", {"index": "half-downloaded"}),
        (keep, "encoder.model_path=/nowhere", {"encoder": "model.safetensors"}),
    ],
    ids=["fine", "shuffled", "pooling", "instruction", "query", "short-corpus", "dimension", "cut-index", "no-model"],
)
def test_check_finds(
    copy: Path,
    capfd: pytest.CaptureFixture[str],
    spoil: Callable[[Path], None],
    override: str,
    faults: dict[str, str],
    with_manifest: bool,
) -> None:
    spoil(copy)
    if not with_manifest:
        manifest_path(copy / "minilm_Flat.index").unlink()
        faults = {name: text for name, text in faults.items() if name != "manifest"}
    found = failures(copy, capfd, override)
    assert found.keys() == faults.keys()
    for name, text in faults.items():
        assert text in found[name]


def test_convert_reports_recall_and_keeps_the_effort(
    dense_world: DenseWorld, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target, queries = tmp_path / "minilm_IVF64,SQ8.index", tmp_path / "queries.jsonl"
    questions = [json.dumps({"question": passage.question}) for passage in list(make_passages(20_000))[::100]]
    queries.write_text("\n".join(questions))
    arguments = ["convert", dense_world.index, target, "--faiss-type", "IVF64,SQ8"]
    assert index(*arguments, "--recipe", dense_world.recipe, "--queries", queries) == 0
    output = capfd.readouterr().out
    rows = [line.split() for line in output.splitlines() if len(line.split()) == 3 and line.split()[0].isdigit()]
    assert [row[0] for row in rows] == ["1", "4", "16", "64"] and "200 queries at a time" in output
    recalls = [float(row[1]) for row in rows]
    assert recalls == sorted(recalls) and recalls[0] < 0.95 < recalls[-1]
    best = next(row[0] for row in rows if float(row[1]) >= 0.95)
    assert f"stored in the file: nprobe={best}" in output
    manifest = read_manifest(target)
    assert manifest is not None and manifest.kind == "IVF64,SQ8, converted from minilm_Flat.index"
    assert index("check", "--recipe", dense_world.recipe, "--index", target) == 0
    assert target.stat().st_size < dense_world.index.stat().st_size / 3
    assert index(*arguments) == 1 and "is there already" in capfd.readouterr().err


def test_check_of_a_converted_index_without_manifest_sees_order_and_pooling(
    copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = copy / "ivf.index"
    assert index("convert", copy / "minilm_Flat.index", target, "--faiss-type", "IVF16,SQ8", "index.nprobe=8") == 0
    manifest_path(target).unlink()
    assert failures(copy, capfd, f"index.path={target}") == {}
    assert set(failures(copy, capfd, f"index.path={target}", "encoder.pooling=cls")) == {"vectors"}
    shuffle(copy)
    assert set(failures(copy, capfd, f"index.path={target}")) == {"vectors"}


@pytest.mark.parametrize(
    ("faiss_type", "override", "said"),
    [
        ("IVX", "threads=1", "could not parse index string"),
        ("PQ7", "threads=1", "multiple of the number of subquantizers"),
        ("IVF3000,Flat", "threads=1", "'IVF3000,Flat': is trained on at least 3,000 vectors, there are 1,200"),
        ("SQ8", "index.nprobe=4", "the index is to be a IndexScalarQuantizer, which has no such parameter"),
        ("IVF16,Flat", "index.ef_search=4", "index.ef_search=null"),
    ],
)
def test_impossible_types_are_refused(
    copy: Path, capfd: pytest.CaptureFixture[str], faiss_type: str, override: str, said: str
) -> None:
    arguments = [copy / "minilm_Flat.index", copy / "new.index", "--faiss-type", faiss_type, override]
    assert index("convert", *arguments) == 1
    assert said in capfd.readouterr().err
    assert not (copy / "new.index").exists()


@pytest.mark.parametrize(
    ("spec", "least"),
    [("IVF64,Flat", 64), ("PQ16x4", 16), ("IVF8,PQ8x5", 32), ("PCA32,Flat", 32), ("OPQ16,PQ16x4", 256), ("SQ8", 0)],
)
def test_least_rows_are_those_that_faiss_trains_on(spec: str, least: int) -> None:
    import faiss

    def train(rows: int) -> None:
        faiss.omp_set_num_threads(1)
        vectors = np.random.default_rng(0).standard_normal((rows, 64), dtype=np.float32)
        faiss.index_factory(64, spec, faiss.METRIC_INNER_PRODUCT).train(vectors)

    assert write.least_rows(write.make_index(10_000, 64, spec)) == least
    if least:
        train(least)
        with pytest.raises(RuntimeError):
            train(least - 1)
        with pytest.raises(ConfigError, match=f"on at least {least} vectors, there are {least - 1}"):
            write.make_index(least - 1, 64, spec)


def test_what_cannot_be_built_is_said_before_it_is_begun(
    tmp_path: Path, corpus: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert index(*build(tmp_path, corpus, "corpus_rows=1201")) == 1
    assert "has 1200 documents, corpus_rows=1201" in capfd.readouterr().err
    assert index(*build(tmp_path, corpus, "encoder.model_path=/nowhere")) == 1
    assert "model.safetensors" in capfd.readouterr().err
    assert index(*build(tmp_path, corpus, "engine=bm25", "index.path=null")) == 1
    assert "bm25 indexes when it starts" in capfd.readouterr().err
    assert index(*build(tmp_path, tmp_path / "wiki18_100w.jsonl")) == 1
    assert "RUC-NLPIR/FlashRAG_datasets" in capfd.readouterr().err
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    assert index(*build(tmp_path, corpus)) == 1
    assert "3.7 MB are needed, 1.0 MB are free" in capfd.readouterr().err
    assert not finished(tmp_path)
