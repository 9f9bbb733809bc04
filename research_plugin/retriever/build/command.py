"""``research-plugin index``: arguments of build, info, check and convert."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from itertools import islice
from pathlib import Path

from research_plugin.errors import ConfigError, DataError, ResearchPluginError
from research_plugin.retriever.recipe import load_config, recipe_names
from research_plugin.retriever.settings import RetrieverConfig

_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the four actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    parts = {
        "build": (_build, "embed a corpus and write its index; repeat the command to go on after an interruption"),
        "info": (_info, "say what an index file holds"),
        "check": (_check, "check that index, corpus and encoder belong together"),
        "convert": (_convert, "make an IVF, HNSW, SQ or PQ index from a flat one and report its recall"),
    }
    subparsers = {}
    for name, (function, text) in parts.items():
        subparsers[name] = actions.add_parser(name, help=text, description=text)
        subparsers[name].set_defaults(function=function)
    _add_build(subparsers["build"])
    subparsers["info"].add_argument("file", type=Path)
    _add_settings(subparsers["check"])
    _add_convert(subparsers["convert"])


def run(args: argparse.Namespace) -> int:
    """Run one action: 0 when all is well, 1 after an error or a failed check, 130 after Ctrl-C."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        return int(args.function(args))
    except ResearchPluginError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a folder that cannot be written
        print(f"error: {error}; mend that and repeat the command: what is finished is kept", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; what is finished is kept, and the same command goes on from there", file=sys.stderr)
        return _INTERRUPTED


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings over the recipe's, as for serve")
    parser.add_argument("--recipe", metavar="NAME", help=f"YAML file, or one of {', '.join(recipe_names())}")
    parser.add_argument("--corpus", metavar="FILE", help="JSONL corpus; the same as corpus=FILE")
    parser.add_argument("--index", metavar="FILE", help="index file; the same as index.path=FILE")


def _add_build(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_settings(parser)
    add("--out", type=Path, metavar="DIR", help="write DIR/METHOD_TYPE.index, as FlashRAG does, instead of --index")
    add("--method", default="e5", help="name of the encoder in file names (default: %(default)s)")
    add("--faiss-type", default="Flat", metavar="TYPE", help="FAISS factory string: Flat (default), IVF4096,SQ8, ...")
    add(
        "--limit",
        type=_positive,
        metavar="N",
        help="for a trial: the first N passages, copied to a corpus of their own",
    )
    add("--workers", type=_positive, metavar="N", help="encoder processes (default: one per GPU, or one)")
    add("--block", type=_positive, default=1024, metavar="N", help="passages per unit of work (default: %(default)s)")
    add("--save-embedding", action="store_true", help="keep emb_METHOD.memmap of a flat index, too")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", type=Path, help="flat index file")
    add("target", type=Path, help="index file to write")
    add("overrides", nargs="*", metavar="key=value", help="settings such as threads=8 or index.nprobe=64")
    add("--faiss-type", required=True, metavar="TYPE", help="FAISS factory string, such as IVF4096,SQ8 or HNSW32")
    add("--recipe", metavar="NAME", help="recipe with the encoder of the queries")
    add("--queries", type=Path, metavar="FILE", help="queries for the report, one a line (default: noisy passages)")
    add("--topk", type=_positive, default=5, metavar="K", help="documents that recall counts (default: %(default)s)")


def _config(args: argparse.Namespace) -> RetrieverConfig:
    flags = [f"{key}={value}" for key, value in (("corpus", args.corpus), ("index.path", args.index)) if value]
    return _load(args.recipe, [*args.overrides, *flags])


def _load(recipe: str | None, overrides: list[str]) -> RetrieverConfig:
    config = load_config(recipe, overrides if recipe else ["engine=dense", *overrides])
    if config.engine not in ("dense", "hybrid"):
        raise ConfigError(f"engine={config.engine}: only engine dense reads an index (bm25 indexes when it starts)")
    return config


def _build(args: argparse.Namespace) -> int:
    from research_plugin.retriever.build.build import Target, build

    config = _config(args)
    if args.out is not None:
        path = args.out / f"{args.method}_{args.faiss_type}.index"
    elif config.index.path is not None:
        path = Path(config.index.path)
    else:
        raise ConfigError("where to? give --out DIR, or --index FILE (index.path of the recipe)")
    path.parent.mkdir(parents=True, exist_ok=True)
    _find_corpus(config, args.limit, path.parent)
    target = Target(path, args.method, args.faiss_type, args.save_embedding)
    build(config, target, args.workers, args.block)
    print(f"done: {path}\nserve it: {_serve_command(args, config, path)}")
    return 0


def _serve_command(args: argparse.Namespace, config: RetrieverConfig, index: Path) -> str:
    chosen = ["--recipe", args.recipe] if args.recipe else ["engine=dense"]
    rows = ["corpus_rows=null"] if args.limit and args.recipe else []
    files = [f"corpus={config.corpus}", f"index.path={index}"]
    return shlex.join(["research-plugin", "serve", *chosen, *args.overrides, *rows, *files])


def _find_corpus(config: RetrieverConfig, limit: int | None, folder: Path) -> None:
    """Set ``config.corpus`` to a file that is there; with a limit, to a copy of its beginning in ``folder``."""
    from research_plugin.retriever.build import wiki18

    if config.corpus is None:
        raise ConfigError("which corpus? give --corpus FILE (corpus of the recipe)")
    corpus = Path(config.corpus)
    if not corpus.is_file() and corpus.name == wiki18.NAME:
        wiki18.fetch(corpus.parent)
    if limit is not None:
        config.corpus, config.corpus_rows = str(folder / f"{corpus.stem}_first_{limit}.jsonl"), None
        _copy_beginning(corpus, limit, Path(config.corpus))


def _copy_beginning(corpus: Path, limit: int, copy: Path) -> None:
    """Copy the first documents, unless that was done before: a new time stamp would look like another corpus."""
    try:
        with corpus.open("rb") as lines:
            wanted = b"".join(islice((line for line in lines if line.strip()), limit))
        if not copy.is_file() or copy.read_bytes() != wanted:
            copy.write_bytes(wanted)
    except OSError as error:
        raise DataError(f"corpus {corpus}: cannot be copied to {copy} ({error.strerror or error})") from error


def _info(args: argparse.Namespace) -> int:
    from research_plugin.retriever.build.info import describe_index

    for name, value in describe_index(args.file).items():
        print(f"{name:<10} {value}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from research_plugin.retriever.build.check import require

    config = _config(args)
    for key, value in (("corpus", config.corpus), ("index.path", config.index.path)):
        if value is None:
            raise ConfigError(f"{key} is not set; give --recipe, or --corpus and --index")
    require(config)
    return 0


def _convert(args: argparse.Namespace) -> int:
    from research_plugin.retriever.build.convert import convert

    config = _load(args.recipe, args.overrides)
    convert(args.source, args.target, args.faiss_type, config, k=args.topk, queries=args.queries)
    print(f"done: {args.target}\nserve it with the settings of {args.source} and index.path={args.target}")
    return 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; give 1 or more")
    return value
