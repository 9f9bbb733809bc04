"""BERT layers on the CPU that compute nothing for padding, in fewer and larger products than the library's.

A batch is as long as its longest text; the library's layers multiply the padding of all others with every weight.
MiniLM-L6 in bfloat16 on one Zen 4 core, CPU per query: a sixth less for 32 queries of 11 to 20 tokens, 6 to 10 % for 64
(which are cut into batches of more equal lengths), a fifth for a single one, which has no padding, but fewer calls.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from research_plugin.retriever.packed_linear import pack_linear_layers, product

if TYPE_CHECKING:
    import torch

# One structure under three names (transformers 5.10, models/*/modeling_*.py).
_ENCODERS = ("BertEncoder", "RobertaEncoder", "XLMRobertaEncoder")
_SAME = 0.999
_STEP = 32
_PROBE = ((1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 0, 0), (0, 0, 1, 1, 1, 1))


def speed_up(model: torch.nn.Module) -> None:
    """Make a model faster on the CPU: `remove_padding`, then `pack_linear_layers` for the rest.

    It is for inference from now on: not to be saved, moved, cast or asked for hidden states or attentions.
    """
    remove_padding(model)
    pack_linear_layers(model)


def remove_padding(model: torch.nn.Module) -> int:
    """Give the BERT-like encoders in a model `UnpaddedLayers` instead of their own; return their number.

    An encoder stays as it is on a GPU, where it is a decoder, has attention other than torch's own or hands out what
    its layers compute, or if the new output has a cosine below 0.999 with its own.
    """
    import torch

    replaced = 0
    with torch.inference_mode():
        for encoder in model.modules():
            layers = _layers_of(encoder) if type(encoder).__name__ in _ENCODERS else None
            if layers is not None:
                encoder.forward = layers
                encoder.layer = torch.nn.ModuleList()  # their weights are in `layers`
                replaced += 1
    return replaced


class UnpaddedLayers:
    """The forward pass of a BERT encoder; where the mask says padding, the numbers it returns mean nothing.

    Args:
        layers: the encoder's own.
        output: the class of what it returns.
    """

    def __init__(self, layers: Any, output: Any) -> None:
        self._layers, self._output = [_Layer(layer) for layer in layers], output

    def __call__(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **unused: Any) -> Any:
        """``hidden_states`` [n, length, width]; ``attention_mask`` bool [n, 1, length, length], every row of it alike:
        the real tokens of a text. None: no padding."""
        import torch

        if asked := [name for name, value in unused.items() if name.startswith("output_") and value]:
            raise ValueError(f"{', '.join(asked)}: the layers were replaced, and hand out nothing in between")
        texts, length, width = hidden_states.shape
        rows = hidden_states.reshape(-1, width)
        if attention_mask is None and _round_up(len(rows)) == len(rows):
            for layer in self._layers:
                rows = layer.finish(layer.attend(layer.parts(rows), texts, None), rows)
        else:
            if attention_mask is None:
                places = tokens = torch.arange(len(rows))
            elif attention_mask.dtype != torch.bool:
                raise TypeError(f"attention_mask is {attention_mask.dtype}; expected torch.bool")
            else:
                real = attention_mask[:, 0, 0].reshape(-1)
                places = real.nonzero()[:, 0]
                # For every place a token to stand there, which is masked where it is padding.
                tokens = (real.cumsum(0) - 1).clamp_(min=0)
            places = torch.cat((places, places[:1].expand(_round_up(len(places)) - len(places))))
            rows = rows[places]
            for layer in self._layers:
                rows = layer.finish(layer.attend(layer.parts(rows)[tokens], texts, attention_mask)[places], rows)
            rows = rows[tokens]
        return self._output(last_hidden_state=rows.view(texts, length, width))


class _Layer:
    """Everything but the attention itself takes tokens [n, width], whichever text they are of."""

    def __init__(self, layer: Any) -> None:
        import torch

        own, attention = layer.attention.self, layer.attention.output
        queries_keys_values = (own.query, own.key, own.value)
        weight, bias = (torch.cat([getattr(part, name) for part in queries_keys_values]) for name in ("weight", "bias"))
        self.parts = product(weight, bias)
        self._heads, self._scaling = own.num_attention_heads, own.scaling
        self._attended, self._attended_norm = _dense(attention.dense), _norm(attention.LayerNorm)
        self._wide, self._activation = _dense(layer.intermediate.dense), layer.intermediate.intermediate_act_fn
        self._narrow, self._narrow_norm = _dense(layer.output.dense), _norm(layer.output.LayerNorm)

    def attend(self, parts: torch.Tensor, texts: int, mask: torch.Tensor | None) -> torch.Tensor:
        """Return [texts x length, width] for [texts x length, 3 width]: queries, keys and values."""
        from torch.nn.functional import scaled_dot_product_attention

        places, width = parts.shape
        query, key, value = parts.view(texts, -1, 3, self._heads, width // 3 // self._heads).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self._scaling)
        return seen.transpose(1, 2).reshape(places, width // 3)

    def finish(self, seen: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for what its ``tokens`` attended to."""
        tokens = self._attended_norm(self._attended(seen).add_(tokens))
        output: torch.Tensor = self._narrow_norm(self._narrow(self._activation(self._wide(tokens))).add_(tokens))
        return output


def _layers_of(encoder: Any) -> UnpaddedLayers | None:
    import torch

    weight, config = next(encoder.parameters(), None), getattr(encoder, "config", None)
    if weight is None or weight.device.type != "cpu" or config is None or config.is_decoder:
        return None
    # Attention of another kind has a mask of another kind; what is handed out is caught from the library's own layers.
    if config._attn_implementation != "sdpa" or config.output_hidden_states:
        return None
    mask = torch.tensor(_PROBE, dtype=torch.bool)
    hidden = torch.linspace(-1, 1, mask.numel() * config.hidden_size).mul(1e3).sin()
    hidden = hidden.reshape(*mask.shape, -1).to(weight.dtype)
    wide = mask[:, None, None].expand(-1, 1, mask.shape[1], -1)
    try:
        wanted = encoder(hidden, attention_mask=wide)
        layers = UnpaddedLayers(encoder.layer, type(wanted))
        found = layers(hidden, attention_mask=wide)
    except Exception:  # whatever another structure than the one known provokes
        return None
    rows, wanted_rows = (output.last_hidden_state[mask].float() for output in (found, wanted))
    cosines = torch.nn.functional.cosine_similarity(rows, wanted_rows, dim=-1)
    return layers if float(cosines.min()) >= _SAME else None


def _round_up(rows: int) -> int:
    """The number of rows to multiply: oneDNN builds code for each number anew, and keeps it, up to a megabyte each."""
    return rows if rows <= _STEP else -(-rows // _STEP) * _STEP


def _dense(layer: torch.nn.Linear) -> Any:
    return product(layer.weight, layer.bias)


def _norm(norm: Any) -> Any:
    import torch

    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return partial(torch.nn.functional.layer_norm, normalized_shape=shape, weight=weight, bias=bias, eps=eps)
