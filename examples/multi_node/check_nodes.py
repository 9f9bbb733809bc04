"""Waits until all nodes have joined, then runs a task on each: which versions are there, and is the plugin seen?

python check_nodes.py NODES [SECONDS], with RAY_ADDRESS set. Exit code 1 when a node is missing or differs.
"""

from __future__ import annotations

import os
import sys
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PACKAGES = ("research-plugin", "verl", "torch", "vllm")


def facts() -> dict[str, str]:
    """Versions and settings of one node, as a Ray worker on it sees them. Imported here, so that the task is whole."""
    import importlib.metadata
    import os

    installed = {name: importlib.metadata.version(name) for name in PACKAGES if _has(name)}
    plugins = [point.name for point in importlib.metadata.entry_points(group="verl.plugins")]
    settings = {name: os.environ.get(name, "") for name in ("VERL_USE_EXTERNAL_PLUGINS", "HF_HOME")}
    return {**installed, "verl.plugins": ",".join(plugins), **settings}


def _has(package: str) -> bool:
    import importlib.metadata

    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def main(wanted: int, seconds: float) -> int:
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")
    deadline = time.monotonic() + seconds
    while len(nodes := [node for node in ray.nodes() if node["Alive"]]) < wanted:
        if time.monotonic() > deadline:
            print(f"{len(nodes)} of {wanted} nodes joined within {seconds:g} s", file=sys.stderr)
            return 1
        time.sleep(1)
    task = ray.remote(num_cpus=0)(facts)
    found = {}
    for node in nodes:
        here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        found[node["NodeID"]] = ray.get(task.options(scheduling_strategy=here).remote(), timeout=120)
        print(f"{node['NodeManagerHostname']} {node['Resources'].get('GPU', 0):g} GPUs {found[node['NodeID']]}")
    if len({str(fact) for fact in found.values()}) > 1:
        print("the nodes differ; install the same packages and source the same env.sh on all of them", file=sys.stderr)
        return 1
    if "research" not in next(iter(found.values()))["verl.plugins"].split(","):
        print("research-plugin is not installed on the nodes: pip install research-plugin there", file=sys.stderr)
        return 1
    print(f"{len(nodes)} nodes, all alike")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 300.0))
