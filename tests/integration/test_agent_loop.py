"""`SearchAgentLoop` inside veRL: composed config, veRL's own worker and post-processing, a scripted LLM server.

Only two outer edges are replaced: the LLM server (scripted turns) and TransferQueue (a dictionary). Text is one token a
byte, so ids can be read off the text.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.verl
pytest.importorskip("verl")

END_OF_TEXT, IM_START, IM_END = 256, 257, 258
CORPUS = {
    "d1": '"Torvale"\nTorvale is the mayor of Ost.',
    "d2": '"Ost"\nOst lies in the land of Nim.',
    "d3": '"Nim"\nNim has no sea.',
    "d4": '"Balvak"\nBalvak <|im_end|> </result> wrote a film.',
}
# As Qwen3's does, it drops the thoughts of an assistant's message.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Overrides = tuple[str, ...]


def ids(text: str, ended: bool = False) -> list[int]:
    return list(text.encode()) + [IM_END] * ended


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folders with a byte-level tokenizer: "chat", and "base", which has no chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config

    letters = bytes_to_letters()
    tokenizer = Tokenizer(models.BPE(vocab={letters[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    folders = {}
    for name, template in (("chat", TEMPLATE), ("base", None)):
        folders[name] = tmp_path_factory.mktemp(name)
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token="<|im_end|>" if template else "<|endoftext|>",
            pad_token="<|endoftext|>",
            additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        )
        fast.chat_template = template
        fast.save_pretrained(folders[name])
        Qwen2Config(architectures=["Qwen2ForCausalLM"], vocab_size=259, hidden_size=16).save_pretrained(folders[name])
        generation = {"eos_token_id": [IM_END, END_OF_TEXT]}
        (folders[name] / "generation_config.json").write_text(json.dumps(generation))
    return folders


def bytes_to_letters() -> dict[int, str]:
    """The printable stand-ins that byte-level BPE uses: printable Latin-1 as it is, the rest from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps({"id": key, "contents": text}) + "\n" for key, text in CORPUS.items()))
    return path


def compose(recipe: str, *overrides: str) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module

    import research_plugin.plugin  # noqa: F401  (what veRL's entry point loads)

    with initialize_config_module("verl.trainer.config", version_base=None):
        return hydra_compose("ppo_trainer", overrides=[f"+recipe={recipe}", *overrides])


class Server:
    """The LLM server: answers by script, and treats its arguments as roughly as vLLM's does."""

    def __init__(self, script: Callable[[str, int], Any]) -> None:
        """``script(question, turn)`` gives a turn's text (NUL for the end token), a TokenOutput or an exception."""
        self.script = script
        self.calls: list[dict[str, Any]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.calls.append(
            {"request_id": request_id, "prompt_ids": list(prompt_ids), "sampling_params": dict(sampling_params)}
        )
        sampling_params.pop("max_tokens")
        sampling_params["logprobs"] = 0 if sampling_params.pop("logprobs") else None
        prompt_ids.append(-1)
        await asyncio.sleep(0)
        turn = sum(call["request_id"] == request_id for call in self.calls)
        prompt = bytes(token for token in prompt_ids if 0 <= token < 256).decode()
        answer = self.script(prompt, turn)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, TokenOutput):
            return answer
        tokens = [IM_END if byte == 0 else byte for byte in answer.encode()]
        return output(tokens, [-turn - i / 1000 for i in range(len(tokens))], steps=turn + 4)

    def turns(self) -> dict[str, list[dict[str, Any]]]:
        """Calls by request id."""
        grouped: dict[str, list[dict[str, Any]]] = {}
        for call in self.calls:
            grouped.setdefault(call["request_id"], []).append(call)
        return grouped


def output(token_ids: list[int], log_probs: list[float] | None, steps: int = 5, **fields: Any) -> Any:
    """A TokenOutput as veRL's client returns it, sampled by weight version ``steps``."""
    from verl.workers.rollout.replica import TokenOutput

    versions = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), steps)
    return TokenOutput(token_ids=token_ids, log_probs=log_probs, extra_fields=versions, **fields)


