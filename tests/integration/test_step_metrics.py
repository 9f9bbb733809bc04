"""The numbers and records of a step on their way to veRL's tracker and to disk.

With a real TransferQueue, veRL's buffers and its aggregator.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from composing import CUSTOM, compose_config

from research_plugin.records import RolloutRecord
from research_plugin.reports.read_records import RunRecords

pytestmark = pytest.mark.verl
pytest.importorskip("verl")
MODES = pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    """TransferQueue as the CPU recipe configures it, on a small Ray of its own."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        tq.init(OmegaConf.create({**compose_config("+recipe=research_tiny").transfer_queue, "enable": True}))
        yield tq
        tq.close()
    finally:
        ray.shutdown()


def build_buffer(mode: str, *overrides: str) -> Any:
    """The buffer that veRL's trainer builds for the composed recipe."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import PPOTrainer

    config = compose_config("+recipe=research_tiny", f"trainer.v1.trainer_mode={mode}", *overrides)
    OmegaConf.resolve(config.trainer)
    trainer = SimpleNamespace(config=config, trainer_mode=mode, _add_prompts_to_generate=print)
    trainer._resolve_filter_groups_metric = lambda: PPOTrainer._resolve_filter_groups_metric(trainer)  # type: ignore
    return PPOTrainer._build_replay_buffer(trainer)  # type: ignore[arg-type]


def put_group(tq: Any, partition: str, uid: str, rewards: list[float]) -> None:
    """A finished group as veRL's agent-loop worker leaves it; rollout i wrote 10 + i tokens and retrieved i."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    tq.kv_put(key=uid, partition_id=partition, tag={"is_prompt": True, "status": "finished", "global_steps": 1})
    for session, reward in enumerate(rewards):
        output = AgentLoopOutput(
            prompt_ids=[1],
            response_ids=[2] * (10 + session),
            response_mask=[1] * (10 + session),
            reward_score=reward,
            metrics=AgentLoopMetrics(),
            extra_fields={"generated_tokens": 10.0 + session, "retrieved_tokens": float(session)},
        )
        tq.kv_batch_put(
            keys=[f"{uid}_{session}_0"],
            fields=list_of_dict_to_tensordict([output.as_dict()]),
            tags=[{"status": "success", "global_steps": 1}],
            partition_id=partition,
        )


@MODES
def test_numbers_come_back_with_the_training_batch(queue: Any, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    from research_plugin.verl_ext import left_out

    put_group(queue, "train", "flat", [0.1, 0.1, 0.1])
    put_group(queue, "train", "spread", [0.1, 1.0])
    put_group(queue, "train", "survivor", [1.0])
    put_group(queue, "val", "question", [1.0])
    for uid, session, reason in (
        ("spread", 2, "search_failed"),
        ("survivor", 1, "search_failed"),
        ("survivor", 2, "aborted"),
        ("question", 1, "search_failed"),
    ):
        asyncio.run(left_out.record(uid, session, reason))
    buffer = build_buffer(mode)

    # Validation first, as before the first step: it takes what is its own and says so.
    with caplog.at_level(logging.WARNING):
        batch, metrics = buffer.sample(global_steps=1, partition_id="val", batch_size=1)
    assert (list(batch.keys), metrics) == (["question_0_0"], {})
    assert "validation is missing 1 rollouts: {'search_failed': 1}" in caplog.text

    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=3)
    assert sorted(batch.keys) == ["flat_0_0", "flat_1_0", "flat_2_0", "spread_0_0", "spread_1_0", "survivor_0_0"]
    assert metrics == {
        "rollout/generated_tokens/mean": pytest.approx(64 / 6),
        "rollout/retrieved_tokens/mean": pytest.approx(4 / 6),
        "rollout/generated_tokens/total": 64.0,
        "rollout/retrieved_tokens/total": 4.0,
        "health/retrieved_tokens/share": pytest.approx(4 / 68),
        "rollout/groups_without_spread/share": 0.5,
        "rollout/search_failed/total": 2.0,
        "rollout/search_failed/share": pytest.approx(2 / 9),
        "rollout/aborted/total": 1.0,
        "rollout/aborted/share": pytest.approx(1 / 9),
        "rollout/no_room/total": 0.0,
        "rollout/no_room/share": 0.0,
    }
    queue.kv_clear(keys=batch.keys, partition_id="train")

    # What was counted is forgotten.
    put_group(queue, "train", "next", [0.5])
    batch, metrics = buffer.sample(global_steps=2, partition_id="train", batch_size=1)
    assert metrics["rollout/search_failed/total"] == 0.0
    queue.kv_clear(keys=batch.keys, partition_id="train")


