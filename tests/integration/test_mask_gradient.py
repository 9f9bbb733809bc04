"""The mask on veRL's own loss: nothing under a retrieved token reaches a gradient, all under a policy token does.

The rollouts come from `run_search_loop`; the loss is veRL's `ppo_loss` with policy, KL and entropy terms all on, fed as
veRL's FSDP engine feeds it (jagged tensors, log-prob of token t+1 at position t).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = pytest.mark.verl
pytest.importorskip("verl")

from research_plugin.document import Document  # noqa: E402
from research_plugin.protocol import RESEARCH  # noqa: E402
from research_plugin.rollout import Rollout  # noqa: E402
from research_plugin.search_loop import Generation, Limits, run_search_loop  # noqa: E402

# The complete list of verl 0.9.1 (workers/config/actor.py, ActorConfig.__post_init__).
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
# All policy losses that verl 0.9.1 registers (trainer/ppo/core_algos.py).
LOSSES = (
    "vanilla",
    "dppo_tv",
    "dppo_kl",
    "gspo",
    "sapo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "dro",
    "cispo",
    "bypass_mode",
)
FIELDS = ("advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights")
END = 256
VOCABULARY = 257

SEARCHES = {"who": "Torvale lives in Ost.", "where": "Ost lies in Nim."}
SCRIPTS = (
    ["<search>who</search>", "It is Torvale.\x00"],
    ["No search.\x00"],
    ["<search>who</search>", "<search>where</search>", "Nim.\x00"],
    ["<search>where</search>", "never ends " * 20],
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Bytes:
    """One token a byte; NUL in a script stands for the end token."""

    end_ids = frozenset({END})
    longest_token = 1

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token != END).decode()


def roll_out(turns: Sequence[str]) -> Rollout:
    """Run one scripted rollout; each turn's tokens are the bytes of its text."""
    script = iter(turns)

    async def generate(context: list[int], max_tokens: int) -> Generation:
        ids = [END if byte == 0 else byte for byte in next(script).encode()]
        return Generation(ids, [-0.5] * len(ids))

    async def search(query: str) -> list[Document]:
        return [Document("d", SEARCHES[query])]

    episode = asyncio.run(
        run_search_loop(
            list(b"Q?"),
            generate=generate,
            search=search,
            codec=Bytes(),
            dialect=RESEARCH,
            limits=Limits(response_length=130),
        )
    )
    return episode.rollout


def model() -> Any:
    """A two-layer Qwen2 with random weights, in double precision."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
        )
    ).double()


@dataclass
class Case:
    """Rollouts with the per-token values that enter the loss, each a list of tensors of response length."""

    prompts: list[list[int]]
    responses: list[list[int]]
    masks: list[list[int]]
    values: dict[str, list[Any]]

    def where(self, wrote: int) -> list[tuple[int, int]]:
        """(row, position) of the tokens with that mask value."""
        return [(r, t) for r, mask in enumerate(self.masks) for t, bit in enumerate(mask) if bit == wrote]


def make_case(policy: Any, scripts: Sequence[Sequence[str]] = SCRIPTS) -> Case:
    import torch

    rollouts = [roll_out(turns) for turns in scripts]
    case = Case(
        [rollout.prompt_ids for rollout in rollouts],
        [rollout.response_ids for rollout in rollouts],
        [rollout.response_mask for rollout in rollouts],
        {},
    )
    noise = torch.Generator().manual_seed(1)

    def near(values: list[Any], scale: float) -> list[Any]:
        return [v + scale * torch.randn(v.shape, generator=noise, dtype=torch.double) for v in values]

    with torch.no_grad():
        log_probs = [
            forward(policy, p, r)[0][len(p) - 1 : -1] for p, r in zip(case.prompts, case.responses, strict=True)
        ]
    case.values = {
        "old_log_probs": near(log_probs, 0.02),  # inside the clip range, so that every token has a gradient
        "ref_log_prob": near(log_probs, 0.2),
        "advantages": near([torch.full_like(v, a) for v, a in zip(log_probs, (1.0, -1.0) * 2, strict=False)], 0.1),
        "rollout_is_weights": near([torch.ones_like(v) for v in log_probs], 0.1),
    }
    return case


def forward(policy: Any, prompt: list[int], response: list[int]) -> tuple[Any, Any]:
    """Log-prob of the next token and entropy at every position, as verl's FSDP engine returns them."""
    import torch

    ids = torch.tensor(prompt + response)
    distribution = policy(ids.unsqueeze(0)).logits[0].log_softmax(-1)
    log_prob = distribution.gather(1, ids.roll(-1).unsqueeze(1)).squeeze(1)
    return log_prob, -(distribution.exp() * distribution).sum(-1)


