"""What stock veRL makes of a command line, as JSON for ``research-plugin doctor``, which runs this in a child process.

Nothing of the plugin is imported before ``import verl`` has shown whether it loads the plugin by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def main(answer: str, arguments: Sequence[str]) -> None:
    """Compose ``arguments``, convert and load what the config names, and write the findings to ``answer``.

    The keys are the fields of `research_plugin.doctor.dry_run.DryRun`.
    """
    import verl  # noqa: F401

    found: dict[str, Any] = {"plugin_loaded": "research_plugin.plugin" in sys.modules}
    text, error = _compose(arguments)
    if error:
        found["error"] = _explain(error, arguments)
    else:
        from omegaconf import OmegaConf

        config = OmegaConf.create(text)
        found["config"] = OmegaConf.to_container(config)
        if found["plugin_loaded"] and "recipe" not in config:
            found |= _inspect(config)
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


def _compose(arguments: Sequence[str]) -> tuple[str, str]:
    """Run veRL's own command with ``--cfg job --resolve``; return the YAML it prints and its error message."""
    from verl.trainer import main_ppo

    sys.argv = ["main_ppo", *arguments, "--cfg", "job", "--resolve"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main_ppo.main()
        except SystemExit:
            return "", err.getvalue()
    return out.getvalue(), ""


def _explain(error: str, arguments: Sequence[str]) -> str:
    """Shorten Hydra's message; for an unknown key say which ones are allowed in its place.

    Hydra's own advice, to append the key with a "+", would hide most typos and repeats the value, maybe a secret.
    """
    kept = error.partition("Config search path")[0].partition("Set the environment variable HYDRA_FULL_ERROR")[0]
    left_out = ("To append", "full_key:", "object_type=")
    lines = [line for line in kept.splitlines() if not line.lstrip().startswith(left_out)]
    unknown = re.search(r"Could not override '([^']+)'", error)
    if unknown:
        key = unknown[1]
        text, _ = _compose([word for word in arguments if word.partition("=")[0] != key])
        lines.append(f"{_allowed(text, key)}. Only a key that is new on purpose, or a recipe, takes a + in front")
    return "\n".join(lines).strip()


def _allowed(composed: str, key: str) -> str:
    """Return a sentence with the keys beside ``key``, or of the nearest node above it that exists."""
    from omegaconf import DictConfig, OmegaConf

    config = OmegaConf.create(composed)
    parent = key
    while "." in parent:
        parent = parent.rpartition(".")[0]
        node = OmegaConf.select(config, parent)
        if isinstance(node, DictConfig):
            return f"Allowed under {parent}: {', '.join(sorted(map(str, node)))}"
    return f"Allowed: {', '.join(sorted(map(str, config)))}"


def _inspect(config: Any) -> dict[str, Any]:
    from research_plugin.verl_ext.preflight import visible_gpus

    faults: list[str] = []
    with contextlib.redirect_stdout(io.StringIO()):
        return {
            "rejected": list(_rejections(config)),
            "agent_loop": _tried("the agent loop", faults, _agent_loop, config),
            "reward": _tried("the reward function", faults, _reward, config),
            "faults": faults,
            "visible_gpus": visible_gpus(config),
        }


def _tried(what: str, faults: list[str], function: Any, config: Any) -> str:
    try:
        return str(function(config))
    except Exception as error:
        faults.append(f"{what} fails: {_short(error)}")
        return ""


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:600]


def _rejections(config: Any) -> Iterator[str]:
    """Convert everything that veRL converts in its trainer or, for want of an earlier look, in its workers."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    reference = need_reference_policy(config)
    part = config.actor_rollout_ref
    steps = {
        "validate_config": lambda: validate_config(config, reference, need_critic(config)),
        "actor_rollout_ref.rollout": lambda: omega_conf_to_dataclass(part.rollout),
        "algorithm": lambda: omega_conf_to_dataclass(config.algorithm),
    }
    if reference:
        steps["actor_rollout_ref.ref"] = lambda: omega_conf_to_dataclass(reference_as_actor(part))
    if Path(str(part.model.path)).expanduser().is_dir():  # anything else would be downloaded
        steps["actor_rollout_ref.model"] = lambda: omega_conf_to_dataclass(part.model)
    for name, step in steps.items():
        try:
            step()
        except Exception as error:
            yield f"{name}: {_short(error)}"
    # veRL asserts this in the worker only (workers/engine_workers.py, init_model, 0.9.1).
    if part.actor.use_dynamic_bsz != part.rollout.log_prob_use_dynamic_bsz:
        yield (
            f"actor_rollout_ref.actor.use_dynamic_bsz={part.actor.use_dynamic_bsz} and actor_rollout_ref.rollout."
            f"log_prob_use_dynamic_bsz={part.rollout.log_prob_use_dynamic_bsz} differ; set both to the same value"
        )


def reference_as_actor(part: Any) -> Any:
    """Return ``part.ref`` with the keys renamed as veRL's worker does before it converts them (engine_workers.py)."""
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(part.ref)
    values["ppo_mini_batch_size"] = part.actor.ppo_mini_batch_size
    values["ppo_micro_batch_size"] = values.pop("log_prob_micro_batch_size", None)
    values["ppo_micro_batch_size_per_gpu"] = values.pop("log_prob_micro_batch_size_per_gpu", None)
    values["use_dynamic_bsz"] = values.pop("log_prob_use_dynamic_bsz", False)
    values["ppo_max_token_len_per_gpu"] = values.pop("log_prob_max_token_len_per_gpu", None)
    return OmegaConf.create(values)


def _agent_loop(config: Any) -> str:
    """Import the default agent loop as veRL's workers do; return its class, "" if veRL brings it."""
    from hydra.utils import get_class
    from omegaconf import OmegaConf

    agent = config.actor_rollout_ref.rollout.agent
    if not agent.agent_loop_config_path:
        return ""
    targets = {entry.name: entry._target_ for entry in OmegaConf.load(agent.agent_loop_config_path)}
    target = targets.get(agent.default_agent_loop)
    return f"{agent.default_agent_loop}: {get_class(target).__module__}" if target else ""


def _reward(config: Any) -> str:
    """Load the reward function as veRL does and score a row of the training file with its own golden answer."""
    from verl.trainer.ppo.reward import get_custom_reward_fn

    from research_plugin.doctor.rows import sample_row

    function = get_custom_reward_fn(config)
    if function is None:
        return ""
    row = sample_row(config.data.train_files)
    score = function(solution_str="a sample response", **row)
    if inspect.isawaitable(score):
        score = asyncio.run(_wait(score))
    value = score["score"] if isinstance(score, dict) else score
    name = config.reward.custom_reward_function.name
    return f"{name} of {config.reward.custom_reward_function.path} scores a row: {float(value):g}"


async def _wait(awaitable: Any) -> Any:
    return await awaitable


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
