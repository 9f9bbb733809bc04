"""What each recipe resolves to, against tables written from the papers and the authors' scripts."""

from __future__ import annotations

from typing import Any

import pytest
from composing import RECIPE_NAMES, compose_config

pytestmark = pytest.mark.verl
pytest.importorskip("verl")

ACTOR, ROLLOUT, CUSTOM = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.rollout.custom"
REWARD = "reward.custom_reward_function.reward_kwargs"

# The three papers agree on these.
COMMON = {
    "algorithm.use_kl_in_reward": False,
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.entropy_coeff": 0,
    f"{ACTOR}.optim.clip_grad": 1.0,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.top_k": -1,
    f"{ROLLOUT}.val_kwargs.temperature": 0,
    f"{ROLLOUT}.val_kwargs.n": 1,
    f"{CUSTOM}.mask_observations": True,
    f"{CUSTOM}.when_spent": "stop",
    f"{REWARD}.rules": "paper",
    f"{REWARD}.search_cost": 0.0,
    f"{REWARD}.repeat_penalty": 0.0,
    "trainer.val_before_train": True,
}

# arXiv 2503.19470, section 3.1, and the authors' training script.
RESEARCH = {
    **COMMON,
    "algorithm.adv_estimator": "grpo",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "data.train_batch_size": 256,
    "data.max_prompt_length": 512,
    "data.max_response_length": 8192,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.use_dynamic_bsz": True,
    f"{ACTOR}.ppo_max_token_len_per_gpu": 17408,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.weight_decay": 0.01,
    f"{ACTOR}.optim.betas": [0.9, 0.999],
    f"{ACTOR}.optim.lr_warmup_steps": -1,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 34816,
    f"{ROLLOUT}.n": 5,
    f"{ROLLOUT}.top_p": 1.0,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.gpu_memory_utilization": 0.6,
    f"{ROLLOUT}.max_model_len": 8704,
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 34816,
    f"{CUSTOM}.protocol": "research",
    f"{CUSTOM}.prompt.style": "instruct",
    f"{CUSTOM}.max_searches": None,
    f"{CUSTOM}.max_turn_tokens": None,
    f"{CUSTOM}.max_observation_tokens": None,
    f"{CUSTOM}.search.topk": 5,
    f"{CUSTOM}.search.expects": "wiki18_e5_gpu",
    f"{REWARD}.method": "research",
    "trainer.nnodes": 8,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_epochs": 2,
    "trainer.save_freq": 10,
    "trainer.test_freq": 10,
}
BASE = {f"{CUSTOM}.prompt.style": "base"}
MODEL = "actor_rollout_ref.model.path"

FSDP = {
    f"{ACTOR}.strategy": "fsdp",
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    f"{ACTOR}.fsdp_config.param_offload": False,
    f"{ACTOR}.fsdp_config.optimizer_offload": False,
    "actor_rollout_ref.ref.fsdp_config.param_offload": True,
}
# Not from a paper: docs/recipes.md says why.
MEGATRON = {
    f"{ACTOR}.strategy": "megatron",
    f"{ACTOR}.megatron.tensor_model_parallel_size": 2,
    f"{ACTOR}.megatron.pipeline_model_parallel_size": 1,
    f"{ACTOR}.megatron.context_parallel_size": 1,
    f"{ACTOR}.megatron.sequence_parallel": True,
    f"{ACTOR}.megatron.use_distributed_optimizer": True,
    f"{ACTOR}.megatron.param_offload": True,
    f"{ACTOR}.megatron.optimizer_offload": False,
    f"{ACTOR}.megatron.override_transformer_config.recompute_granularity": "full",
    f"{ACTOR}.megatron.override_transformer_config.recompute_method": "uniform",
    f"{ACTOR}.megatron.override_transformer_config.recompute_num_layers": 1,
    "actor_rollout_ref.ref.megatron.param_offload": True,
    "actor_rollout_ref.ref.megatron.tensor_model_parallel_size": 2,
}
WIDE = {
    f"{ACTOR}.megatron.tensor_model_parallel_size": 8,
    "actor_rollout_ref.ref.megatron.tensor_model_parallel_size": 8,
}
LARGE = {f"{ROLLOUT}.tensor_model_parallel_size": 4}

# arXiv 2503.05592 and the released Qwen script: 64 questions x 16, updates of 256 rollouts, REINFORCE++ with baseline.
R1_SEARCHER = {
    **COMMON,
    "algorithm.adv_estimator": "reinforce_plus_plus_baseline",
    "algorithm.gamma": 1.0,
    "data.train_batch_size": 64,
    "data.max_prompt_length": 1024,
    f"{ACTOR}.ppo_mini_batch_size": 16,
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
    f"{ACTOR}.use_kl_loss": False,
    f"{ACTOR}.optim.lr": 2e-6,
    f"{ACTOR}.optim.betas": [0.9, 0.95],
    f"{ACTOR}.optim.weight_decay": 0.0,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    f"{ROLLOUT}.n": 16,
    f"{ROLLOUT}.top_p": 0.95,
    f"{CUSTOM}.protocol": "r1_searcher",
    f"{CUSTOM}.prompt.style": "base",
    f"{CUSTOM}.max_searches": 8,
    f"{CUSTOM}.max_turn_tokens": 512,
    f"{CUSTOM}.search.topk": 3,
    "trainer.total_epochs": 1,
}