def loss_and_gradients(
    policy: Any, case: Case, mode: str, *, tamper: Any = None, loss_mode: str = "vanilla", batch_num_tokens: int = -1
) -> tuple[Any, dict[str, Any]]:
    """One backward pass of veRL's ppo_loss.

    ``tamper(row, log_prob, entropy)`` may replace the model's own outputs. ``batch_num_tokens`` -1 is what the engine
    sets: the number of policy tokens.
    """
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig
    from verl.workers.utils.losses import ppo_loss

    def nested(rows: list[Any]) -> Any:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    outputs = [forward(policy, p, r) for p, r in zip(case.prompts, case.responses, strict=True)]
    if tamper is not None:
        outputs = [tamper(row, *output) for row, output in enumerate(outputs)]
    masks = [torch.tensor(mask) for mask in case.masks]
    if batch_num_tokens == -1:
        batch_num_tokens = int(sum(mask.sum() for mask in masks))
    data = tu.get_tensordict(
        {
            "prompts": nested([torch.tensor(p) for p in case.prompts]),
            "responses": nested([torch.tensor(r) for r in case.responses]),
            "response_mask": nested(masks),
            **{name: nested(rows) for name, rows in case.values.items()},
        },
        non_tensor_dict={"dp_size": 1, "batch_num_tokens": batch_num_tokens, "global_batch_size": len(masks)},
    )
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=4,
        loss_agg_mode=mode,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode, dro_beta=0.1),
        entropy_coeff=0.01,
        use_kl_loss=True,
        kl_loss_coef=0.1,
    )
    policy.zero_grad()
    torch.manual_seed(3)  # clip_cov and kl_cov draw tokens
    loss, _ = ppo_loss(
        config, {"log_probs": nested([o[0] for o in outputs]), "entropy": nested([o[1] for o in outputs])}, data
    )
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in policy.named_parameters()}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Bit for bit."""
    import torch

    return all(torch.equal(first[name], second[name]) for name in first)


def all_finite(gradients: dict[str, Any]) -> bool:
    return all(bool(gradient.isfinite().all()) for gradient in gradients.values())


def replace(case: Case, field: str, places: list[tuple[int, int]], value: float) -> Case:
    """A copy of ``case`` with ``value`` added to one field at the given places."""
    values = {name: [row.clone() for row in rows] for name, rows in case.values.items()}
    for row, position in places:
        values[field][row][position] += value
    return Case(case.prompts, case.responses, case.masks, values)


def test_rollouts_are_what_the_proof_needs() -> None:
    rollouts = [roll_out(turns) for turns in SCRIPTS]
    # " <result>\nTorvale lives in Ost.\n</result>" has 41 tokens, the passage about Nim 36.
    assert rollouts[0].response_mask == [1] * 20 + [0] * 41 + [1] * 15
    assert rollouts[0].response_ids[-2:] == [ord("."), END]
    assert rollouts[1].response_mask == [1] * 11
    assert rollouts[2].response_mask == [1] * 20 + [0] * 41 + [1] * 22 + [0] * 36 + [1] * 5
    assert rollouts[3].response_mask == [1] * 22 + [0] * 36 + [1] * 72
    reasons = [rollout.stop_reason for rollout in rollouts]
    assert reasons == ["answered", "answered", "answered", "max_length"]


def test_modes_are_all_that_verl_has() -> None:
    import inspect

    from verl.workers.config import ActorConfig

    source = inspect.getsource(ActorConfig.__post_init__)
    listed = source.split("valid_loss_agg_modes = [")[1].split("]")[0]
    assert tuple(mode.strip().strip('"') for mode in listed.split(",") if mode.strip()) == MODES


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("field", FIELDS)
def test_gradient_ignores_values_under_retrieved_tokens(field: str, mode: str) -> None:
    policy = model()
    case = make_case(policy)
    loss, gradients = loss_and_gradients(policy, case, mode)
    for value in (3.0, -40.0):
        changed_loss, changed = loss_and_gradients(policy, replace(case, field, case.where(0), value), mode)
        assert changed_loss == loss
        assert same(gradients, changed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("field", FIELDS)
def test_gradient_follows_values_under_each_kind_of_policy_token(field: str, mode: str) -> None:
    policy = model()
    case = make_case(policy)
    _, gradients = loss_and_gradients(policy, case, mode)
    # Row 0: its first token, the last of "</search>", the first after the observation, the end token.
    for place in ((0, 0), (0, 19), (0, 61), (0, 75)):
        assert place in case.where(1)
        _, changed = loss_and_gradients(policy, replace(case, field, [place], 0.05), mode)
        assert not same(gradients, changed), place


def test_losses_are_all_that_verl_has() -> None:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    assert set(POLICY_LOSS_REGISTRY) == set(LOSSES)


@pytest.mark.parametrize("loss_mode", LOSSES)
def test_every_policy_loss_ignores_values_under_retrieved_tokens(loss_mode: str) -> None:
    policy = model()
    case = make_case(policy)
    mode = "seq-mean-token-mean" if loss_mode == "gspo" else "token-mean"
    loss, gradients = loss_and_gradients(policy, case, mode, loss_mode=loss_mode)
    changed = case
    for field in FIELDS:
        changed = replace(changed, field, case.where(0), 3.0)
    changed_loss, changed_gradients = loss_and_gradients(policy, changed, mode, loss_mode=loss_mode)
    assert changed_loss == loss
    assert same(gradients, changed_gradients)
    one_token = replace(case, "advantages", [(0, 19)], 0.05)
    assert not same(gradients, loss_and_gradients(policy, one_token, mode, loss_mode=loss_mode)[1])


@pytest.mark.parametrize("mode", MODES)
def test_no_gradient_through_the_models_outputs_for_retrieved_tokens(mode: str) -> None:
    """The predictions themselves: log-prob and entropy of a retrieved token may be anything."""
    import torch

    policy = model()
    case = make_case(policy)

    def scaled(wrote: int) -> Any:
        def tamper(row: int, log_prob: Any, entropy: Any) -> tuple[Any, Any]:
            first = len(case.prompts[row]) - 1  # the position that predicts the first response token
            factor = torch.ones_like(log_prob)
            factor[first:-1] += 0.01 * (torch.tensor(case.masks[row]) == wrote)
            return log_prob * factor, entropy * factor

        return tamper

    loss, gradients = loss_and_gradients(policy, case, mode)
    retrieved_loss, retrieved = loss_and_gradients(policy, case, mode, tamper=scaled(0))
    policy_loss, written = loss_and_gradients(policy, case, mode, tamper=scaled(1))
    assert (retrieved_loss, same(gradients, retrieved)) == (loss, True)
    assert policy_loss != loss
    assert not same(gradients, written)


def test_unmasked_observations_do_reach_the_gradient() -> None:
    """The counter-proof: with the mask off (rollout.custom.mask_observations=false) the same change is felt."""
    policy = model()
    case = make_case(policy)
    retrieved = case.where(0)
    unmasked = Case(case.prompts, case.responses, [[1] * len(mask) for mask in case.masks], case.values)
    _, gradients = loss_and_gradients(policy, unmasked, "token-mean")
    _, changed = loss_and_gradients(policy, replace(unmasked, "advantages", retrieved, 3.0), "token-mean")
    assert not same(gradients, changed)


def test_retrieved_tokens_are_still_context() -> None:
    """Masked is not hidden: what the policy wrote after a passage depends on the passage, and so does its gradient."""
    policy = model()
    case = make_case(policy)
    place = case.masks[0].index(0) + 12
    assert bytes([case.responses[0][place]]) == b"r"  # in "Torvale"
    responses = [list(row) for row in case.responses]
    responses[0][place] = ord("x")
    _, gradients = loss_and_gradients(policy, case, "token-mean")
    _, changed = loss_and_gradients(policy, Case(case.prompts, responses, case.masks, case.values), "token-mean")
    assert not same(gradients, changed)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_ignore_engine_log_probs_under_retrieved_tokens(level: str) -> None:
    """algorithm.rollout_correction: the engine's log-probs (0.0 under observations) enter through these weights."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    case = make_case(model())
    mask = pad_sequence([torch.tensor(row) for row in case.masks], batch_first=True)
    old = pad_sequence(case.values["old_log_probs"], batch_first=True)

    def weights(under_retrieved: float) -> tuple[Any, Any]:
        rollout = torch.where(mask.bool(), old - 0.01, torch.full_like(old, under_retrieved))
        proto, new_mask, _ = compute_rollout_correction_and_rejection_mask(
            old_log_prob=old,
            rollout_log_prob=rollout,
            response_mask=mask,
            rollout_is=level,
            rollout_is_threshold=10.0,
            rollout_rs="seq_mean_k1",
            rollout_rs_threshold="0.5_2.0",
        )
        return proto.batch["rollout_is_weights"], new_mask

    reference, reference_mask = weights(0.0)
    other, other_mask = weights(-30.0)
    assert torch.equal(reference * mask, other * mask)
    assert torch.equal(reference_mask, other_mask)
    expected = 0.01 if level == "token" else 0.01 * 35  # row 0: 20 + 15 policy tokens
    assert reference[0, 0].item() == pytest.approx(torch.tensor(expected).exp().item(), rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_fully_masked_rollout_in_a_batch_is_finite_and_contributes_nothing(mode: str) -> None:
    policy = model()
    case = make_case(policy)
    case.masks[1] = [0] * len(case.masks[1])
    loss, gradients = loss_and_gradients(policy, case, mode)
    assert loss.isfinite()
    assert all_finite(gradients)
    whole_row = [(1, t) for t in range(len(case.masks[1]))]
    changed_loss, changed = loss_and_gradients(policy, replace(case, "advantages", whole_row, 7.0), mode)
    assert changed_loss == loss
    assert same(gradients, changed)


@pytest.mark.parametrize("mode", MODES)
def test_batch_without_policy_tokens(mode: str) -> None:
    """Zero loss and gradient, but for token-mean: stock veRL divides by the batch's 0 policy tokens there.

    The plugin never builds such a batch (a rollout in which the policy wrote nothing is left out), and veRL skips an
    optimizer step whose gradient norm is not finite (workers/engine/fsdp/transformer_impl.py, optimizer_step).
    """
    policy = model()
    case = make_case(policy)
    case.masks = [[0] * len(mask) for mask in case.masks]
    loss, gradients = loss_and_gradients(policy, case, mode)
    if mode == "token-mean":
        assert loss.isnan()
        loss, gradients = loss_and_gradients(policy, case, mode, batch_num_tokens=1)
    assert loss == 0.0
    assert all_finite(gradients)
    assert all(not gradient.any() for gradient in gradients.values())