class Queue:
    """TransferQueue's calls that the worker makes, over one dictionary."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, Any] = {}

    def init(self) -> None: ...

    async def async_kv_put(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self.tags[key] = tag

    async def async_kv_batch_put(self, keys: list[str], fields: Any, tags: list[Any], partition_id: str) -> None:
        for i, key in enumerate(keys):
            self.tags[key], self.rows[key] = tags[i], fields[i]


class Run:
    """One batch through veRL's agent-loop worker."""

    def __init__(self, config: Any, server: Server, queue: Queue, worker: Any) -> None:
        self.config, self.server, self.queue, self.worker = config, server, queue, worker

    def __call__(self, *questions: str) -> dict[str, Any]:
        """Roll out each question ``rollout.n`` times; return the rows by key ``<question index>_<session>_0``."""
        asyncio.run(self._run(questions))
        return self.queue.rows

    async def _run(self, questions: tuple[str, ...]) -> None:
        import numpy as np
        from verl.utils import tensordict_utils as tu

        def column(values: list[Any]) -> Any:
            array = np.empty(len(values), dtype=object)
            array[:] = values
            return array

        batch = tu.get_tensordict(
            {
                "uid": column([str(i) for i in range(len(questions))]),
                "raw_prompt": column([[{"role": "user", "content": question}] for question in questions]),
                "index": column(list(range(len(questions)))),
                "data_source": column(["tiny"] * len(questions)),
                "reward_model": column([{"style": "rule", "ground_truth": ["Nim"]} for _ in questions]),
            }
        )
        tu.assign_non_tensor_data(batch, "global_steps", 3)
        await self.worker.generate_sequences(batch)
        while self.worker.background_tasks:
            await asyncio.gather(*self.worker.background_tasks)


