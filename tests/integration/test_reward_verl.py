"""The reward through veRL's own loading, naive manager and validation metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytestmark = pytest.mark.verl
pytest.importorskip("verl")

RESPONSE = "<think> a </think> <answer> \\boxed{Torvale} </answer>"


class Tokenizer:
    """Decodes ids as code points; the only thing the manager asks of a tokenizer."""

    def decode(self, ids: Any, skip_special_tokens: bool) -> str:
        return "".join(map(chr, ids.tolist()))


def config(**reward_kwargs: Any) -> Any:
    from omegaconf import OmegaConf

    function = {"path": "pkg://research_plugin.rewards", "name": "compute_score", "reward_kwargs": reward_kwargs}
    return OmegaConf.create({"reward": {"custom_reward_function": function}})


def run_manager(response: str, extra_fields: dict[str, Any], router: str | None = None, **reward_kwargs: Any) -> Any:
    import numpy as np
    import torch
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo.reward import get_custom_reward_fn

    ids = torch.tensor([list(map(ord, response))])
    data = DataProto.from_dict(
        tensors={"responses": ids, "attention_mask": torch.ones_like(ids)},
        non_tensors={
            "data_source": np.array(["musique"], dtype=object),
            "reward_model": np.array([{"style": "rule", "ground_truth": np.array(["Torvale"], dtype=object)}]),
            "extra_info": np.array([{"index": 0}]),
            "tool_extra_fields": np.array([extra_fields], dtype=object),
        },
    )

    async def run() -> Any:
        function = get_custom_reward_fn(config(**reward_kwargs))
        return await NaiveRewardManager(config(), Tokenizer(), function, reward_router_address=router).run_single(data)

    return asyncio.run(run())


def test_naive_manager_scores_the_text() -> None:
    result = run_manager(RESPONSE, {}, method="research", rules="paper")
    assert result["reward_score"] == 1.0
    assert result["reward_extra_info"]["pred"] == "Torvale"


def test_naive_manager_passes_segments_and_stop_reason() -> None:
    fields = {"segments": [[RESPONSE.replace("Torvale", "Rome"), True]], "stop_reason": "max_length"}
    result = run_manager(RESPONSE, fields, router="10.0.0.1:80")
    assert result["reward_score"] == 0.0
    assert result["reward_extra_info"]["truncated"] == 1.0


def test_misspelt_reward_kwarg_fails() -> None:
    with pytest.raises(ValueError, match="serch_cost"):
        run_manager(RESPONSE, {}, serch_cost=0.1)


def test_validation_metrics_average_numbers_and_skip_strings() -> None:
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    from research_plugin.rewards import compute_score

    results = [compute_score("m", text, ["Torvale"]) for text in (RESPONSE, RESPONSE.replace("Torvale", "Rome"))]
    infos = {key: [result[key] for result in results] for key in results[0]}
    metrics = process_validation_metrics(["m", "m"], ["a", "b"], infos)["m"]
    assert metrics["score"]["mean@1"] == pytest.approx(0.55)
    assert metrics["format_ok"]["mean@1"] == 1.0
    assert "pred" not in metrics and "reason" not in metrics
    # Several samples of a prompt: the majority vote reads `pred`.
    assert "maj@2/mean" in process_validation_metrics(["m", "m"], ["a", "a"], infos)["m"]["f1"]