# arXiv 2503.09516 and the released GRPO script.
SEARCH_R1 = {
    **COMMON,
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 512,
    "data.max_prompt_length": 2048,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.285,
    f"{ROLLOUT}.n": 5,
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    f"{ROLLOUT}.gpu_memory_utilization": 0.6,
    f"{CUSTOM}.protocol": "search_r1",
    f"{CUSTOM}.max_searches": 4,
    f"{CUSTOM}.max_turn_tokens": 500,
    f"{CUSTOM}.max_observation_tokens": 500,
    f"{CUSTOM}.search.topk": 3,
    f"{REWARD}.method": "search_r1",
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_epochs": 15,
    "trainer.total_training_steps": 1005,
    "trainer.save_freq": 100,
    "trainer.test_freq": 50,
}

TABLES: dict[str, dict[str, Any]] = {
    "research_7b": {**RESEARCH, **FSDP, MODEL: "Qwen/Qwen2.5-7B-Instruct"},
    "research_7b_base": {**RESEARCH, **FSDP, **BASE, MODEL: "Qwen/Qwen2.5-7B"},
    "research_7b_megatron": {**RESEARCH, **MEGATRON, MODEL: "Qwen/Qwen2.5-7B-Instruct"},
    "research_7b_base_megatron": {**RESEARCH, **MEGATRON, **BASE, MODEL: "Qwen/Qwen2.5-7B"},
    "research_32b": {**RESEARCH, **FSDP, **LARGE, MODEL: "Qwen/Qwen2.5-32B-Instruct"},
    "research_32b_base": {**RESEARCH, **FSDP, **LARGE, **BASE, MODEL: "Qwen/Qwen2.5-32B"},
    "research_32b_megatron": {**RESEARCH, **MEGATRON, **WIDE, **LARGE, MODEL: "Qwen/Qwen2.5-32B-Instruct"},
    "research_32b_base_megatron": {**RESEARCH, **MEGATRON, **WIDE, **LARGE, **BASE, MODEL: "Qwen/Qwen2.5-32B"},
    "research_7b_lora": {
        **RESEARCH,
        **FSDP,
        MODEL: "Qwen/Qwen2.5-7B-Instruct",
        "actor_rollout_ref.model.lora_rank": 64,
        "actor_rollout_ref.model.lora_alpha": 64,
        "actor_rollout_ref.model.target_modules": "all-linear",
        "data.train_batch_size": 32,
        f"{ACTOR}.ppo_mini_batch_size": 32,
        f"{ACTOR}.optim.lr": 1e-5,
        f"{ACTOR}.fsdp_config.param_offload": True,
        f"{ACTOR}.fsdp_config.model_dtype": "fp32",
        f"{ROLLOUT}.load_format": "safetensors",
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": 1,
    },
    "r1_searcher_stage1_7b": {
        **R1_SEARCHER,
        **FSDP,
        MODEL: "Qwen/Qwen2.5-7B",
        f"{REWARD}.method": "r1_searcher_stage1",
        f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
    },
    "r1_searcher_stage2_7b": {
        **R1_SEARCHER,
        **FSDP,
        # 350 rows make 5 steps of 64; veRL's default_local_dir, with the names of stage 1.
        MODEL: f"checkpoints/research_plugin/r1_searcher_stage1_7b/global_step_{350 // 64}/actor/huggingface",
        f"{REWARD}.method": "r1_searcher_stage2",
    },
    "search_r1_7b": {**SEARCH_R1, **FSDP, **BASE, MODEL: "Qwen/Qwen2.5-7B"},
}


def test_every_recipe_for_gpus_has_a_table() -> None:
    assert set(TABLES) == {name for name in RECIPE_NAMES if name != "research_tiny"}


@pytest.mark.parametrize("name", TABLES)
def test_recipe_resolves_to_its_table(name: str) -> None:
    from omegaconf import OmegaConf

    config = OmegaConf.create(OmegaConf.to_container(compose_config(f"+recipe={name}"), resolve=True))
    assert {key: OmegaConf.select(config, key) for key in TABLES[name]} == TABLES[name]
    assert config.trainer.experiment_name == name


def test_lengths_hold_what_the_limits_allow() -> None:
    """Search-R1: 5 turns and 4 observations; R1-Searcher: 9 turns, and 8 observations of 960 tokens."""
    configs = {name: compose_config(f"+recipe={name}") for name in ("search_r1_7b", "r1_searcher_stage1_7b")}
    assert configs["search_r1_7b"].data.max_response_length == 5 * 500 + 4 * 500
    assert configs["r1_searcher_stage1_7b"].data.max_response_length == 9 * 512 + 8 * 960
    for config in configs.values():
        length = config.data.max_prompt_length + config.data.max_response_length
        assert config.actor_rollout_ref.rollout.max_model_len == length
