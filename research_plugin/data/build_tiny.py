"""``python -m research_plugin.data.build_tiny --out DIR``: write the tiny world and its warm-started model.

Minutes on one core. Ctrl-C keeps what is done; the same command goes on from there. Needs torch, transformers,
tokenizers, bm25s, pyarrow and tqdm.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research_plugin.data.rows import make_row, write_parquet
from research_plugin.data.tiny_files import TinyFiles
from research_plugin.data.tiny_world import HELD_OUT, TRAIN, Question, World, make_world, sample_questions

if TYPE_CHECKING:
    from research_plugin.data.tiny_eval import Scores
    from research_plugin.data.tiny_model import WarmStart

DATA_SOURCE = "tiny_world"
# Questions per number of hops. One hop alone would be answered by the warm start already.
TRAIN_QUESTIONS = {2: 640, 3: 640}
VAL_QUESTIONS = {2: 64, 3: 64}
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; ``research-plugin tiny`` has the same ones."""
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0, help="of world, weights and transcripts (default 0)")
    parser.add_argument("--steps", type=_positive, default=None, help="length of the warm start (default as shipped)")
    parser.add_argument("--threads", type=_positive, default=1, help="torch threads (default 1)")
    parser.add_argument("--skip-eval", action="store_true", help="do not answer the held-out questions at the end")


def run(args: argparse.Namespace) -> int:
    """Build; 0 when everything is written, 130 after Ctrl-C."""
    files = TinyFiles(args.out)
    try:
        build(files, seed=args.seed, steps=args.steps, threads=args.threads, judge=not args.skip_eval)
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {_checkpoint(files)}", file=sys.stderr)
        return INTERRUPTED
    return 0


def build(files: TinyFiles, *, seed: int = 0, steps: int | None = None, threads: int = 1, judge: bool = True) -> None:
    """Write the corpus, the questions, the tokenizer and the model under ``files.root``.

    Args:
        files: where to; made if needed, files of the same name are replaced.
        seed: of the world, the weights and the transcripts.
        steps: length of the warm start; default as shipped.
        threads: of torch. Two threads on cores that others use are slower than one.
        judge: answer the held-out questions at the end and print the scores.
    """
    from research_plugin.data.tiny_model import WarmStart, build_model, save_model
    from research_plugin.data.tiny_tokenizer import build_tokenizer

    settings = WarmStart(seed=seed) if steps is None else WarmStart(seed=seed, steps=steps)
    world = make_world(seed)
    files.model.mkdir(parents=True, exist_ok=True)
    write_questions_and_corpus(world, files, seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed)
    _train(model, tokenizer, world, settings, files, threads)
    save_model(model, tokenizer, files.model)
    record: dict[str, Any] = {"settings": asdict(settings)}
    if judge:
        scores = _judge(model, tokenizer, world, seed)
        record["held_out_greedy"] = asdict(scores)
        _print_scores(scores)
    (files.root / "build.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    _checkpoint(files).unlink(missing_ok=True)
    size = sum(path.stat().st_size for path in files.root.rglob("*") if path.is_file())
    print(f"wrote {files.root} ({size / 2**20:.2f} MiB)")


def validation_questions(world: World, seed: int = 0) -> list[Question]:
    """The 128 held-out questions of ``val.parquet``, in its order."""
    return sample_questions(world, HELD_OUT, VAL_QUESTIONS, seed)


def write_questions_and_corpus(world: World, files: TinyFiles, seed: int = 0) -> None:
    """Write ``corpus.jsonl``, ``train.parquet`` and ``val.parquet``."""
    lines = [json.dumps({"id": doc.id, "contents": doc.contents}) for doc in world.corpus]
    files.corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    train = sample_questions(world, TRAIN, TRAIN_QUESTIONS, seed)
    for split, path, questions in (
        (TRAIN, files.train, train),
        (HELD_OUT, files.val, validation_questions(world, seed)),
    ):
        rows = [make_row(DATA_SOURCE, split, at, q.text, q.golden_answers) for at, q in enumerate(questions)]
        write_parquet(rows, path)


def _train(model: Any, tokenizer: Any, world: World, settings: WarmStart, files: TinyFiles, threads: int) -> None:
    import torch
    from tqdm import tqdm

    from research_plugin.data.tiny_model import TraceBatches, train

    torch.set_num_threads(threads)
    with tqdm(total=settings.steps, desc="warm start", unit="step") as bar:

        def show(done: int, loss: float) -> None:
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update(done - bar.n)

        train(model, TraceBatches(world, tokenizer, settings), settings, _checkpoint(files), show)


def _judge(model: Any, tokenizer: Any, world: World, seed: int) -> Scores:
    from tqdm import tqdm

    from research_plugin.data.tiny_eval import evaluate
    from research_plugin.data.tiny_traces import bm25_search

    questions = validation_questions(world, seed)
    with tqdm(total=len(questions), desc="held-out questions", unit="q") as bar:
        return evaluate(model, tokenizer, questions, bm25_search(world.corpus), on_done=bar.update)


def _print_scores(scores: Scores) -> None:
    print("held-out, greedy: " + ", ".join(f"{name} {value:.3f}" for name, value in asdict(scores).items()))


def _checkpoint(files: TinyFiles) -> Path:
    return files.root / "warm_start.ckpt"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; give 1 or more")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m research_plugin.data.build_tiny``."""
    parser = argparse.ArgumentParser(prog="python -m research_plugin.data.build_tiny", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