@MODES
@pytest.mark.parametrize("filtered", ["true", "false"], ids=["groups-filtered", "plain"])
@pytest.mark.parametrize("refilled", ["true", "false"], ids=["failed-refilled", "failed-kept"])
def test_buffer_is_set_up_as_verls_own(mode: str, filtered: str, refilled: str) -> None:
    from research_plugin.verl_ext.step_metrics import AsyncBuffer, SyncBuffer

    overrides = (
        f"algorithm.filter_groups.enable={filtered}",
        "algorithm.filter_groups.metric=f1",
        "algorithm.filter_groups.max_inflight_gen_batches=3",
        f"trainer.v1.sampler.sync_refill_failed_groups={refilled}",
        "trainer.v1.sampler.max_off_policy_threshold=5",
    )
    ours, stock = (
        build_buffer(mode, *overrides),
        build_buffer(mode, *overrides, "trainer.v1.sampler.custom_sampler.path=null"),
    )
    assert type(ours) is (SyncBuffer if mode == "sync" else AsyncBuffer)
    assert type(stock) is type(ours).__mro__[2]
    assert (ours.poll_interval, stock.poll_interval) == (0.05, 2.0)
    # These three are read only by the sync buffer, and only where groups are filtered or refilled.
    unread = {"train_batch_size", "gen_batch_size", "max_inflight_gen_batches"}
    if mode == "sync" and "true" in (filtered, refilled):
        unread = set() if filtered == "true" else {"max_inflight_gen_batches"}
    skipped = {"poll_interval", "sampler_kwargs", *unread}
    assert {k: v for k, v in vars(ours).items() if k not in skipped} == {
        k: v for k, v in vars(stock).items() if k not in skipped
    }


def test_aggregator_adds_up_totals_and_averages_the_rest() -> None:
    """separate_async samples several times a step (trainer/ppo/v1/utils.py, MetricsAggregator goes by names)."""
    from verl.trainer.ppo.v1.utils import MetricsAggregator

    from research_plugin.metrics import step_metrics

    aggregator = MetricsAggregator()
    for tokens in (4.0, 8.0):
        fields = {"generated_tokens": tokens, "retrieved_tokens": tokens}
        rollouts = [("a", reward, fields) for reward in (0.0, tokens - 4)]
        aggregator.add_step_metrics(step_metrics(rollouts, ["search_failed", "aborted", "no_room"]), sample_count=2)
    values = aggregator.get_aggregated_metrics()
    tokens_total = {f"rollout/{kind}_tokens/total": 24.0 for kind in ("generated", "retrieved")}
    halves = dict.fromkeys(("rollout/groups_without_spread/share", "health/retrieved_tokens/share"), 0.5)
    for name, value in values.items():
        expected = {"mean": 6.0, "total": 2.0, "share": 0.2}[name.rsplit("/")[-1]]
        assert value == pytest.approx({**tokens_total, **halves}.get(name, expected)), name
    assert len(values) == 12


TEXT = "Who <search> a </search>"
SEEN = " <result>\nb\n</result>"
END = " so c"


def put_rollout(tq: Any, tokenizer: Any, key: str, *, partition: str = "train", question: str = "Who?") -> None:
    """A rollout with one search as veRL's worker leaves it, and in training with its advantages."""
    import torch
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    ids = [tokenizer.encode(text, add_special_tokens=False) for text in (TEXT, SEEN, END)]
    mask = torch.tensor([int(i != 1) for i, part in enumerate(ids) for _ in part])
    session = int(key.rsplit("_", 2)[1])
    fields = {
        "prompts": torch.tensor(tokenizer.encode("Q: Who?", add_special_tokens=False)),
        "responses": torch.tensor([token for part in ids for token in part]),
        "response_mask": mask,
        "rollout_log_probs": mask * -0.123456,
        "rm_scores": torch.nn.functional.pad(torch.tensor([0.5]), (len(mask) - 1, 0)),
        "raw_prompt": [{"role": "user", "content": question}],
        "reward_model": {"style": "rule", "ground_truth": ["c", "C."]},
        "data_source": "tiny",
        "extra_info": {"id": "row-7", "index": 3},
        "extra_fields": {
            "segments": [[TEXT, True], [SEEN, False], [END, True]],
            "queries": ["a"],
            "documents": [[{"id": "d1", "contents": "b"}]],
            "stop_reason": "answered",
            "num_searches": 1.0,
            "global_steps": 1,
            "reward_extra_info": {"score": 0.5, "f1": 0.25, "format_ok": 1.0, "pred": "c", "reason": "close"},
        },
    }
    if partition == "train":
        fields["advantages"] = mask * (session - 0.5)
    tags = [{"status": "success", "global_steps": 1}]
    tq.kv_batch_put(keys=[key], fields=list_of_dict_to_tensordict([fields]), tags=tags, partition_id=partition)


