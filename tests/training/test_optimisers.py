"""Muon on cases with a known answer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mcddpm.training.optimisers import Muon, optimiser_of, orthogonalised


@pytest.mark.parametrize("shape", [(20, 50), (50, 20), (32, 32)])
def test_orthogonalised_has_singular_values_near_one_and_the_same_directions(shape: tuple[int, int]) -> None:
    g = torch.Generator().manual_seed(0)
    U, _, Vh = torch.linalg.svd(torch.randn(shape, generator=g), full_matrices=False)
    S = torch.linspace(0.05, 1.0, min(shape))
    X = orthogonalised(1e-3 * U * S @ Vh)
    inner = U.mT @ X @ Vh.mT
    assert (inner.diagonal() > 0.6).all() and (inner.diagonal() < 1.3).all()
    assert (inner - inner.diagonal().diag()).abs().max() < 1e-4


def test_a_step_is_as_long_as_lr_says() -> None:
    w = nn.Parameter(torch.zeros(32, 4, 3, 3))
    w.grad = torch.randn(w.shape, generator=torch.Generator().manual_seed(0))
    Muon([w], lr=0.1, weight_decay=0.0).step()
    rms = float(w.detach().square().mean().sqrt())
    assert rms == pytest.approx(0.1 * 0.2, rel=0.15)  # 0.2 sqrt(36) U V^T: 32 singular values of 1 in 32 x 36 entries
    assert (w.detach() * w.grad).sum() < 0


def test_vectors_take_adams_steps() -> None:
    g = torch.Generator().manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(5)) for _ in range(2))
    a, b = Muon([ours], lr=0.01, weight_decay=0.1), torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
    for _ in range(5):
        ours.grad = torch.randn(5, generator=g)
        theirs.grad = ours.grad.clone()
        a.step()
        b.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_it_finds_the_least_squares_matrix() -> None:
    g = torch.Generator().manual_seed(0)
    truth, x = torch.randn(24, 20, generator=g), torch.randn(500, 20, generator=g)
    w = nn.Parameter(torch.zeros(24, 20))
    optimiser = Muon([w], lr=0.1, weight_decay=0.0)
    for step in range(300):
        optimiser.param_groups[0]["lr"] = 0.1 * (1 - step / 300)
        loss = (x @ w.T - x @ truth.T).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (w - truth).norm() < 0.02 * truth.norm()


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("muon", Muon)])
def test_an_optimiser_has_its_settings(name: str, kind: type) -> None:
    made = optimiser_of(name, [nn.Parameter(torch.ones(2))], lr=0.25, weight_decay=0.125)
    assert type(made) is kind and (made.defaults["lr"], made.defaults["weight_decay"]) == (0.25, 0.125)
