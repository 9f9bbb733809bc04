"""The tiny tokenizer, the build command and the files that ship."""

from __future__ import annotations

import hashlib
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from research_plugin.data.tiny_files import TinyFiles, tiny_dir
from research_plugin.data.tiny_words import NAME_HEADS, NAME_TAILS
from research_plugin.data.tiny_world import HELD_OUT, TRAIN, Question, make_world
from research_plugin.data.tiny_world import sample_questions as sample
from research_plugin.errors import DataError

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytest.importorskip("bm25s")

TAGS = ["<think>", "</think>", "<search>", "</search>", "<result>", "</result>", "<answer>", "</answer>"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shipped() -> TinyFiles:
    return TinyFiles(tiny_dir())


@pytest.fixture(scope="module")
def tokenizer(shipped: TinyFiles) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(shipped.model)


def test_tokenizer_tags_are_single_and_not_special(tokenizer) -> None:
    for tag in TAGS:
        assert len(tokenizer.encode(tag, add_special_tokens=False)) == 1
        assert tag not in tokenizer.all_special_tokens
    assert tokenizer.decode(tokenizer.encode("".join(TAGS)), skip_special_tokens=True) == "".join(TAGS)


def test_tokenizer_special_tokens(tokenizer) -> None:
    assert sorted(tokenizer.all_special_tokens) == ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == ("<|im_end|>", "<|endoftext|>", None)
    assert len(tokenizer) == 1536
    assert tokenizer.encode("a") == tokenizer.encode("a", add_special_tokens=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  two spaces\t\ttabs \n\n\n newlines \r\n end  ",
        " <result>\nThe film Balvak.\n\nThe book Belven.\n</result> <think> x </think>",
        r" \[ \boxed{ Borvik } \] $x_1$ naïve — 漢字 🙂",
        "<search></search> <search>  </search>\n<|im_end|>",
    ],
    ids=["empty", "white space", "observation", "latex and unicode", "tags"],
)
def test_tokenizer_round_trip(tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_tokenizer_every_possible_name_is_its_two_halves(tokenizer) -> None:
    for head in NAME_HEADS:
        for tail in NAME_TAILS:
            ids = tokenizer.encode(f" {head}{tail}", add_special_tokens=False)
            assert [tokenizer.decode([i]) for i in ids] == [f" {head}", tail]


def test_tokenizer_document_with_end_marker_can_be_plain_text(tokenizer) -> None:
    page = "a page with <|im_end|> inside"
    assert tokenizer.eos_token_id in tokenizer.encode(page, add_special_tokens=False)
    plain = tokenizer.encode(page, add_special_tokens=False, split_special_tokens=True)
    assert tokenizer.eos_token_id not in plain
    assert tokenizer.decode(plain) == page


def test_tokenizer_split_special_tokens_leaves_tags_whole(tokenizer) -> None:
    """Tags are no special tokens: a document that holds one needs care beyond this switch."""
    close = tokenizer.convert_tokens_to_ids("</result>")
    assert close in tokenizer.encode("x </result> y", add_special_tokens=False, split_special_tokens=True)


def test_tokenizer_chat_template_exact_text(tokenizer) -> None:
    user = {"role": "user", "content": "Q?"}
    render = tokenizer.apply_chat_template
    assert render([user], add_generation_prompt=True, tokenize=False) == (
        "<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render([{"role": "system", "content": "S"}, user], tokenize=False) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ?<|im_end|>\n"
    )


def _questions(split: str, per_hops: dict[int, int]) -> list[Question]:
    return sample(make_world(0), split, per_hops)


def test_prompts_and_oracle_responses_fit_the_recipe(tokenizer) -> None:
    import random

    from research_plugin.data.tiny_model import prompt_ids, trace_ids
    from research_plugin.data.tiny_traces import NO_FAULTS, bm25_search, write_trace

    search = bm25_search(make_world(0).corpus)
    for question in _questions(HELD_OUT, {2: 300, 3: 500}):
        prompt = prompt_ids(tokenizer, question.text)
        segments = write_trace(question, search, random.Random(0), NO_FAULTS, ["x"])
        ids, labels = trace_ids(tokenizer, question.text, segments)
        assert len(prompt) <= 64
        assert len(ids) == len(labels)
        assert len(ids) - len(prompt) <= 384


def test_trace_ids_learn_what_the_policy_wrote_and_nothing_else(tokenizer) -> None:
    from research_plugin.data.tiny_model import trace_ids
    from research_plugin.protocol import Segment

    segments = [
        Segment("<think> I need the star of Balvak. </think> <search> star of Balvak </search>", True),
        Segment(" <result>\nThe film.\n</result>", False),
        Segment(r" <answer> \boxed{ Belven } </answer><|im_end|>", True),
    ]
    ids, labels = trace_ids(tokenizer, "Q?", segments)
    learnt = [i for i in labels if i != -100]
    assert tokenizer.decode(ids) == (
        "<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\n" + "".join(s.text for s in segments)
    )
    assert tokenizer.decode(learnt) == segments[0].text + segments[2].text
    assert all(label in (-100, i) for i, label in zip(ids, labels, strict=True))


def test_shipped_model_loads_with_the_expected_shapes(shipped: TinyFiles, tokenizer) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(shipped.model)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.num_parameters() == 640_640
    assert model.dtype == torch.float32
    config = model.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (128, 3, 4)
    assert (config.num_key_value_heads, config.intermediate_size, config.vocab_size) == (2, 256, 1536)
    assert config.tie_word_embeddings
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    assert model.generation_config.eos_token_id == ends
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 1536)