def journal(tmp_path: Path, *overrides: str) -> Any:
    from transformers import AutoTokenizer

    from research_plugin.plugin import data_file
    from research_plugin.verl_ext.journal import Journal

    config = compose_config("+recipe=research_tiny", f"{CUSTOM}.search.url=http://10.0.0.1:1", *overrides)
    config.trainer.default_local_dir = str(tmp_path)
    return Journal(config, AutoTokenizer.from_pretrained(data_file("tiny/model")))


def batch_of(keys: list[str], partition: str = "train", padding: tuple[str, ...] = ()) -> Any:
    from transfer_queue import KVBatchMeta

    tags = [*({"status": "success"} for _ in keys), *({"is_padding": True} for _ in padding)]
    return KVBatchMeta(partition_id=partition, keys=[*keys, *padding], tags=tags)


def recorded(run_dir: Path) -> list[RolloutRecord]:
    return [record for _, record in RunRecords(run_dir).new()]


def test_a_steps_rollouts_are_recorded_with_whole_groups_as_they_were_trained_on(queue: Any, tmp_path: Path) -> None:
    book = journal(tmp_path, f"{CUSTOM}.records.groups_per_step=2")
    keys = [f"{group}_{session}_0" for session in (1, 0) for group in "abc"]
    for key in keys:
        put_rollout(queue, book.tokenizer, key)
    book.end_step(batch_of(keys, padding=("padded_0_0",)), {}, step=3)
    book.close()
    queue.kv_clear(keys=keys, partition_id="train")

    records = recorded(tmp_path)
    groups = [record.uid for record in records]
    assert len(records) == 4
    assert groups == sorted(groups)
    assert len(set(groups)) == 2
    assert [record.session for record in records] == [0, 1, 0, 1]
    first = records[0]
    assert first.tokens is not None
    assert first.tokens.log_probs is not None
    assert "".join(first.tokens.texts) == first.response == TEXT + SEEN + END
    observed = [text for text, own in zip(first.tokens.texts, first.tokens.mask, strict=True) if not own]
    assert "".join(observed) == SEEN
    assert set(zip(first.tokens.mask, first.tokens.log_probs, strict=True)) == {(1, -0.1235), (0, 0.0)}
    first.tokens = None
    assert first == RolloutRecord(
        question="Who?", golden_answers=["c", "C."], segments=[(TEXT, True), (SEEN, False), (END, True)],
        step=3, split="train", uid=first.uid, session=0, id="row-7", data_source="tiny", method="research",
        prompt=first.prompt, queries=["a"], documents=[[{"id": "d1", "contents": "b"}]],
        scores={"score": 0.5, "f1": 0.25, "format_ok": 1.0}, pred="c", reason="close", stop_reason="answered",
        metrics={"num_searches": 1.0}, advantage=-0.5,
    )  # fmt: skip
    assert first.prompt.replace(" ", "") == "Q:Who?"


