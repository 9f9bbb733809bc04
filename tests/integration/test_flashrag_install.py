"""Building a FlashRAG retriever: what it does to the process is undone, and the release on PyPI is recognised."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import flashrag_fake
import pytest
from dense_world import environment, model_path

from research_plugin.errors import ConfigError, VersionError
from research_plugin.retriever.flashrag_engine import make
from research_plugin.retriever.settings import RetrieverConfig

pytest.importorskip("torch")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A FlashRAG that can be imported, in an empty working folder."""
    monkeypatch.syspath_prepend(str(flashrag_fake.install(tmp_path / "packages")))
    for name in ("flashrag", "flashrag.config", "flashrag.utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(flashrag_fake, "made", [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def _config(folder: Path, text: str) -> RetrieverConfig:
    file = folder / "flashrag.yaml"
    file.write_text('instruction: "query: "\n' + text, encoding="utf-8")
    return RetrieverConfig(engine="flashrag", flashrag_config=str(file))


@pytest.mark.parametrize("variables", [{}, {"CUDA_VISIBLE_DEVICES": "3", "TOKENIZERS_PARALLELISM": "true"}], ids=len)
def test_the_process_is_left_as_it_was(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variables: dict[str, str]
) -> None:
    import numpy as np
    import torch

    for name in ("CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environ, states = dict(os.environ), (random.getstate(), np.random.get_state()[1].tolist())
    torch_state, deterministic = torch.get_rng_state(), torch.backends.cudnn.deterministic

    engine = make(_config(stand_in, "retrieval_method: e5"))

    assert [document.id for document in engine.search(["whales"], 1)[0]] == ["9"]
    assert dict(os.environ) == environ
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert torch.backends.cudnn.deterministic == deterministic
    assert os.listdir() == []
    assert not Path(flashrag_fake.made[0]["save_dir"]).exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("variable", "line", "expected"),
    [(None, "", None), (None, "gpu_id: '1'", "1"), ("2", "gpu_id: '1'", "2"), ("", "", "")],
    ids=["neither", "file", "environment first", "no gpu"],
)
def test_gpus_come_from_the_environment_then_from_the_file(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, line: str, expected: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    make(_config(stand_in, line))
    assert flashrag_fake.made[0]["gpus"] == expected
    assert flashrag_fake.made[0]["silent_retrieval"] is True


def test_failures_and_image_retrievers_are_explained(stand_in: Path) -> None:
    with pytest.raises(VersionError, match="release on PyPI"):
        make(_config(stand_in, "fails_with: cuda"))
    with pytest.raises(ConfigError, match=r"cannot build a retriever from .*flashrag.yaml: Warning: no index"):
        make(_config(stand_in, "fails_with: index"))
    with pytest.raises(ConfigError, match="retrieval_method='clip' makes an image retriever"):
        make(_config(stand_in, "retrieval_method: clip"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release on PyPI, without what it requires."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--retries", "0", "--timeout", "10"]
    done = subprocess.run(
        [*command, "--target", str(folder), "flashrag-dev==0.1.2"], capture_output=True, text=True, timeout=120
    )
    if done.returncode != 0:
        pytest.skip(f"flashrag-dev 0.1.2 cannot be installed: {done.stderr[-300:]}")
    return folder


_MAKE = """
import sys
from research_plugin.errors import VersionError
from research_plugin.retriever.flashrag_engine import make
from research_plugin.retriever.settings import RetrieverConfig
try:
    make(RetrieverConfig(engine="flashrag", flashrag_config=sys.argv[1]))
except VersionError as error:
    print("VersionError:", error)
"""


# What Config of that release reads.
_BASIC = """
{split: [test], gpu_id: "0", dataset_name: nq, data_dir: d, save_dir: o, save_note: n, seed: 1, retrieval_method: e5,
 model2path: {}, model2pooling: {}, method2index: {}, index_path: ~, generator_model: g, rerank_model_name: ~,
 rerank_pooling_method: ~, metric_setting: {}, retrieval_topk: 5, retrieval_query_max_length: 64,
 use_sentence_transformer: true, retrieval_batch_size: 8}
"""


def _make_in_a_child(wheel: Path, settings: Path) -> str:
    variables = environment()
    variables["PYTHONPATH"] = f"{wheel}{os.pathsep}{variables['PYTHONPATH']}"
    command = [sys.executable, "-c", _MAKE, str(settings)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=180)
    return done.stdout + done.stderr


def test_the_release_on_pypi_is_recognised_before_it_is_imported(wheel: Path, tmp_path: Path) -> None:
    config = _config(tmp_path, "retrieval_method: e5")
    said = _make_in_a_child(wheel, Path(str(config.flashrag_config)))
    assert "VersionError: FlashRAG (0.1.2)" in said and "git+https://github.com/RUC-NLPIR/FlashRAG" in said, said
    assert "engine=dense" in said


def test_its_further_faults_are_explained_when_the_missing_file_is_put_there(wheel: Path, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    pytest.importorskip("datasets")
    pytest.importorskip("sentence_transformers")
    import numpy as np

    packages = tmp_path / "packages"
    shutil.copytree(wheel / "flashrag", packages / "flashrag")
    (packages / "flashrag" / "config" / "basic_config.yaml").write_text(_BASIC, encoding="utf-8")
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "a"}\n', encoding="utf-8")
    index = faiss.IndexFlatIP(384)
    index.add(np.ones((1, 384), np.float32))
    faiss.write_index(index, str(tmp_path / "flat.index"))
    lines = (
        f"retrieval_method: {model_path()}",
        f"index_path: {tmp_path}/flat.index",
        f"corpus_path: {tmp_path}/corpus.jsonl",
    )
    config = _config(tmp_path, "\n".join(lines))
    said = _make_in_a_child(packages, Path(str(config.flashrag_config)))
    assert "cannot answer a query: TypeError: parse_query() missing 1 required positional argument" in said, said
    assert "VersionError" in said and "calls its parse_query with an argument too few" in said