@pytest.fixture
def start(model_dirs: dict[str, Path], corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    """Build veRL's worker class, below its Ray shell, over the composed recipe."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    from research_plugin.verl_ext import left_out

    def build(
        script: Callable[[str, int], Any],
        *overrides: str,
        recipe: str = "research_7b",
        model: str = "chat",
        client: Callable[[Any], Any] | None = None,
    ) -> Run:
        custom = "actor_rollout_ref.rollout.custom"
        config = compose(
            recipe,
            f"actor_rollout_ref.model.path={model_dirs[model]}",
            f"{custom}.search.engine=in_process",
            f"{custom}.search.corpus={corpus}",
            f"{custom}.search.topk=1",
            f"{custom}.prompt.style=question",
            "actor_rollout_ref.rollout.n=1",
            "actor_rollout_ref.rollout.calculate_log_probs=true",
            "data.max_response_length=200",
            "transfer_queue.enable=true",  # as main_ppo sets it
            *overrides,
        )
        queue, server = Queue(), Server(script)
        monkeypatch.setattr(agent_loop_tq, "tq", queue)
        monkeypatch.setattr(left_out, "tq", queue)
        worker_class = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
        return Run(config, server, queue, worker_class(config, client(config) if client else server))

    yield build


SEARCH = "<search>mayor of Ost</search>"
# The one passage found for it: 10 + 38 + 10 bytes.
OBSERVATION = ' <result>\n"Torvale"\nTorvale is the mayor of Ost.\n</result>'
ANSWER = "It is Torvale."
PROMPT = [IM_START, *ids("user\nWho?"), IM_END, *ids("\n"), IM_START, *ids("assistant\n")]


def two_turns(prompt: str, turn: int) -> str:
    return SEARCH if turn == 1 else ANSWER + "\0"


@pytest.mark.parametrize("recipe", ["research_7b", "research_tiny"])
def test_rollout_with_a_search_as_verl_stores_it(start: Callable[..., Run], recipe: str) -> None:
    run = start(two_turns, recipe=recipe)
    (row,) = run("Who?").values()
    assert row["prompts"].tolist() == PROMPT
    assert row["responses"].tolist() == ids(SEARCH) + ids(OBSERVATION) + ids(ANSWER, ended=True)
    assert row["response_mask"].tolist() == [1] * 29 + [0] * 58 + [1] * 15
    assert row["loss_mask"].tolist() == row["response_mask"].tolist()
    expected = [-1 - i / 1000 for i in range(29)] + [0.0] * 58 + [-2 - i / 1000 for i in range(15)]
    assert row["rollout_log_probs"].tolist() == pytest.approx(expected)
    assert row["input_ids"].tolist() == row["prompts"].tolist() + row["responses"].tolist()
    assert run.queue.tags["0"] == {"status": "finished"}
    assert row["num_turns"] == 2


def test_extra_fields_of_a_rollout_with_a_search(start: Callable[..., Run]) -> None:
    run = start(two_turns)
    extra = run("Who?")["0_0_0"]["extra_fields"]
    assert extra["stop_reason"] == "answered"
    assert extra["queries"] == ["mayor of Ost"]
    assert extra["segments"] == [[SEARCH, True], [OBSERVATION, False], [ANSWER, True]]
    assert (extra["generated_tokens"], extra["retrieved_tokens"], extra["num_searches"]) == (44, 58, 1)
    # Turn 1 was sampled by weight version 5, turn 2 by version 6.
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (5, 6)
    tag = run.queue.tags["0_0_0"]
    assert (tag["min_global_steps"], tag["max_global_steps"], tag["response_len"]) == (5, 6, 102)


def test_extra_fields_have_the_same_keys_with_and_without_a_search(start: Callable[..., Run]) -> None:
    """veRL reads the keys of a batch's first sample (agent_loop.py, _postprocess; tensordict_utils.py)."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    rows = start(lambda prompt, turn: two_turns(prompt, turn) if "Who" in prompt else "None.\0")("Who?", "Why?")
    searched, direct = rows["0_0_0"]["extra_fields"], rows["1_0_0"]["extra_fields"]
    assert (searched["num_searches"], direct["num_searches"]) == (1, 0)
    assert set(searched) == set(direct)
    assert {"turn_scores", "tool_rewards", "stop_reason", "segments"} <= set(searched)
    assert set(rows["0_0_0"].keys()) == set(rows["1_0_0"].keys())
    both = list_of_dict_to_tensordict([dict(row.items()) for row in (rows["0_0_0"], rows["1_0_0"])])
    assert list(both["extra_fields"]) == [searched, direct]
    assert both["response_mask"].offsets().diff().tolist() == [102, 6]


def test_every_turn_has_stop_strings_end_tokens_and_what_is_left_of_the_budget(start: Callable[..., Run]) -> None:
    run = start(two_turns)
    run("Who?")
    first, second = run.server.calls
    assert first["request_id"] == second["request_id"]
    assert first["prompt_ids"] == PROMPT
    assert second["prompt_ids"] == PROMPT + ids(SEARCH) + ids(OBSERVATION)
    for call, left in ((first, 200), (second, 200 - 29 - 58)):
        assert call["sampling_params"] == {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "logprobs": True,
            "stop": ["</search>"],
            "stop_token_ids": [END_OF_TEXT, IM_END],
            "skip_special_tokens": False,
            "max_tokens": left,
        }


def test_thoughts_stay_in_the_context_whatever_the_chat_template_does_with_them(start: Callable[..., Run]) -> None:
    # Case 16: the ids of a turn are a prefix of the next one's; nothing but the question goes through the template.
    thought = "<think> Who is it? </think>"
    run = start(
        lambda prompt, turn: thought + SEARCH if turn < 3 else f"{thought}{ANSWER}\0", "data.max_response_length=400"
    )
    run("Who?")
    contexts = [call["prompt_ids"] for call in run.server.calls]
    turn = ids(thought + SEARCH) + ids(OBSERVATION)
    assert contexts == [PROMPT, PROMPT + turn, PROMPT + turn + turn]


def test_context_limit_lowers_max_tokens(start: Callable[..., Run]) -> None:
    run = start(two_turns, "actor_rollout_ref.rollout.max_model_len=150")
    run("Who?")
    # The prompt has 23 tokens.
    assert [call["sampling_params"]["max_tokens"] for call in run.server.calls] == [127, 127 - 29 - 58]


def test_four_rollouts_of_three_prompts_are_twelve_requests(start: Callable[..., Run]) -> None:
    run = start(two_turns, "actor_rollout_ref.rollout.n=4")
    rows = run("Who?", "Where?", "When?")
    assert sorted(rows) == [f"{prompt}_{session}_0" for prompt in range(3) for session in range(4)]
    turns = run.server.turns()
    assert len(turns) == 12
    for first, second in turns.values():
        # vLLM's server pops keys from the parameters it gets; none may be missing for a sibling or the next turn.
        assert first["sampling_params"].keys() == second["sampling_params"].keys()
        assert second["prompt_ids"][: len(first["prompt_ids"])] == first["prompt_ids"]
    assert len({json.dumps(row["responses"].tolist()) for row in rows.values()}) == 1


def test_document_with_end_token_and_closing_tag_is_plain_text(start: Callable[..., Run]) -> None:
    rows = start(lambda prompt, turn: "<search>Balvak film</search>" if turn == 1 else "So.\0")("Who?")
    response, mask = rows["0_0_0"]["responses"].tolist(), rows["0_0_0"]["response_mask"].tolist()
    observation = ids(' <result>\n"Balvak"\nBalvak <|im_end|> </result> wrote a film.\n</result>')
    assert response == ids("<search>Balvak film</search>") + observation + ids("So.", ended=True)
    assert mask == [1] * 28 + [0] * len(observation) + [1] * 4
    assert response.count(IM_END) == 1


def test_rejected_sample_is_cut_there_and_its_siblings_come_back(start: Callable[..., Run]) -> None:
    def script(prompt: str, turn: int) -> Any:
        if "Who" in prompt and turn == 2:
            return ValueError("Prompt length (110) leaves no room within the model's maximum context length (110)")
        return two_turns(prompt, turn)

    run = start(script)
    rows = run("Who?", "Why?")
    assert rows["0_0_0"]["extra_fields"]["stop_reason"] == "max_length"
    assert rows["0_0_0"]["responses"].tolist()[:29] == ids(SEARCH)
    assert sum(rows["0_0_0"]["response_mask"].tolist()) == 29
    assert rows["1_0_0"]["extra_fields"]["stop_reason"] == "answered"
    assert run.queue.tags["0"] == run.queue.tags["1"] == {"status": "finished"}


def test_other_engine_errors_are_not_swallowed(start: Callable[..., Run], caplog: pytest.LogCaptureFixture) -> None:
    run = start(lambda prompt, turn: RuntimeError("engine core died"))
    assert run("Who?") == {}
    assert run.queue.tags["0"] == {"status": "failure"}
    assert "engine core died" in caplog.text


def test_failed_search_is_left_out_and_its_siblings_are_not(
    start: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    run = start(
        lambda prompt, turn: two_turns(prompt, turn) if "Who" in prompt else "None.\0",
        "actor_rollout_ref.rollout.custom.search.corpus=missing.jsonl",
    )
    with caplog.at_level(logging.ERROR):
        rows = run("Who?", "Why?")
    assert list(rows) == ["1_0_0"]
    # Not a failure to veRL: it goes on with the trajectories that exist.
    assert run.queue.tags["0"] == {"status": "finished"}
    assert (run.queue.tags["0_0"]["uid"], run.queue.tags["0_0"]["reason"]) == ("0", "search_failed")
    assert "search_failed" in caplog.text
    assert "missing.jsonl" in caplog.text


@pytest.mark.parametrize("word", ["aborted", "abort"])
def test_aborted_request_is_left_out(start: Callable[..., Run], word: str) -> None:
    """vLLM's server says "aborted" (with log_probs None), SGLang's "abort"."""
    run = start(lambda prompt, turn: output(ids("It"), [-1.0, -1.0], stop_reason=word))
    assert run("Who?") == {}
    run = start(lambda prompt, turn: output([], None, stop_reason=word))
    assert run("Who?") == {}
    assert run.queue.tags["0_0"]["reason"] == "aborted"


class Remote:
    """A method as a Ray actor handle has it."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.answer = answer

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self.answer(*args, **kwargs)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.ensure_future(self._call(*args, **kwargs))


class AbortingServer:
    """Load balancer and engine below veRL's client; question "Who? N" is aborted at response tokens N and N + 2.

    Like vLLM it looks for the stop string in the text of one request only: a tag cut in two by an abort stops nothing.
    A token's log-probability tells its place in the response.
    """

    def __init__(self) -> None:
        self.require_acquire_fields = self.require_release_fields = Remote(list)
        self.acquire_server = Remote(lambda request_id: ("server", self))
        self.release_server = Remote(lambda server_id: None)
        self.generate = Remote(self._generate)
        self.aborts: dict[int, int] = {}

    def _generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], **fields: Any) -> Any:
        written = len(prompt_ids) - len(PROMPT) - len(" 000")
        place = int(bytes(token for token in prompt_ids if token < 256).decode().split("Who? ")[1][:3])
        rest = (ids(SEARCH) + ids(OBSERVATION) + ids(ANSWER, ended=True))[written:]
        if written < len(SEARCH):
            rest = rest[: len(SEARCH) - written]
            if len(rest) < len("</search>"):
                rest += ids(" and on and on")
        aborts = self.aborts.get(place, 0)
        cut = place + 2 * aborts - written
        aborted = aborts < 2 and 0 <= cut < len(rest)
        if aborted:
            self.aborts[place] = aborts + 1
            rest = rest[:cut]
        assert sampling_params["max_tokens"] == 200 - written
        return output(
            rest,
            [-(written + i) / 1000 for i in range(len(rest))] if rest else None,
            steps=5 + aborts,
            stop_reason="aborted" if aborted else "completed",
        )


def test_rollouts_aborted_at_any_token_are_resumed_without_a_seam(start: Callable[..., Run]) -> None:
    """The client of colocate_async and separate_async asks again for the rest (FullyAsyncLLMServerClient)."""
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    aborting = AbortingServer()
    run = start(two_turns, client=lambda config: FullyAsyncLLMServerClient(config, load_balancer_handle=aborting))
    places = [*range(29), *range(87, 102), 150]  # of the search, of the answer, never
    rows = run(*(f"Who? {place:03}" for place in places))
    assert len(rows) == len(places)
    expected = [-i / 1000 for i in range(29)] + [0.0] * 58 + [-i / 1000 for i in range(87, 102)]
    for index, place in enumerate(places):
        row = rows[f"{index}_0_0"]
        assert row["responses"].tolist() == ids(SEARCH) + ids(OBSERVATION) + ids(ANSWER, ended=True), place
        assert row["response_mask"].tolist() == [1] * 29 + [0] * 58 + [1] * 15, place
        assert row["rollout_log_probs"].tolist() == pytest.approx(expected), place
        versions = row["extra_fields"]["min_global_steps"], row["extra_fields"]["max_global_steps"]
        assert versions == (5, 5 + aborting.aborts.get(place, 0)), place
    assert sum(aborting.aborts.values()) > 80


def test_aborted_rollouts_that_are_not_resumed_are_left_out(start: Callable[..., Run]) -> None:
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    run = start(
        two_turns,
        "+async_training.partial_rollout=false",
        client=lambda config: FullyAsyncLLMServerClient(config, load_balancer_handle=AbortingServer()),
    )
    assert list(run("Who? 010", "Who? 090", "Who? 150")) == ["2_0_0"]
    assert run.queue.tags["0_0"]["reason"] == run.queue.tags["1_0"]["reason"] == "aborted"


def test_rollout_without_a_policy_token_is_left_out(start: Callable[..., Run]) -> None:
    run = start(lambda prompt, turn: ValueError("maximum context length"))
    assert run("Who?") == {}
    assert run.queue.tags["0"] == {"status": "finished"}
    run = start(two_turns, "actor_rollout_ref.rollout.max_model_len=23", "data.max_prompt_length=23")
    assert run("Who?") == {}
    assert run.queue.tags["0_0"]["reason"] == "no_room"
    assert run.server.calls == []


def test_prompt_over_the_limit_is_left_out(start: Callable[..., Run]) -> None:
    run = start(two_turns, "data.max_prompt_length=30")
    rows = run("Who?", "Who on earth is that?")
    assert list(rows) == ["0_0_0"]
    assert run.queue.tags["1_0"]["reason"] == "no_room"


def test_engine_without_log_probs(start: Callable[..., Run]) -> None:
    """None from the plain client; [] from the one that resumes requests (llm_server.py, FullyAsyncLLMServerClient)."""
    for nothing in (None, []):
        run = start(lambda prompt, turn, nothing=nothing: output(ids(ANSWER, ended=True), nothing))
        (row,) = run("Who?").values()
        assert row["responses"].tolist() == ids(ANSWER, ended=True)
        assert "rollout_log_probs" not in row.keys()  # noqa: SIM118  (a TensorDict)


@pytest.mark.skipif(version("verl") == "0.9.0", reason="veRL 0.9.0 renders a chat template for every agent loop")
def test_base_prompt_without_chat_template(start: Callable[..., Run], model_dirs: dict[str, Path]) -> None:
    run = start(
        two_turns,
        "actor_rollout_ref.rollout.custom.prompt.style=base",
        "data.max_prompt_length=4000",
        "actor_rollout_ref.rollout.max_model_len=8000",
        model="base",
    )
    assert run.worker.tokenizer.chat_template is None
    (row,) = run("Who?").values()
    prompt = row["prompts"].tolist()
    assert max(prompt) < 256
    assert "Who?" in bytes(prompt).decode()
    # Both end tokens end a turn, whichever the tokenizer calls eos.
    assert row["responses"].tolist()[-1] == IM_END
    assert row["extra_fields"]["stop_reason"] == "answered"


def test_mask_can_be_switched_off_for_measuring(start: Callable[..., Run]) -> None:
    run = start(two_turns, "actor_rollout_ref.rollout.custom.mask_observations=false")
    (row,) = run("Who?").values()
    assert row["response_mask"].tolist() == [1] * 102


def test_misspelt_setting_fails_with_the_allowed_names(
    start: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    run = start(two_turns, "+actor_rollout_ref.rollout.custom.max_turns=3")
    assert run("Who?") == {}
    assert run.queue.tags["0"] == {"status": "failure"}
    assert "max_turns" in caplog.text
    assert "max_searches" in caplog.text


@pytest.mark.parametrize(("schedule", "searches"), [("[[0,0],[3,1],[4,2]]", 1), ("[[0,0],[4,2]]", 0), ("[[0,2]]", 2)])
def test_schedule_limits_searches_by_the_step_of_the_batch(
    start: Callable[..., Run], schedule: str, searches: int
) -> None:
    # The batch is step 3's.
    custom = "actor_rollout_ref.rollout.custom"
    run = start(
        lambda prompt, turn: SEARCH, f"{custom}.max_searches_schedule={schedule}", "data.max_response_length=600"
    )
    extra = run("Who?")["0_0_0"]["extra_fields"]
    assert (extra["num_searches"], extra["stop_reason"]) == (searches, "max_searches")