def test_a_validation_records_the_same_questions_each_time_and_returns_its_metrics(queue: Any, tmp_path: Path) -> None:
    book = journal(tmp_path, f"{CUSTOM}.records.questions_per_validation=2", f"{CUSTOM}.records.tokens=false")
    for step, batches in ((0, ("pqrs",)), (10, ("tu", "vw"))):
        for groups in batches:
            keys = [f"{group}_0_0" for group in groups]
            for key in keys:
                question = {"t": "p", "u": "s", "v": "r", "w": "q"}.get(key[0], key[0])
                put_rollout(queue, book.tokenizer, key, partition="val", question=question)
            book.add_validation(batch_of(keys, "val"), ["search_failed"] if step == 0 else [])
            queue.kv_clear(keys=keys, partition_id="val")
        metrics = book.end_validation(step)
        assert metrics["val-aux/rollout/f1/mean"] == 0.25
        assert metrics["val-aux/rollout/num_searches/total"] == 4.0
        assert metrics["val-aux/rollout/search_failed/total"] == float(step == 0)
    assert book.end_validation(20)["val-aux/rollout/search_failed/total"] == 0.0
    book.close()
    records = recorded(tmp_path)
    assert [(record.step, record.split, record.tokens, record.advantage) for record in records] == [
        *[(0, "val", None, None)] * 2,
        *[(10, "val", None, None)] * 2,
    ]
    # By question, whatever the order: of one batch of four, and of the first of two batches.
    assert {record.question for record in records[:2]} == {record.question for record in records[2:]} == {"p", "s"}


def test_records_can_be_switched_off(queue: Any, tmp_path: Path) -> None:
    off = [f"{CUSTOM}.records.{name}=0" for name in ("groups_per_step", "questions_per_validation")]
    book = journal(tmp_path, *off)
    for partition in ("train", "val"):
        put_rollout(queue, book.tokenizer, "a_0_0", partition=partition)
    book.end_step(batch_of(["a_0_0"]), {}, step=1)
    book.add_validation(batch_of(["a_0_0"], "val"), [])
    assert book.end_validation(1)["val-aux/rollout/f1/mean"] == 0.25
    book.close()
    assert list(tmp_path.iterdir()) == []
    for partition in ("train", "val"):
        queue.kv_clear(keys=["a_0_0"], partition_id=partition)


def test_a_slow_or_full_disk_costs_records_not_steps(
    queue: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from research_plugin.verl_ext import journal as module

    book, go_on = journal(tmp_path), threading.Event()
    put_rollout(queue, book.tokenizer, "a_0_0")
    write = module.write_records

    def slow(path: Path, records: Any) -> None:
        assert go_on.wait(60)
        write(path, records)

    monkeypatch.setattr(module, "write_records", slow)
    for step in (1, 2, 3):
        book.end_step(batch_of(["a_0_0"]), {}, step=step)
    assert book.files_to_write == 2
    assert "step 3 are not recorded" in caplog.text
    go_on.set()
    for writing in book._writing:
        writing.result()

    def full(path: Path, records: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(module, "write_records", full)
    book.end_step(batch_of(["a_0_0"]), {}, step=4)
    book.close()
    assert "step 4 (train) are not recorded" in caplog.text
    assert [record.step for record in recorded(tmp_path)] == [1, 2]
    queue.kv_clear(keys=["a_0_0"], partition_id="train")


def test_a_collapsing_run_warns_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = journal(tmp_path)
    for step in range(1, 21):
        book.end_step(batch_of([]), {"health/repetition/share": 0.1 if step < 8 else 0.8}, step=step)
    book.close()
    assert capsys.readouterr().out.count("may be collapsing") == 1


@MODES
def test_verl_finds_the_trainer_by_the_name_that_the_preflight_writes(mode: str) -> None:
    import cloudpickle
    from verl.trainer.ppo.v1 import PPOTrainer, get_trainer_cls

    from research_plugin.verl_ext.preflight import _set_trainer

    config = compose_config("+recipe=research_7b", f"trainer.v1.trainer_mode={mode}")
    if mode == "separate_async":
        config.actor_rollout_ref.rollout.nnodes = 1
        config.actor_rollout_ref.rollout.checkpoint_engine.backend = "nccl"
        config.actor_rollout_ref.actor.ppo_mini_batch_size = 64
    _set_trainer(config)
    config = cloudpickle.loads(cloudpickle.dumps(config))  # to the process that trains
    stock = get_trainer_cls(mode)
    ours = get_trainer_cls(config.trainer.v1.trainer_mode)
    assert issubclass(ours, stock)
    assert ours is not stock
    trainer: PPOTrainer = ours(config)
    assert (config.trainer.v1.trainer_mode, trainer.trainer_mode) == (mode, mode)
    # A trainer of the user's own is left alone.
    config.trainer.v1.trainer_mode = "mine"
    _set_trainer(config)
    assert config.trainer.v1.trainer_mode == "mine"
