"""AdamW, and Muon: for every layer whose weights form a matrix, a step of the same length in all directions.

Muon (Jordan et al. 2024) takes the momentum of a layer's gradient, as a matrix (out, in x height x width), and replaces
its singular values by about 1. Scaled by 0.2 sqrt(larger side) its steps are as long as Adam's, so both share one
learning rate (Liu et al. 2025). Vectors, and layers too narrow to gain, take AdamW's step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mcddpm.system.settings import check_choice

NARROW = 16
Optimiser = Literal["adamw", "muon"]


def optimiser_of(
    name: str, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    check_choice("optimiser", name, Optimiser)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)
    return Muon(parameters, lr=lr, weight_decay=weight_decay)


def orthogonalised(G: Tensor, rounds: int = 5) -> Tensor:
    """About U V^T of G = U S V^T, by Newton-Schulz steps whose coefficients bring singular values to 0.7 ... 1.2."""
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G / G.norm().clamp(min=1e-12)
    X = X.mT if G.shape[0] > G.shape[1] else X
    for _ in range(rounds):
        S = X @ X.mT
        X = a * X + (b * S + c * S @ S) @ X
    return X.mT if G.shape[0] > G.shape[1] else X


class Muon(torch.optim.Optimizer):
    """Muon for matrices and AdamW for the rest, in one."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_((self._matrix if _is_matrix(p) else self._adam)(p, group), alpha=-group["lr"])

    def _matrix(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        assert p.grad is not None
        state, beta = self.state[p], group["momentum"]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        state["momentum"].lerp_(p.grad, 1 - beta)
        G = p.grad.lerp(state["momentum"], beta).reshape(p.shape[0], -1).float()  # Nesterov's look ahead
        return (0.2 * max(G.shape) ** 0.5 * orthogonalised(G)).reshape(p.shape).to(p.dtype)

    def _adam(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        assert p.grad is not None
        state, (first, second) = self.state[p], group["betas"]
        if not state:
            state |= {"step": torch.zeros(()), "mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
        state["step"] += 1
        state["mean"].lerp_(p.grad, 1 - first)
        state["square"].lerp_(p.grad.square(), 1 - second)
        n = float(state["step"])
        return state["mean"] / (1 - first**n) / ((state["square"] / (1 - second**n)).sqrt() + 1e-8)


def _is_matrix(p: Tensor) -> bool:
    return p.ndim >= 2 and min(p.shape[0], p[0].numel()) >= NARROW
