"""``research-plugin data difficulty``: sort questions by how many rollouts a model needs until one is right.

The curriculum of R1-Searcher (arXiv 2503.05592): the model is served (vLLM), a retriever answers, and turn loop,
protocol and scores are those of training. Files in ``--out``: ``attempts.jsonl`` (every rollout; an interrupted run
goes on from it), ``results.jsonl`` (one line a question), a parquet file per bucket and per mix.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from research_plugin.config import AgentConfig
from research_plugin.data.attempts import AttemptLog, sample_until_right
from research_plugin.data.buckets import BUCKETS, Bounds, draw_mixes, parse_mix
from research_plugin.data.rows import Row, question_text, read_parquet, write_parquet
from research_plugin.document import Document
from research_plugin.errors import ConfigError
from research_plugin.protocol import get_dialect
from research_plugin.rewards import METHODS, compute_score
from research_plugin.search.client import SearchClient
from research_plugin.served import options
from research_plugin.served.model import ServedModel
from research_plugin.served.options import positive

_RECORDED = ("f1", "em", "cem", "format_ok", "num_searches", "pred")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    options.add_arguments(parser, temperature=1.0)
    options.add_concurrency(parser)
    add("--data", required=True, type=Path, action="append", metavar="FILE", help="parquet questions; may be repeated")
    add("--out", required=True, type=Path, metavar="DIR", help="where results go; the same folder again goes on")
    add("--samples", type=positive, default=20, metavar="N", help="most rollouts a question (default: %(default)s)")
    add("--easy-below", type=positive, default=10, metavar="N", help="easy: right before rollout N (%(default)s)")
    add("--medium-to", type=positive, default=20, metavar="N", help="medium: right by rollout N (%(default)s)")
    add("--metric", choices=("em", "f1", "cem"), default="em", help="what makes a rollout right (default: %(default)s)")
    add("--at-least", type=float, default=1.0, metavar="X", help="value of the metric that is right (%(default)s)")
    add("--method", choices=sorted(METHODS), help="reward method that finds the answer (default: the protocol's)")
    add("--mix", action="append", default=[], metavar="NAME=BUCKET:COUNT,...", help="draw NAME.parquet from buckets")
    add("--seed", type=int, default=0, help="of the mixes (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Sample, sort, draw; 130 after Ctrl-C."""
    bounds = Bounds(args.easy_below, args.medium_to)
    if args.samples < bounds.medium_to:
        raise ConfigError(f"--samples {args.samples}: medium and hard differ at rollout --medium-to {bounds.medium_to}")
    mixes = dict(map(parse_mix, args.mix))
    settings, method = _settings(args)
    questions = read_parquet(args.data)
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
            results.write(
                json.dumps({"id": row_id, **facts, "question": question_text(row)}, ensure_ascii=False) + "\n"
            )
    _write(args.out, buckets)
    _write(args.out, draw_mixes(mixes, buckets, args.seed))
    return 0


def _settings(args: argparse.Namespace) -> tuple[AgentConfig, str]:
    """Return the rollout's settings and the reward method, which is the protocol's own unless one is named."""
    settings = options.agent_settings(options.read_settings(args))
    dialect = get_dialect(settings.protocol)
    method = args.method or next((name for name, known in METHODS.items() if known.dialect == dialect), None)
    if method is None:
        raise ConfigError(f"no reward method reads protocol {settings.protocol!r}; name one with --method")
    return settings, method


def _identity(args: argparse.Namespace, settings: AgentConfig, method: str, model: str) -> dict[str, Any]:
    """Return everything that attempts must have in common to be counted together."""
    rollout = {key: value for key, value in dataclasses.asdict(settings).items() if key not in ("search", "prompt")}
    shared = ("metric", "at_least", "temperature", "top_p", "response_length")
    return {
        "model": model,
        **rollout,
        "prompt": options.prompt_identity(settings.protocol, settings.prompt),
        "topk": settings.search.topk,
        "method": method,
        **{option: getattr(args, option) for option in shared},
    }


async def _sample(
    args: argparse.Namespace, settings: AgentConfig, method: str, questions: Mapping[str, Row]
) -> dict[str, int]:
    """Return the number of each question's first right rollout, where there was one."""
    from tqdm import tqdm

    from research_plugin.search.check import check_retriever

    await check_retriever(settings.search)
    client = SearchClient(settings.search)
    try:
        async with options.served_model(args) as server:
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
    server: ServedModel,
    client: SearchClient,
) -> Callable[[str], Awaitable[dict[str, Any]]]:
    """Return what makes one rollout of a question and judges it."""

    async def search(query: str) -> Sequence[Document]:
        return (await client.search(query)).documents

    roll = options.served_rollouts(args, server, search, settings)

    async def attempt(row_id: str) -> dict[str, Any]:
        row = questions[row_id]
        rollout = (await roll(question_text(row), temperature=args.temperature, top_p=args.top_p)).rollout
        assert rollout.stop_reason is not None
        extra = {"segments": rollout.segments, "stop_reason": rollout.stop_reason, "id": row_id}
        score = compute_score(row["data_source"], "", row["reward_model"]["ground_truth"], extra, method=method)
        right = float(score[args.metric]) >= args.at_least
        return {"right": right, "stop_reason": rollout.stop_reason.value, **{key: score[key] for key in _RECORDED}}

    return attempt


def _write(folder: Path, parts: Mapping[str, Sequence[Row]]) -> None:
    """Write a parquet file per part and say how many questions of which data source are in it."""
    for name, rows in parts.items():
        write_parquet(rows, folder / f"{name}.parquet")
        sources = ", ".join(f"{count} {source}" for source, count in Counter(r["data_source"] for r in rows).items())
        print(f"{name + '.parquet':<20} {len(rows):>7} questions  {sources}")