def test_shipped_files_are_small_and_complete(shipped: TinyFiles) -> None:
    files = [path for path in shipped.root.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    assert shipped.missing() == []


def test_shipped_corpus_and_rows_are_those_of_seed_zero(shipped: TinyFiles, tmp_path: Path) -> None:
    from research_plugin.data.build_tiny import write_questions_and_corpus

    parquet = pytest.importorskip("pyarrow.parquet")
    fresh = TinyFiles(tmp_path)
    write_questions_and_corpus(make_world(0), fresh)
    assert fresh.corpus.read_bytes() == shipped.corpus.read_bytes()
    for name in ("train", "val"):
        rows = parquet.read_table(getattr(shipped, name)).to_pylist()
        assert rows == parquet.read_table(getattr(fresh, name)).to_pylist()
        assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))
        assert {row["extra_info"]["split"] for row in rows} == {TRAIN if name == "train" else HELD_OUT}
        assert all(row["prompt"] == [{"role": "user", "content": row["extra_info"]["question"]}] for row in rows)
    assert len(parquet.read_table(shipped.val)) == 128


def test_shipped_tokenizer_is_what_the_builder_makes(tokenizer) -> None:
    from research_plugin.data.tiny_tokenizer import build_tokenizer

    fresh = build_tokenizer()
    assert fresh.get_vocab() == tokenizer.get_vocab()
    text = "<think> Why does Balvak, born in 1999, ask? </think>\n\n x"
    assert fresh.encode(text) == tokenizer.encode(text)
    assert fresh.decode(fresh.encode(text + "<|im_end|>"), skip_special_tokens=True) == text


def test_shipped_model_has_the_promised_headroom(shipped: TinyFiles) -> None:
    """Weak enough that learning shows, strong enough that it starts: facts that recipes and docs rely on."""
    scores = json.loads((shipped.root / "build.json").read_text())["held_out_greedy"]
    assert 0.2 <= scores["reward"] <= 0.33
    assert scores["em"] > 0.08
    assert scores["format_ok"] > 0.9
    assert 1.2 <= scores["num_searches"] <= 1.7


def test_shipped_model_scores_what_its_record_says(shipped: TinyFiles, tokenizer) -> None:
    from research_plugin.data.build_tiny import validation_questions
    from research_plugin.data.tiny_eval import evaluate
    from research_plugin.data.tiny_traces import bm25_search

    model = transformers.AutoModelForCausalLM.from_pretrained(shipped.model)
    world, done = make_world(0), []
    questions, search = validation_questions(world), bm25_search(world.corpus)
    scores = evaluate(model, tokenizer, questions, search, on_done=done.append)
    recorded = json.loads((shipped.root / "build.json").read_text())["held_out_greedy"]
    assert sum(done) == 128
    assert scores.reward == pytest.approx(recorded["reward"], abs=0.03)
    assert scores.num_searches == pytest.approx(recorded["num_searches"], abs=0.05)
    assert scores.response_length == pytest.approx(recorded["response_length"], rel=0.05)
    short = evaluate(model, tokenizer, questions[:4], search, response_length=30)
    assert short.response_length <= 30
    assert short.format_ok == 0.0


def test_tiny_dir_missing_files_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("research_plugin.data.tiny_files.__file__", str(tmp_path / "tiny_files.py"))
    with pytest.raises(DataError, match=r"corpus\.jsonl.*build_tiny"):
        tiny_dir()


def _command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "research_plugin.data.build_tiny", "--out", str(out), "--skip-eval", *options]


def _weights(out: Path) -> str:
    return hashlib.sha256((TinyFiles(out).model / "model.safetensors").read_bytes()).hexdigest()


def _run(out: Path, *options: str) -> None:
    done = subprocess.run(_command(out, *options), cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "warm start: 100%" in done.stderr


def test_build_interrupted_goes_on_and_ends_in_the_same_weights(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    _run(whole, "--steps", "30")
    assert TinyFiles(whole).missing() == []
    assert not (whole / "warm_start.ckpt").exists()

    process = subprocess.Popen(_command(cut, "--steps", "30"), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 150
    while not (cut / "warm_start.ckpt").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "goes on from" in errors
    assert not (TinyFiles(cut).model / "model.safetensors").exists()

    _run(cut, "--steps", "30")
    assert _weights(cut) == _weights(whole)


def test_build_refuses_zero_steps(tmp_path: Path) -> None:
    done = subprocess.run(_command(tmp_path, "--steps", "0"), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "give 1 or more" in done.stderr


def test_train_checkpoint_of_other_settings_is_not_used(tmp_path: Path) -> None:
    from research_plugin.data.tiny_model import TraceBatches, WarmStart, build_model, train
    from research_plugin.data.tiny_tokenizer import build_tokenizer

    tokenizer, world, seen = build_tokenizer(), make_world(0), []
    for settings in (WarmStart(steps=2, batch_size=2), WarmStart(steps=1, batch_size=2, seed=5)):
        batches = TraceBatches(world, tokenizer, settings)
        model = build_model(tokenizer, settings.seed)
        train(model, batches, settings, tmp_path / "c.ckpt", lambda done, loss: seen.append((done, math.isnan(loss))))
    assert seen == [(1, False), (2, False), (1, False)]


def test_muon_update_has_singular_values_near_one() -> None:
    from research_plugin.data.tiny_muon import orthogonal

    torch.manual_seed(0)
    for shape in ((2, 8, 8), (2, 16, 8), (2, 8, 16)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert values.min() > 0.3
        assert values.max() < 1.3
