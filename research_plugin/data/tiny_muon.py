"""Muon (Jordan et al., 2024) in float32: momentum whose matrix is made orthogonal before it is applied.

``torch.optim.Muon`` (torch 2.13) iterates in bfloat16, which CPUs without bfloat16 units emulate: 0.65 s a step for
the tiny model on such a machine against some milliseconds here. Imports torch; import it only where training happens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

MOMENTUM = 0.95
# Quintic Newton-Schulz: coefficients and number of iterations as published.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """For 2-D weights only; the rate is scaled by sqrt(rows / columns) for tall matrices."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float) -> None:
        super().__init__(list(params), {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update; matrices of one shape are handled together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for param in group["params"]:
                by_shape.setdefault(param.shape, []).append(param)
            for params in by_shape.values():
                updates = orthogonal(torch.stack([self._momentum(param) for param in params]))
                scale = max(1.0, params[0].shape[0] / params[0].shape[1]) ** 0.5
                for param, update in zip(params, updates, strict=True):
                    param.add_(update, alpha=-group["lr"] * scale)

    def _momentum(self, param: torch.nn.Parameter) -> torch.Tensor:
        """Nesterov momentum of the gradient."""
        grad = param.grad if param.grad is not None else torch.zeros_like(param)
        state = self.state[param]
        if not state:
            state["average"] = torch.zeros_like(grad)
        average: torch.Tensor = state["average"]
        average.lerp_(grad, 1.0 - MOMENTUM)
        return grad.lerp(average, MOMENTUM)


def orthogonal(batch: torch.Tensor) -> torch.Tensor:
    """Push all singular values of each matrix of (n, rows, columns) near 1."""
    tall = batch.shape[-2] > batch.shape[-1]
    x: torch.Tensor = batch.mT if tall else batch
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if tall else x
