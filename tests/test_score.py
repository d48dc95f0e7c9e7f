"""Score-based methods with the exact score of a Gaussian prior: its posterior mean, which a wrong sign would miss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcddpm import schedules, score
from mcddpm.datasets import measure
from mcddpm.denoiser import Denoiser
from mcddpm.gaussian import GaussianPosterior, GaussianPrior
from mcddpm.unet import UNet
from tests.problems import problem

# Error of the mean in units of the posterior's std after 1000 steps. (Zero-filled: 1.5, the prior's mean: 3.9.) The
# first three come closer with more steps; replacing what was measured in a DDPM does not condition on it: it stays off.
TOLERANCE = {"chung_ye": 0.4, "song": 0.4, "jalal": 0.4, "ddpm": 0.75}


class ExactPrior(Denoiser):
    """D(y, sigma) of a Gaussian prior, without any measurement."""

    def __init__(self, prior: GaussianPrior, A) -> None:
        network = UNet(4, 2, channels=8, multipliers=(1,), heads=1, attention=())
        super().__init__(network, schedules.variance_exploding(1000, 1e-3, 200.0), data_std=1.0, operator=None)
        nothing = torch.zeros(6).bool()
        everything = GaussianPosterior(A, torch.zeros_like(prior.mean), nothing, prior.mean, prior.factor)
        self.exact, self.card = everything.denoiser(self.schedule), {"conditional": False}

    def denoise(self, y_t: Tensor, t: Tensor, *_: object) -> Tensor:
        return self.exact(y_t, t)


def relative(recon, p) -> tuple[float, float]:
    """The error of the mean, and the spread, in units of the posterior's std."""
    spread = p.posterior.x_std.square().mean().sqrt()
    error = (recon.samples.mean(0) - p.posterior.x_mean).abs().square().mean().sqrt()
    return float(error / spread), float(torch.view_as_real(recon.samples).std(0).square().mean().sqrt() / spread)


@pytest.mark.parametrize("name", sorted(score.METHODS))
def test_the_mean_is_that_of_the_posterior(name: str) -> None:
    p = problem("fourier")
    m = measure(p.A(p.x), p.mask, p.A, p.x)
    prior = ExactPrior(GaussianPrior(p.prior.mean * m.scale, p.prior.factor * m.scale), p.A)
    error, spread = relative(score.METHODS[name](prior, m, samples=300, steps=1000), p)
    assert error < TOLERANCE[name] and 0.9 < spread < 1.35


@pytest.mark.parametrize("name", sorted(score.METHODS))
def test_where_k_space_is_independent_all_are_exact(name: str) -> None:
    """Nothing to be learned from the measurement: what is drawn off M has the prior's own mean and std."""
    p = problem("fourier")
    g = torch.Generator().manual_seed(1)
    std = torch.rand(5, 6, generator=g, dtype=torch.float64) + 0.2
    columns = (std.flatten().diag() + 0j).reshape(30, 5, 6)  # k-space values, each on its own
    mean = torch.randn(5, 6, generator=g, dtype=torch.complex128)
    prior = GaussianPrior(mean, p.A.pinv(columns))
    m = measure(p.A(prior.draw(g)), p.mask, p.A)
    scaled = ExactPrior(GaussianPrior(prior.mean * m.scale, prior.factor * m.scale), p.A)
    y = p.A(score.METHODS[name](scaled, m, samples=400, steps=200).samples)[..., ~p.mask]
    off = (y.mean(0) - p.A(mean)[..., ~p.mask]).abs() / std[..., ~p.mask]
    assert off.square().mean().sqrt() < 2 * (2 / 400) ** 0.5
    drawn = torch.view_as_real(y).std(0).square().mean(-1).sqrt() / std[..., ~p.mask]
    assert abs(float(drawn.mean()) - 1) < 0.12


@pytest.mark.parametrize("name", sorted(score.METHODS))
def test_measured_data_come_back_and_seeds_decide(name: str) -> None:
    p = problem("fourier")
    m = measure(p.A(p.x), p.mask, p.A, p.x)
    prior = ExactPrior(GaussianPrior(p.prior.mean * m.scale, p.prior.factor * m.scale), p.A)
    one, again, other = (score.METHODS[name](prior, m, samples=2, steps=20, seed=s).samples for s in (0, 0, 1))
    assert torch.equal(one, again) and not torch.allclose(one, other)
    assert torch.allclose(p.A(one)[..., p.mask], p.A(p.x)[..., p.mask].expand(2, 5, 2), atol=1e-6)


def test_a_conditional_model_is_no_prior() -> None:
    p = problem("fourier")
    m = measure(p.A(p.x), p.mask, p.A, p.x)
    prior = ExactPrior(p.prior, p.A)
    prior.card = {"conditional": True}
    with pytest.raises(ValueError, match=r"need a prior, trained with model\.conditional = false"):
        score.METHODS["song"](prior, m)


def test_levels_fall_from_high_to_low_and_end() -> None:
    found = list(score.levels(4, 8.0, 1.0))
    assert [round(sigma, 6) for sigma, _ in found] == [8.0, 4.0, 2.0, 1.0]
    assert [round(after, 6) for _, after in found] == [4.0, 2.0, 1.0, 0.0]
