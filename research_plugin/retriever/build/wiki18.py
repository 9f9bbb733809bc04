"""The corpus of ReSearch, R1-Searcher and Search-R1: FlashRAG's Wikipedia of 2018 in passages of 100 words.

On the hub: data set RUC-NLPIR/FlashRAG_datasets, retrieval-corpus/wiki18_100w.zip (5.1 GB); it holds wiki18_100w.jsonl
(14 GB, 21,015,324 passages). Search-R1's PeterJinGo/wiki-18-corpus and PeterJinGo/wiki-18-e5-index are the same
passages and their e5-base-v2 vectors in a flat index.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

from research_plugin.errors import DataError

_REPOSITORY, _ARCHIVE = "RUC-NLPIR/FlashRAG_datasets", "retrieval-corpus/wiki18_100w.zip"
NAME = "wiki18_100w.jsonl"
"""A corpus of this name that is not there is fetched."""


def fetch(folder: Path) -> None:
    """Put the corpus into ``folder``: unpacked from the archive there, or downloaded first.

    Raises:
        DataError: it is not there and cannot be downloaded; lists what to fetch elsewhere and where to put it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archives = [path for path in (folder / "wiki18_100w.zip", folder / _ARCHIVE) if path.is_file()]
    _unpack(archives[0] if archives else _download(folder), folder / NAME)


def _download(folder: Path) -> Path:
    print(f"{folder / NAME} is not there: downloading {_ARCHIVE} of {_REPOSITORY}", flush=True)
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(_REPOSITORY, _ARCHIVE, repo_type="dataset", local_dir=folder))
    except Exception as error:  # whatever stands between this machine and the hub, the way out is the same
        raise DataError(
            f"{NAME} is not in {folder} and cannot be downloaded ({type(error).__name__}: {_first_line(error)}). On a "
            f"machine with a connection:\n    hf download {_REPOSITORY} {_ARCHIVE} --repo-type dataset --local-dir .\n"
            f"then copy wiki18_100w.zip (5.1 GB; it is unpacked here) or {NAME} (14 GB) to {folder}"
        ) from error


def _unpack(archive: Path, corpus: Path) -> None:
    from tqdm import tqdm

    partial = corpus.with_name(f"{corpus.name}.part")
    try:
        with zipfile.ZipFile(archive) as files:
            members = [member for member in files.infolist() if Path(member.filename).name == NAME]
            if not members:
                raise DataError(f"{archive}: holds {', '.join(files.namelist()[:5]) or 'nothing'}, but no {NAME}")
            size = members[0].file_size
            if size > shutil.disk_usage(corpus.parent).free:
                raise DataError(f"{archive}: {NAME} needs {size / 1e9:.1f} GB, {corpus.parent} has not that much free")
            with (
                files.open(members[0]) as packed,
                partial.open("wb") as plain,
                tqdm(total=size, unit="B", unit_scale=True, desc=f"unpack {NAME}") as bar,
            ):
                while chunk := packed.read(2**22):
                    plain.write(chunk)
                    bar.update(len(chunk))
    except zipfile.BadZipFile as error:
        raise DataError(f"{archive}: damaged or half-downloaded ({error}); fetch it again") from error
    os.replace(partial, corpus)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
