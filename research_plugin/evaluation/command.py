"""``research-plugin eval``: a method, a served model, a retriever and a dataset in, records and their means out.

Files in ``--out``: ``run.json`` (what was run), ``records.jsonl`` (a `RolloutRecord` a question; an interrupted run
goes on from it) and ``summary.json`` (means and intervals).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from research_plugin import __version__
from research_plugin.data.rows import Row, question_text
from research_plugin.document import Document
from research_plugin.errors import ConfigError
from research_plugin.evaluation.agentic import agentic
from research_plugin.evaluation.best_of import SELECT, best_of
from research_plugin.evaluation.judge import summarise
from research_plugin.evaluation.method import METHODS, TRAINED, Find, Method, World, get_method
from research_plugin.evaluation.plan import Plan, identity, make_plan, read_dataset
from research_plugin.evaluation.record import make_record
from research_plugin.evaluation.runner import RecordLog, answer_all
from research_plugin.records import RolloutRecord
from research_plugin.resumable import refuse_other_settings, write_json
from research_plugin.search.client import SearchClient
from research_plugin.search.settings import SearchConfig
from research_plugin.served import options
from research_plugin.served.model import ServedModel
from research_plugin.served.options import positive

_STRANGE = 0.1  # a smaller share in the right format says that the model was not trained for it
_SHOWN = ("em", "f1", "cem", "answered", "truncated", "format_ok", "num_searches", "golden_in_results", "seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    options.add_arguments(parser, temperature=0.0)
    options.add_concurrency(parser)
    methods = ", ".join((*TRAINED, *METHODS))
    add("--method", required=True, metavar="NAME", help=f"{methods}, or my_module:FUNCTION of your own")
    add("--dataset", required=True, type=Path, metavar="FILE", help="questions: veRL's parquet, or JSONL")
    add("--out", required=True, type=Path, metavar="DIR", help="where results go; the same folder again goes on")
    add("--name", help="what the dataset is called in reports (default: as its rows or its file say)")
    add("--limit", type=positive, metavar="N", help="draw this many questions (default: all)")
    add("--seed", type=int, default=0, help="of that draw, and of sampling above temperature 0 (%(default)s)")
    add(
        "--max-tokens", type=positive, default=1024, metavar="N", help="of one reply to a prompted method (%(default)s)"
    )
    add("--rounds", type=positive, metavar="N", help="of iter_retgen, ircot, search_o1 (default: their papers')")
    add("--best-of", type=positive, default=1, metavar="N", help="attempts at a question; one is chosen")
    add("--select", choices=sorted(SELECT), default="majority", help="by vote, or by the model (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Evaluate; 1 when questions are left without an answer, 130 after Ctrl-C."""
    plan = make_plan(args)
    rows = read_dataset(args.dataset, args.name, args.limit, args.seed)
    try:
        records, faults = asyncio.run(_evaluate(args, plan, rows))
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on from {args.out}", file=sys.stderr)
        return 130
    failed = len(rows) - len(records)
    summary = {"failed": failed, **summarise(args.out, records)}
    write_json(args.out / "summary.json", summary)
    for name in _SHOWN:
        if value := summary["metrics"].get(name):
            print(f"{name:<20}{value['mean']:>9.3f}   [{value['low']:.3f}, {value['high']:.3f}]")
    print(f"{len(records)} questions; {args.out}")
    if summary["metrics"].get("format_ok", {"mean": 1.0})["mean"] < _STRANGE:
        print(
            f"hardly a rollout is in the format of {plan.method}: was the model trained with this method and with "
            f"prompt.style={plan.prompt.style}?",
            file=sys.stderr,
        )
    if failed:
        reasons = "\n".join(dict.fromkeys(faults.values()))
        print(
            f"{failed} of {len(rows)} questions have no answer because of faults, and are not in the summary; the same "
            f"command tries them again:\n{reasons[:2000]}",
            file=sys.stderr,
        )
    return 1 if failed else 0


