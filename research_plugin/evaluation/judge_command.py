"""``research-plugin judge RUN...``: let an LLM judge the answers of finished evaluations.

The verdicts go into each run's ``summary.json``, the replies into its ``judge.jsonl``. A run that is judged again,
after a kill or because requests failed, costs only what is missing; several runs share their replies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from research_plugin.errors import DataError
from research_plugin.evaluation.judge import Replies, ask_judge, judge_prompt, summarise_judged
from research_plugin.records import RolloutRecord
from research_plugin.reports.read_records import RunRecords
from research_plugin.resumable import write_json
from research_plugin.served.model import ServedModel
from research_plugin.served.options import positive

_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_REPLY = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder of an evaluation; may be repeated")
    add("--judge-url", required=True, metavar="URL", help="OpenAI-compatible server of the judge")
    add("--judge-model", metavar="NAME", help="which of its models (default: the only one)")
    add("--key-env", default="OPENAI_API_KEY", metavar="VAR", help="variable with the server's key, if it wants one")
    add("--max-tokens", type=positive, default=1024, metavar="N", help="of a reply (default: %(default)s)")
    add("--concurrency", type=positive, default=32, metavar="N", help="requests at a time (default: %(default)s)")
    add("--price-in", type=float, metavar="X", help="price of a million tokens that are sent, for the estimate")
    add("--price-out", type=float, metavar="X", help="price of a million tokens of replies")
    add("--dry-run", action="store_true", help="print the estimate and stop")


def run(args: argparse.Namespace) -> int:
    """Estimate, ask, sum up; 1 when requests failed, 130 after Ctrl-C."""
    runs = {folder: _records(folder) for folder in dict.fromkeys(args.runs)}
    try:
        return asyncio.run(_judge(args, runs))
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130


def _records(folder: Path) -> list[RolloutRecord]:
    found = RunRecords(folder)
    records = [record for _, record in found.new()]
    if found.unreadable or not records:
        raise DataError(f"{folder} cannot be judged: {next(iter(found.unreadable), 'it holds no records')}")
    return records


async def _judge(args: argparse.Namespace, runs: dict[Path, list[RolloutRecord]]) -> int:
    from tqdm import tqdm

    key = os.environ.get(args.key_env)
    judge = ServedModel(args.judge_url, args.judge_model, key=key, connections=args.concurrency)
    async with judge as server, AsyncExitStack() as files:
        replies = {folder: files.enter_context(Replies(folder)) for folder in runs}
        missing: dict[str, list[Replies]] = {}
        for folder, records in runs.items():
            for prompt in dict.fromkeys(filter(None, map(judge_prompt, records))):
                known = [reply for kept in replies.values() if (reply := kept.get(server.name, prompt)) is not None]
                if not known:
                    missing.setdefault(prompt, []).append(replies[folder])
                elif replies[folder].get(server.name, prompt) is None:
                    replies[folder].add(server.name, prompt, known[0])

        def keep(prompt: str, reply: str) -> None:
            for kept in missing[prompt]:
                kept.add(server.name, prompt, reply)

        print(_estimate(args, server.name, list(missing)))
        if args.dry_run:
            return 0
        with tqdm(total=len(missing), desc="judge", unit="q", disable=not missing) as bar:
            failures = await ask_judge(
                server,
                list(missing),
                keep,
                max_tokens=args.max_tokens,
                concurrency=args.concurrency,
                on_done=bar.update,
            )
    for folder, records in runs.items():
        _sum_up(folder, records, replies[folder], server.name)
    if failures:
        print(
            f"{len(failures)} requests failed, the last one: {failures[-1]!r}; run it again for these", file=sys.stderr
        )
    return int(bool(failures))


def _estimate(args: argparse.Namespace, model: str, prompts: list[str]) -> str:
    sent = sum(map(len, prompts)) // _CHARACTERS_PER_TOKEN
    replied = _TOKENS_PER_REPLY * len(prompts)
    text = f"{model}: {len(prompts)} requests, about {sent:,} tokens sent and {replied:,} in replies"
    if args.price_in is None or args.price_out is None:
        return text
    return f"{text}, about {(sent * args.price_in + replied * args.price_out) / 1e6:.2f} at these prices"


def _sum_up(folder: Path, records: list[RolloutRecord], replies: Replies, model: str) -> None:
    """Put the verdicts into the run's summary and print what they come to."""
    path = folder / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    summary |= summarise_judged(records, replies, model)
    write_json(path, summary)
    judge = summary["metrics"].get("judge", {"n": 0})
    figures = "{mean:.4f} [{low:.4f}, {high:.4f}]".format(**judge) if judge["n"] else "-"
    unread = f"{summary['judge_unparsed']} unreadable, {summary['judge_missing']} unanswered"
    print(f"{folder}: judge {figures} of {judge['n']} answers; {unread}")
