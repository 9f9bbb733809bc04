"""``research-plugin data sft``: good rollouts as data for veRL's SFT trainer, the comparison to RL of R1-Searcher.

They come from a training's or an evaluation's folder. What veRL reads them with is ``verl_ext/sft_dataset.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from research_plugin.data.sft_rows import Segment, SFTRow, write_sft
from research_plugin.errors import ConfigError, DataError
from research_plugin.prompts import PLACEHOLDER, STYLES, load_prompt
from research_plugin.protocol import DIALECTS, get_dialect
from research_plugin.records import RolloutRecord
from research_plugin.reports.read_records import RunRecords
from research_plugin.resumable import replacing
from research_plugin.rewards import METHODS
from research_plugin.rollout import StopReason


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folders of trainings or evaluations, or files of records")
    add("--out", required=True, type=Path, metavar="FILE", help="parquet file to write")
    add(
        "--at-least",
        action="append",
        type=_bound,
        metavar="NAME=X",
        help="least value of a score, such as f1=0.8 or num_searches=1; may be repeated (default: em=1)",
    )
    add("--per-question", type=int, default=1, metavar="N", help="most rollouts of a question (default: %(default)s)")
    add("--protocol", metavar="NAME", help="dialect of the rollouts (default: the one of the records' method)")
    add("--style", choices=STYLES, help="prompt style of the rollouts (default: what the records say)")
    add("--prompt-file", metavar="FILE", help="prompt of your own that they had")


def run(args: argparse.Namespace) -> int:
    """Choose, write, and say how many were left out and why."""
    if args.per_question < 1:
        raise ConfigError(f"--per-question {args.per_question}: 1 or more is allowed")
    left_out: Counter[str] = Counter()
    bounds = dict(args.at_least or [("em", 1.0)])
    chosen = choose(_records(args.runs), bounds, args.per_question, left_out)
    rows = [_row(record, args.protocol, args.style, args.prompt_file) for record in chosen]
    if not rows:
        why = _counts(left_out) or "none could be read"
        raise DataError(f"no rollout is left ({why}); lower --at-least, or give other runs")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(args.out) as partial:
        write_sft(rows, partial)
    print(f"{args.out}  {len(rows):,} rollouts ({_counts(Counter(row['data_source'] for row in rows))})")
    print(f"left out: {_counts(left_out) or 'none'}")
    return 0


def choose(
    records: Iterable[RolloutRecord], bounds: Mapping[str, float], per_question: int, left_out: Counter[str]
) -> list[RolloutRecord]:
    """Return the rollouts that ended with an answer and reach every bound, the best of each question.

    Among those the score decides, then fewer searches, then the shorter response. Validation questions of a training
    are never used: they measure it.

    Args:
        bounds: Score name -> least value.
        per_question: Most rollouts of one question.
        left_out: Gets the number of rollouts by reason.
    """
    good: dict[str, list[RolloutRecord]] = {}
    for record in records:
        if reason := _fault(record, bounds):
            left_out[reason] += 1
        else:
            good.setdefault(record.question, []).append(record)
    kept = [record for found in good.values() for record in sorted(found, key=_rank)[:per_question]]
    if more := sum(map(len, good.values())) - len(kept):
        left_out["another one of its question is better"] = more
    return kept


def _fault(record: RolloutRecord, bounds: Mapping[str, float]) -> str | None:
    if record.split == "val":
        return "validation"
    # veRL's dumps hold the score only, in which `answered` says the same.
    answered = StopReason.ANSWERED.value
    if record.stop_reason != answered and (record.stop_reason or not record.scores.get(answered)):
        return "no answer"
    for name, least in bounds.items():
        if name not in record.scores:
            raise ConfigError(f"--at-least {name}: the rollouts' scores are {', '.join(record.scores) or 'none'}")
        if not record.scores[name] >= least:  # nan is below every bound
            return f"{name} < {least:g}"
    return None


def _rank(record: RolloutRecord) -> tuple[float, int, int]:
    return -record.scores.get("score", 0.0), len(record.queries), len(record.response)


def _row(record: RolloutRecord, protocol: str | None, style: str | None, prompt_file: str | None) -> SFTRow:
    if protocol is None:
        judged = METHODS.get(record.method)
        protocol = judged.dialect.name if judged else record.method if record.method in DIALECTS else None
    style = style or (record.prompt if record.prompt in STYLES else None)
    if protocol is None or style is None:
        raise ConfigError(
            f"the records say method={record.method!r} and prompt={record.prompt[:40]!r}; say with --protocol and "
            f"--style ({', '.join(STYLES)}) what these rollouts had"
        )
    text = load_prompt(get_dialect(protocol).name, style, prompt_file).partition(PLACEHOLDER)[0]
    if record.prompt and record.prompt not in STYLES and _squeezed(text) not in _squeezed(record.prompt):
        raise ConfigError(
            f"--style {style}: the prompt of the {protocol} protocol in this style is not the one of rollout "
            f"{record.id!r}: {record.prompt[:200]!r}; say with --style, --protocol and --prompt-file what it had"
        )
    return SFTRow(
        id=record.id,
        data_source=record.data_source,
        question=record.question,
        segments=[Segment(text=text, by_policy=by_policy) for text, by_policy in record.segments],
        protocol=protocol,
        prompt_style=style,
        prompt_file=prompt_file,
        score=record.scores.get("score", 0.0),
    )


def _squeezed(text: str) -> str:
    return "".join(text.split())  # decoding tokens may change white space


def _records(runs: Iterable[Path]) -> Iterator[RolloutRecord]:
    for run in dict.fromkeys(run.resolve() for run in runs):
        records = RunRecords(run)
        records.require()
        for _, record in records.new():
            yield record
        if records.unreadable:
            print(f"{len(records.unreadable)} lines left out; the first: {records.unreadable[0]}", file=sys.stderr)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _bound(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=X, such as f1=0.8") from None