async def _evaluate(
    args: argparse.Namespace, plan: Plan, rows: Sequence[Row]
) -> tuple[list[RolloutRecord], dict[str, str]]:
    """Return the records, in the order of ``rows``, and the faults of this run by question id."""
    from tqdm import tqdm

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(options.served_model(args))
        find, health = await _retriever(plan.search, stack)
        method = _method(args, plan, rows, server, find)
        args.out.mkdir(parents=True, exist_ok=True)
        log = stack.enter_context(RecordLog(args.out / "records.jsonl"))
        facts = identity(args, plan, rows, server.name, list(health.values()))
        about = {"dataset_file": str(args.dataset), "model_url": server.url, "retrievers": sorted(health)}
        _begin(args.out / "run.json", facts, about, begun=bool(log.records))

        async def attempt(row: Row) -> RolloutRecord:
            started = time.perf_counter()
            made = await method(question_text(row), World(server.ask, find, plan.settings))
            record = make_record(row, made, reward=plan.reward, seconds=time.perf_counter() - started)
            record.method, record.prompt = plan.method, facts["prompt"]
            return record

        with tqdm(total=len(rows), initial=len(log.records), desc=plan.method, unit="q", smoothing=0.05) as bar:
            show = _running_means(bar, list(log.records.values()))
            faults = await answer_all(rows, attempt, log, concurrency=args.concurrency, on_done=show)
        ids = [row["extra_info"]["id"] for row in rows]
        return [log.records[row_id] for row_id in ids if row_id in log.records], faults


async def _retriever(search: SearchConfig | None, stack: AsyncExitStack) -> tuple[Find, dict[str, Any]]:
    """Return how to search, and what each retriever says about itself, once all of them answered."""
    if search is None:

        async def refuse(query: str) -> Sequence[Document]:
            raise ConfigError("this method searches: give --retriever URL")

        return refuse, {}
    from research_plugin.search.check import check_retriever
    from research_plugin.search.expected import read_health

    await check_retriever(search)
    client = SearchClient(search)
    stack.push_async_callback(client.aclose)

    async def find(query: str) -> Sequence[Document]:
        return (await client.search(query)).documents

    return find, {url: await read_health(url) for url in search.endpoints}


def _method(args: argparse.Namespace, plan: Plan, rows: Sequence[Row], server: ServedModel, find: Find) -> Method:
    """Return what answers a question, once it is clear that the model's context can hold it."""
    context = server.max_model_len
    if plan.reward is None or plan.agent is None:
        if context is not None and args.max_tokens >= context:
            raise ConfigError(f"--max-tokens {args.max_tokens}: {server.name} has a context of {context} tokens in all")
        method = get_method(plan.method)
    else:
        roll = options.served_rollouts(args, server, find, plan.agent)
        roll.check_context(question_text(row) for row in rows)
        method = agentic(plan.reward, roll)
    return method if args.best_of == 1 else best_of(method, args.best_of, args.select)


def _running_means(bar: Any, known: Sequence[RolloutRecord]) -> Callable[[RolloutRecord | None], None]:
    """Return what moves the progress bar by one question and shows the means of all that have a record."""
    scored = [record.scores for record in known]
    count, sums = len(scored), {name: sum(scores[name] for scores in scored) for name in ("em", "f1")}

    def show(record: RolloutRecord | None) -> None:
        nonlocal count
        if record is not None:
            count += 1
            for name in sums:
                sums[name] += record.scores[name]
            bar.set_postfix({name: f"{total / count:.3f}" for name, total in sums.items()}, refresh=False)
        bar.update()

    return show


def _begin(path: Path, settings: Mapping[str, Any], about: Mapping[str, Any], *, begun: bool) -> None:
    """Write run.json, or see to it that the one that is there says the same; ``about`` may differ."""
    settings = json.loads(json.dumps(settings))
    if path.is_file():
        old = json.loads(path.read_text(encoding="utf-8"))
        refuse_other_settings(path, {key: value for key, value in old.items() if key != "about"}, settings)
    elif begun:
        raise ConfigError(f"{path.parent} holds records but no {path.name}; choose another --out")
    else:
        versions = {name: importlib.metadata.version(name) for name in ("transformers", "httpx")}
        versions["research_plugin"] = __version__
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        write_json(path, {**settings, "about": {**about, "started": started, "versions": versions}})
