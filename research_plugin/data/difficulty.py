"""``research-plugin data difficulty``: sort questions by how many rollouts a model needs until one is right.

The curriculum of R1-Searcher (arXiv 2503.05592): the model is served (vLLM), a retriever answers, and turn loop,
protocol and scores are those of training. Files in ``--out``: ``attempts.jsonl`` (every rollout; an interrupted run
goes on from it), ``results.jsonl`` (one line a question), a parquet file per bucket and per mix.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from research_plugin.config import AgentConfig, build_config
from research_plugin.data.attempts import AttemptLog, sample_until_right
from research_plugin.data.buckets import BUCKETS, Bounds, draw_mixes, parse_mix
from research_plugin.data.rows import Row, write_parquet
from research_plugin.errors import ConfigError, DataError, ModelError
from research_plugin.prompts import load_prompt
from research_plugin.protocol import get_dialect
from research_plugin.rewards import METHODS, compute_score, golden_answers
from research_plugin.rollout import StopReason

_RECORDED = ("f1", "em", "cem", "format_ok", "num_searches", "pred")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings of the rollout, as under actor_rollout_ref.rollout.custom in a recipe: search.url=http://... "
        "protocol=r1_searcher prompt.style=base max_searches=8",
    )
    add("--data", required=True, type=Path, action="append", metavar="FILE", help="parquet questions; may be repeated")
    add("--out", required=True, type=Path, metavar="DIR", help="where results go; the same folder again goes on")
    add("--model-url", required=True, metavar="URL", help="OpenAI-compatible completions server, such as vLLM")
    add("--model", metavar="NAME", help="which of the served models (default: the only one)")
    add("--tokenizer", metavar="PATH", help="folder or name of its tokenizer (default: the model's name)")
    add("--key-env", default="OPENAI_API_KEY", metavar="VAR", help="variable with the server's key, if it wants one")
    add("--text-prompts", action="store_true", help="send prompts as text, to a server that takes no token ids")
    add("--samples", type=_positive, default=20, metavar="N", help="most rollouts a question (default: %(default)s)")
    add("--easy-below", type=_positive, default=10, metavar="N", help="easy: right before rollout N (%(default)s)")
    add("--medium-to", type=_positive, default=20, metavar="N", help="medium: right by rollout N (%(default)s)")
    add("--metric", choices=("em", "f1", "cem"), default="em", help="what makes a rollout right (default: %(default)s)")
    add("--at-least", type=float, default=1.0, metavar="X", help="value of the metric that is right (%(default)s)")
    add("--method", choices=sorted(METHODS), help="reward method that finds the answer (default: the protocol's)")
    add("--temperature", type=float, default=1.0, help="default: %(default)s")
    add("--top-p", type=float, default=1.0, help="default: %(default)s")
    add("--response-length", type=_positive, default=8192, metavar="N", help="tokens, results too (%(default)s)")
    add("--concurrency", type=_positive, default=64, metavar="N", help="questions at a time (default: %(default)s)")
    add("--mix", action="append", default=[], metavar="NAME=BUCKET:COUNT,...", help="draw NAME.parquet from buckets")
    add("--seed", type=int, default=0, help="of the mixes (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Sample, sort, draw; 130 after Ctrl-C."""
    bounds = Bounds(args.easy_below, args.medium_to)
    if args.samples < bounds.medium_to:
        raise ConfigError(f"--samples {args.samples}: medium and hard differ at rollout --medium-to {bounds.medium_to}")
    mixes = dict(map(parse_mix, args.mix))
    settings, method = _settings(args)
    questions = read_questions(args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        first_right = asyncio.run(_sample(args, settings, method, questions))
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on from {args.out}", file=sys.stderr)
        return 130
    buckets: dict[str, list[Row]] = {name: [] for name in BUCKETS}
    with (args.out / "results.jsonl").open("w", encoding="utf-8") as results:
        for row_id, row in questions.items():
            bucket = bounds.bucket(first_right.get(row_id))
            buckets[bucket].append(row)
            facts = {"data_source": row["data_source"], "bucket": bucket, "first_right": first_right.get(row_id)}
            results.write(json.dumps({"id": row_id, **facts, "question": _text(row)}, ensure_ascii=False) + "\n")
    _write(args.out, buckets)
    _write(args.out, draw_mixes(mixes, buckets, args.seed))
    return 0


def read_questions(paths: Sequence[Path]) -> dict[str, Row]:
    """Read the rows of veRL parquet files, by id.

    Raises:
        DataError: a file cannot be read, a row lacks what `Row` has or a golden answer, or an id comes twice.
    """
    from pyarrow import ArrowException, parquet

    questions: dict[str, Row] = {}
    for path in paths:
        try:
            rows = parquet.read_table(path).to_pylist()
        except (OSError, ArrowException) as error:
            raise DataError(f"{path} cannot be read: {error}; a parquet file of questions is needed") from error
        for number, row in enumerate(rows):
            try:
                row_id = row["extra_info"]["id"]
                golden_answers(row["reward_model"]["ground_truth"], f"{path}, row {number}")
                _text(row)
            except (KeyError, TypeError, IndexError) as error:
                raise DataError(
                    f"{path}, row {number}: {error!r}; docs/data.md has the columns that are needed"
                ) from error
            if questions.setdefault(row_id, row) is not row:
                raise DataError(f"{path}, row {number}: the id {row_id!r} came before; ids must differ over all --data")
    return questions


def _text(row: Row) -> str:
    return [message["content"] for message in row["prompt"] if message["role"] == "user"][-1]


def _settings(args: argparse.Namespace) -> tuple[AgentConfig, str]:
    """Return the rollout's settings and the reward method, which is the protocol's own unless one is named."""
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(OmegaConf.from_dotlist(args.overrides))
    settings = build_config(AgentConfig, values)  # type: ignore[arg-type]
    if settings.max_searches_schedule:
        raise ConfigError("max_searches_schedule follows the steps of a training; set max_searches")
    dialect = get_dialect(settings.protocol)
    method = args.method or next((name for name, known in METHODS.items() if known.dialect == dialect), None)
    if method is None:
        raise ConfigError(f"no reward method reads protocol {settings.protocol!r}; name one with --method")
    return settings, method


def _identity(args: argparse.Namespace, settings: AgentConfig, method: str, model: str) -> dict[str, Any]:
    """Return everything that attempts must have in common to be counted together."""
    prompt = load_prompt(settings.protocol, settings.prompt.style, settings.prompt.file)
    rollout = {key: value for key, value in dataclasses.asdict(settings).items() if key not in ("search", "prompt")}
    options = ("metric", "at_least", "temperature", "top_p", "response_length")
    return {
        "model": model,
        **rollout,
        "prompt": [settings.prompt.style, hashlib.sha256(prompt.encode()).hexdigest()[:16]],
        "topk": settings.search.topk,
        "method": method,
        **{option: getattr(args, option) for option in options},
    }


async def _sample(
    args: argparse.Namespace, settings: AgentConfig, method: str, questions: Mapping[str, Row]
) -> dict[str, int]:
    """Return the number of each question's first right rollout, where there was one."""
    from tqdm import tqdm

    from research_plugin.data.served_model import ServedModel
    from research_plugin.search.check import check_retriever
    from research_plugin.search.client import SearchClient

    await check_retriever(settings.search)
    client = SearchClient(settings.search)
    server = ServedModel(args.model_url, args.model, key=os.environ.get(args.key_env), connections=args.concurrency)
    try:
        async with server:
            identity = _identity(args, settings, method, server.name)
            with AttemptLog(args.out / "attempts.jsonl", identity) as log:
                attempt = _attempt(args, settings, method, questions, server, client)
                done = sum(log.decided(row_id, args.samples) for row_id in questions)
                with tqdm(total=len(questions), initial=done, desc="questions", unit="q", smoothing=0.05) as bar:
                    await sample_until_right(
                        list(questions),
                        attempt,
                        log,
                        most=args.samples,
                        concurrency=args.concurrency,
                        on_decided=bar.update,
                    )
                return dict(log.first_right)
    finally:
        await client.aclose()


def _attempt(
    args: argparse.Namespace,
    settings: AgentConfig,
    method: str,
    questions: Mapping[str, Row],
    server: Any,
    client: Any,
) -> Callable[[str], Awaitable[dict[str, Any]]]:
    """Return what makes one rollout of a question and judges it."""
    from research_plugin.data.served_model import served_turns
    from research_plugin.search_loop import Limits, run_search_loop
    from research_plugin.tokens import build_prompt_ids

    dialect = get_dialect(settings.protocol)
    codec = _codec(args.tokenizer or server.name)
    generate = served_turns(
        server,
        codec,
        dialect,
        temperature=args.temperature,
        top_p=args.top_p,
        text_prompts=args.text_prompts,
    )
    limits = Limits(
        args.response_length,
        server.max_model_len,
        settings.max_searches,
        settings.when_spent == "notice",
        settings.max_observation_tokens,
        settings.max_turn_tokens,
    )

    async def search(query: str) -> Any:
        return (await client.search(query)).documents

    async def attempt(row_id: str) -> dict[str, Any]:
        row = questions[row_id]
        prompt_ids = build_prompt_ids(
            codec,
            _text(row),
            protocol=settings.protocol,
            style=settings.prompt.style,
            file=settings.prompt.file,
            prefill=dialect.prefill,
        )
        episode = await run_search_loop(
            prompt_ids, generate=generate, search=search, codec=codec, dialect=dialect, limits=limits
        )
        rollout = episode.rollout
        assert rollout.stop_reason is not None
        if rollout.stop_reason.is_fault:  # says nothing about the question
            raise episode.error or ModelError(f"the server gave a request up ({StopReason.ABORTED.value})")
        extra = {"segments": rollout.segments, "stop_reason": rollout.stop_reason, "id": row_id}
        score = compute_score(row["data_source"], "", row["reward_model"]["ground_truth"], extra, method=method)
        right = float(score[args.metric]) >= args.at_least
        return {"right": right, "stop_reason": rollout.stop_reason.value, **{key: score[key] for key in _RECORDED}}

    return attempt


def _codec(tokenizer: str) -> Any:
    """Load the tokenizer and, where there is one, the generation config with the model's end tokens."""
    from transformers import AutoTokenizer, GenerationConfig

    from research_plugin.tokens import HFCodec, end_token_ids

    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no tokenizer in {tokenizer!r} ({error}); give its folder with --tokenizer") from error
    try:
        generation = GenerationConfig.from_pretrained(tokenizer)
    except OSError:
        generation = None
    return HFCodec(loaded, end_token_ids(loaded, generation))


def _write(folder: Path, parts: Mapping[str, Sequence[Row]]) -> None:
    """Write a parquet file per part and say how many questions of which data source are in it."""
    for name, rows in parts.items():
        write_parquet(rows, folder / f"{name}.parquet")
        sources = ", ".join(f"{count} {source}" for source, count in Counter(r["data_source"] for r in rows).items())
        print(f"{name + '.parquet':<20} {len(rows):>7} questions  {sources}")


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value
