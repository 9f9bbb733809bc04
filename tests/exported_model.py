"""Holds an exported model folder against the weights that it should hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from research_plugin.plugin import data_file


def assert_exported(folder: Path, weights: dict[str, Any]) -> None:
    """``folder`` has the keys, shapes and values of ``weights``, and the tiny model with them gives its logits."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    files = sorted(folder.glob("*.safetensors"))
    exported = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert {name: tensor.shape for name, tensor in exported.items()} == {n: t.shape for n, t in weights.items()}
    assert all(torch.equal(exported[name].float(), weights[name].float()) for name in weights)

    expected = AutoModelForCausalLM.from_pretrained(data_file("tiny/model"), dtype=torch.float32)
    expected.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=False)
    found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(3, 60).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(found(ids).logits, expected(ids).logits)
    assert AutoTokenizer.from_pretrained(folder).encode("<search> Torvale </search>") == AutoTokenizer.from_pretrained(
        data_file("tiny/model")
    ).encode("<search> Torvale </search>")
