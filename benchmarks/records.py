"""What writing rollout records costs a training step: the trainer's thread, the writing thread, the disk.

    python benchmarks/records.py [--json FILE] [--groups 256] [--tokens 8192]

A step of ``--groups`` groups of 5 rollouts lies in a real TransferQueue, as veRL leaves it: tokens, mask, log-probs,
advantages, segments and documents; half of a response is retrieved text. Measured for the recipes' default (16 groups),
for all groups, and for 16 without tokens:

- numbers: seconds for the metrics of all rollouts, whether any is recorded or not;
- step: seconds that the trainer's thread is held up by the records (reading the chosen rows from TransferQueue);
- write: seconds until the file is on disk, in the background;
- drag: how much slower pure Python gets on the trainer's thread meanwhile (both hold the interpreter's lock); a trainer
  mostly waits for its workers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

GROUP = 5
WORDS = "the mayor of Torvale was born in the house by the glass harbour in the spring of that year "


def fill(tokenizer: Any, groups: int, tokens: int) -> list[str]:
    """Put the step's rollouts; return their keys."""
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    half = tokenizer.encode(WORDS * (tokens // 10), add_special_tokens=False)[: tokens // 2]
    text = tokenizer.decode(half)
    mask = torch.tensor([1] * len(half) + [0] * len(half))
    passages = [{"id": str(n), "contents": text[n * 700 : (n + 1) * 700]} for n in range(5)]
    keys = []
    for group in range(groups):
        rows = []
        for session in range(GROUP):
            rows.append(
                {
                    "prompts": torch.tensor(half[:200]),
                    "responses": torch.tensor(half * 2),
                    "response_mask": mask,
                    "rollout_log_probs": mask * -torch.rand(len(mask)),
                    "advantages": mask * (session - 2.0),
                    "raw_prompt": [{"role": "user", "content": "Who?"}],
                    "reward_model": {"ground_truth": ["Torvale"]},
                    "data_source": "benchmark",
                    "extra_info": {"id": str(group)},
                    "extra_fields": {
                        "segments": [[text, True], [text, False]],
                        "queries": ["a", "b"],
                        "documents": [passages, passages],
                        "stop_reason": "answered",
                        **dict.fromkeys(("num_searches", "generated_tokens", "retrieved_tokens"), 2.0),
                        "reward_extra_info": {"score": 1.0, "f1": 1.0, "pred": "Torvale", "reason": ""},
                    },
                }
            )
        new = [f"group{group}_{session}_0" for session in range(GROUP)]
        tags = [{"status": "success"}] * GROUP
        tq.kv_batch_put(keys=new, fields=list_of_dict_to_tensordict(rows), tags=tags, partition_id="train")
        keys += new
    return keys


def work(seconds: float) -> float:
    """Count in pure Python for so long; return rounds per second."""
    rounds, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        sum(range(1000))
        rounds += 1
    return rounds / (time.perf_counter() - started)


def measure(config: Any, tokenizer: Any, keys: list[str], groups: int, with_tokens: bool) -> dict[str, float]:
    """Record one step with these settings."""
    from transfer_queue import KVBatchMeta

    from research_plugin.metrics import step_metrics
    from research_plugin.verl_ext.journal import Journal
    from research_plugin.verl_ext.step_metrics import batch_rollouts

    records = config.actor_rollout_ref.rollout.custom.records
    records.groups_per_step, records.tokens = groups, with_tokens
    folder = Path(config.trainer.default_local_dir)
    shutil.rmtree(folder, ignore_errors=True)
    journal = Journal(config, tokenizer)
    batch = KVBatchMeta(partition_id="train", keys=keys, tags=[{}] * len(keys))
    alone = work(1.0)
    started = time.perf_counter()
    step_metrics(batch_rollouts(batch))
    numbers = time.perf_counter() - started
    started = time.perf_counter()
    journal.end_step(batch, {}, 1)
    step = time.perf_counter() - started
    beside = work(0.5)
    drag = alone / beside if journal.files_to_write else 1.0
    journal.close()
    write = time.perf_counter() - started - step
    size = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
    times = {"numbers": numbers, "step": step, "write": write, "drag": drag}
    return {"groups": groups, "tokens": with_tokens, **times, "mb": size / 1e6}


def main() -> None:
    """Measure, print the table and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--groups", type=int, default=256, help="groups of the step, each of 5 rollouts (default 256)")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a response (default 8192)")
    arguments = parser.parse_args()

    import ray
    import transfer_queue as tq
    import verl  # noqa: F401  (loads the plugin)
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    from research_plugin.plugin import data_file

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=["+recipe=research_tiny"])
    custom = "actor_rollout_ref.rollout.custom"
    OmegaConf.update(config, f"{custom}.search.url", "http://127.0.0.1:1")
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    tq.init(OmegaConf.create({**config.transfer_queue, "enable": True}))
    tokenizer = AutoTokenizer.from_pretrained(data_file("tiny/model"))
    with tempfile.TemporaryDirectory() as folder:
        config.trainer.default_local_dir = f"{folder}/run"
        keys = fill(tokenizer, arguments.groups, arguments.tokens)
        settings = [(16, True), (arguments.groups, True), (16, False)]
        rows = [measure(config, tokenizer, keys, groups, tokens) for groups, tokens in settings]
    tq.close()
    ray.shutdown()
    print(f"{arguments.groups} groups of {GROUP} rollouts, {arguments.tokens} tokens each")
    print(f"{'groups':>6} {'tokens':>7} {'numbers s':>9} {'step s':>8} {'write s':>8} {'drag':>6} {'MB':>8}")
    for row in rows:
        told = "yes" if row["tokens"] else "no"
        numbers = (
            f"{row['numbers']:>9.3f} {row['step']:>8.3f} {row['write']:>8.2f} {row['drag']:>6.2f} {row['mb']:>8.1f}"
        )
        print(f"{row['groups']:>6} {told:>7} {numbers}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
