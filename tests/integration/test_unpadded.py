"""BERT layers without padding against the library's own."""

from __future__ import annotations

from typing import Any

import pytest

from research_plugin.retriever import unpadded

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_KINDS = ["Bert", "Roberta", "XLMRoberta"]
_RIGHT = [[1] * 9, [1] * 4 + [0] * 5, [1] + [0] * 8]
_LEFT = [[0] * 3 + [1] * 6, [1] * 9]
_NONE = [[1] * 9] * 2
# More than 32 tokens, and no multiple of it.
_MANY = [[1] * length + [0] * (9 - length) for length in (9, 8, 7, 6, 5, 4, 3)]
_MANY_NONE = [[1] * 9] * 5


def make(kind: str, dtype: Any = torch.float32, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=20,
        pad_token_id=0,
        **changes,
    )
    model = getattr(transformers, f"{kind}Model")(config).eval().to(dtype)
    for name, parameter in model.named_parameters():
        # Fresh biases are zeros and fresh norms do nothing: a layer that left them out would go unseen.
        if name.endswith("bias") or "LayerNorm" in name:
            torch.nn.init.normal_(parameter, 1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.3)
    return model


def run(model: Any, mask: list[list[int]]) -> Any:
    mask_tensor = torch.tensor(mask)
    ids = (torch.arange(mask_tensor.numel()).reshape(mask_tensor.shape) * 7 % 47 + 3) * mask_tensor
    with torch.inference_mode():
        return model(input_ids=ids, attention_mask=mask_tensor)


@pytest.mark.parametrize(
    "mask", [_RIGHT, _LEFT, _NONE, _MANY, _MANY_NONE], ids=["right", "left", "none", "many", "many none"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", _KINDS)
def test_real_tokens_get_the_same_numbers(kind: str, dtype: Any, mask: list[list[int]]) -> None:
    model, real = make(kind, dtype, hidden_act="gelu_new"), torch.tensor(mask, dtype=torch.bool)
    before = run(model, mask)
    assert unpadded.remove_padding(model) == 1
    after = run(model, mask)
    found, wanted = after.last_hidden_state[real].float(), before.last_hidden_state[real].float()
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)
    if mask is not _LEFT:
        torch.testing.assert_close(after.pooler_output, before.pooler_output, atol=tolerance, rtol=tolerance)
    assert after.last_hidden_state.isfinite().all()


def test_few_numbers_of_rows_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps code for each number of rows that it ever saw."""
    seen, finish = set(), unpadded._Layer.finish

    def spy(self: Any, attended: Any, tokens: Any) -> Any:
        seen.add(len(tokens))
        return finish(self, attended, tokens)

    model = make("Bert")
    assert unpadded.remove_padding(model) == 1
    monkeypatch.setattr(unpadded._Layer, "finish", spy)
    for texts in range(4, 15):
        run(model, [[1] * 9, *[[1] * 8 + [0]] * (texts - 1)])
        run(model, [[1] * 9] * texts)
    assert seen == {64, 96, 128}


def test_the_encoder_of_a_cross_encoder_is_found() -> None:
    config = make("Bert").config
    model = transformers.BertForSequenceClassification(config).eval()
    before = run(model, _RIGHT).logits
    assert unpadded.remove_padding(model) == 1
    torch.testing.assert_close(run(model, _RIGHT).logits, before, atol=1e-5, rtol=1e-5)
    assert len(model.bert.encoder.layer) == 0
    assert unpadded.remove_padding(model) == 0  # nothing is left to do


@pytest.mark.parametrize(
    "changes",
    [
        {"is_decoder": True},
        {"attn_implementation": "eager"},
        {"output_hidden_states": True},
    ],
    ids=["decoder", "eager", "states"],
)
def test_an_encoder_of_which_more_is_wanted_stays(changes: dict[str, Any]) -> None:
    model = make("Bert", **changes)
    assert unpadded.remove_padding(model) == 0
    assert len(model.encoder.layer) == 3


@pytest.mark.parametrize("fault", ["structure", "numbers"])
def test_an_encoder_of_another_making_stays(fault: str) -> None:
    """A later version of the library may build its layers otherwise, or compute something else in them."""
    model = make("Bert")
    for layer in model.encoder.layer:
        if fault == "structure":
            layer.output.norm = layer.output.LayerNorm
            del layer.output.LayerNorm
        else:
            # As of a model that normalizes before each block instead of after it.
            layer.attention.output.forward = lambda hidden, tokens, part=layer.attention.output: (
                tokens + part.LayerNorm(part.dense(hidden))
            )
    before = len(model.encoder.layer)
    assert unpadded.remove_padding(model) == 0
    assert len(model.encoder.layer) == before == 3


def test_layers_that_are_gone_are_not_silently_missing() -> None:
    model = make("Bert")
    assert unpadded.remove_padding(model) == 1
    with pytest.raises(ValueError, match="output_hidden_states: the layers were replaced"):
        model(input_ids=torch.ones(1, 3, dtype=torch.long), output_hidden_states=True)


def test_a_mask_of_another_kind_is_refused() -> None:
    model = make("Bert")
    assert unpadded.remove_padding(model) == 1
    with pytest.raises(TypeError, match=r"torch\.float32; expected torch\.bool"):
        model.encoder(torch.zeros(1, 3, 48), attention_mask=torch.zeros(1, 1, 3, 3))
