"""Noising, posterior and losses against the authors' coefficients, Bayes' rule and closed-form Gaussians."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm.diffusion import schedules
from mcddpm.diffusion.process import denoised_of, diffuse, eps_of, l_simple, l_vlb, posterior
from mcddpm.diffusion.samplers import MaskedNoise
from tests.golden import golden_json
from tests.problems import OPERATORS, problem, randn

SCHEDULE = schedules.cosine(1000, 0.5)


def test_posterior_equals_the_authors_coefficients() -> None:
    arrays = golden_json("schedule_cosine_x0.5.json")["T=1000"]
    t, one, zero = torch.arange(1, 1001), torch.ones(1000, 1).double(), torch.zeros(1000, 1).double()
    nothing = torch.zeros(1).bool()
    of_y_t, std = posterior(one, zero, t, nothing, SCHEDULE)
    of_y_0, _ = posterior(zero, one, t, nothing, SCHEDULE)
    np.testing.assert_allclose(of_y_t[:, 0], arrays["posterior_mean_coef_xt"], rtol=1e-9)
    np.testing.assert_allclose(of_y_0[:, 0], arrays["posterior_mean_coef_x0"], rtol=1e-9)
    np.testing.assert_allclose(std[:, 0], arrays["posterior_std"], rtol=1e-9)


@pytest.mark.parametrize("beta_scale", [0.5, 1.0])
def test_posterior_is_bayes_rule(beta_scale: float) -> None:
    """Precisions add: q(y_{t-1} | y_t, y_0) ~ q(y_t | y_{t-1}) q(y_{t-1} | y_0)."""
    s = schedules.cosine(50, beta_scale)
    y_t, y_0 = torch.tensor([[1.3]]).double(), torch.tensor([[-0.4]]).double()
    for t in range(2, 51):
        alpha, beta = s.alpha[t - 1], s.beta[t - 1]
        a, b = s.bar_alpha[t - 2], s.bar_beta[t - 2]
        precision = alpha**2 / beta**2 + 1 / b**2
        mean = (alpha * y_t / beta**2 + a * y_0 / b**2) / precision
        got, std = posterior(y_t, y_0, torch.tensor([t]), torch.zeros(1).bool(), s)
        assert torch.allclose(got, mean, rtol=1e-10)
        assert torch.allclose(std[0], precision.rsqrt(), rtol=1e-10)
        assert torch.allclose(std[0], s.tilde_beta[t - 1], rtol=1e-10)


@pytest.mark.parametrize(
    "schedule", [schedules.cosine(40, 0.5), schedules.linear(40), schedules.variance_exploding(40)]
)
def test_diffuse_has_the_marginal_of_the_chain(schedule: schedules.Schedule) -> None:
    """Steps of Eq. 7 and one of Eq. 8, y_0 -> bar_alpha y_0 + bar_beta eps: the same mean of y_0, the same variance."""
    one, zero, nothing = torch.ones(1).double(), torch.zeros(1).double(), torch.zeros(1).bool()
    mean, variance = 2 * one, zero
    for t in range(1, 41):
        alpha, beta = schedule.alpha[t - 1], schedule.beta[t - 1]
        mean, variance = alpha * mean, alpha**2 * variance + beta**2  # independent noise in every step
        drawn = diffuse(2 * one, zero, torch.tensor(t), nothing, schedule)
        spread = diffuse(zero, one, torch.tensor(t), nothing, schedule)
        assert torch.allclose(drawn, mean, rtol=1e-10) and torch.allclose(spread, variance.sqrt(), rtol=1e-10)


def test_diffuse_is_of_the_given_noise_and_time() -> None:
    """bar_alpha y_0 + bar_beta eps entry by entry, each draw at a time of its own, between whole ones too."""
    y_0, eps, t = randn(3, 4, 5, seed=1), randn(3, 4, 5, seed=2), torch.tensor([1.0, 40.25, 1000.0])
    mask = torch.arange(5) == 2
    bar_alpha, bar_beta = (value.float()[:, None, None] for value in SCHEDULE.at(t))
    y_t = diffuse(y_0, eps, t, mask, SCHEDULE)
    assert torch.allclose(y_t, (bar_alpha * y_0 + bar_beta * eps) * ~mask, rtol=1e-6) and y_t.dtype == torch.complex64


@pytest.mark.parametrize("t", [1, 500, 1000])
def test_measured_entries_get_nothing(t: int) -> None:
    p = problem("sense")
    y_c = p.A(p.x).masked_fill(p.mask, 0)[None]
    eps = MaskedNoise(y_c, p.mask, [0])()
    everywhere = eps + torch.where(p.mask, 1.0, 0.0)  # noise that forgot the mask
    y_t = diffuse(y_c, everywhere, torch.tensor([t]), p.mask, SCHEDULE)
    assert (y_t[:, p.mask.expand(p.y_m.shape)] == 0).all()
    assert torch.allclose(eps_of(y_t, y_c, torch.tensor([t]), SCHEDULE), eps, rtol=1e-6)
    assert torch.allclose(denoised_of(y_t, eps, torch.tensor([t]), SCHEDULE), y_c, atol=1e-8)


def batch(name: str, n: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    p = problem(name)
    y_c = p.A(p.x).masked_fill(p.mask, 0).expand(n, *p.y_m.shape)
    eps = MaskedNoise(y_c, p.mask, range(n))()
    t = torch.tensor([1, 10, 500, 1000])[:n]
    return y_c, eps, t, p.mask


@pytest.mark.parametrize("loss", [l_simple, l_vlb])
@pytest.mark.parametrize("name", OPERATORS)
def test_both_parameterisations_are_one_loss(name: str, loss) -> None:
    y_c, eps, t, mask = batch(name)
    y_t = diffuse(y_c, eps, t, mask, SCHEDULE)
    guess = eps + 0.1 * torch.randn(eps.shape, dtype=eps.dtype, generator=torch.Generator().manual_seed(3))
    y_0 = denoised_of(y_t, guess, t, SCHEDULE)
    a = loss(guess, y_c, eps, t, mask, SCHEDULE, "eps")
    b = loss(y_0, y_c, eps, t, mask, SCHEDULE, "denoised")
    assert a.shape == (4,) and torch.allclose(a, b, rtol=1e-6)
    zero = loss(eps, y_c, eps, t, mask, SCHEDULE, "eps")
    assert (zero == 0).all()


@pytest.mark.parametrize("loss", [l_simple, l_vlb])
def test_losses_ignore_measured_entries(loss) -> None:
    y_c, eps, t, mask = batch("fourier")
    wild = torch.where(mask, 1e6, 0.5 * eps)
    calm = torch.where(mask, 0.0, 0.5 * eps)
    assert torch.equal(loss(wild, y_c, eps, t, mask, SCHEDULE), loss(calm, y_c, eps, t, mask, SCHEDULE))


def test_l_simple_of_no_prediction_is_one() -> None:
    """Whatever mask, size and kind of number: a wrong count of entries, or of parts, would show. Noise of 1 in each
    part stands for noise of variance 1."""
    for dtype, one in ((torch.float64, 1.0), (torch.complex128, 1 - 1j)):
        y_c = torch.zeros(8, 60, 80, dtype=dtype)
        for mask in (torch.arange(80) % 4 == 0, (torch.arange(60) % 3 == 0)[:, None], randn(60, 80).real > 0):
            eps = torch.full_like(y_c, one).masked_fill(mask, 0)
            loss = l_simple(torch.zeros_like(eps), y_c, eps, torch.full((8,), 7), mask, SCHEDULE)
            assert torch.allclose(loss, torch.ones(8).double(), rtol=1e-12)


@pytest.mark.parametrize("step_noise", ["beta", "tilde_beta"])
def test_l_vlb_is_the_kl_divergence(step_noise: str) -> None:
    """|mu~ - mu_theta|^2 / 2 sigma_t^2 with the means of Eq. 9 and Eq. 10, summed over entries and parts."""
    y_c, eps, t, mask = batch("fourier")
    t = torch.tensor([2, 10, 500, 1000])
    y_t, guess = diffuse(y_c, eps, t, mask, SCHEDULE), 0.7 * eps
    mean, _ = posterior(y_t, y_c, t, mask, SCHEDULE)
    alpha, beta, bar_beta = (v[t - 1, None, None] for v in (SCHEDULE.alpha, SCHEDULE.beta, SCHEDULE.bar_beta))
    mu_theta = (y_t - beta**2 / bar_beta * guess) / alpha
    sigma = getattr(SCHEDULE, step_noise)[t - 1]
    kl = (mean - mu_theta).abs().square().flatten(1).sum(1) / (2 * sigma**2)
    assert torch.allclose(l_vlb(guess, y_c, eps, t, mask, SCHEDULE, "eps", step_noise), kl, rtol=1e-6)


def test_l_vlb_is_finite_at_the_first_step() -> None:
    y_c, eps, _, mask = batch("fourier")
    loss = l_vlb(0 * eps, y_c, eps, torch.ones(4, dtype=torch.long), mask, SCHEDULE, "eps", "tilde_beta")
    assert torch.isfinite(loss).all()


def test_the_exact_denoiser_minimises_the_loss() -> None:
    """On draws of the posterior, D beats D scaled by 5 % either way: the loss asks for E[y_0 | y_t], nothing else."""
    p, n = problem("fourier"), 4000
    g = torch.Generator().manual_seed(0)
    u = torch.view_as_complex(torch.randn(n, len(p.posterior.x_factor), 2, dtype=torch.float64, generator=g))
    x = p.posterior.x_mean + torch.tensordot(u, p.posterior.x_factor, dims=1)
    y_c = p.A(x).masked_fill(p.mask, 0)
    eps = MaskedNoise(y_c[:1].expand_as(y_c), p.mask, range(n))()
    t = torch.full((n,), 800)
    y_t = diffuse(y_c, eps, t, p.mask, SCHEDULE)
    exact = p.posterior.denoiser(SCHEDULE)(y_t, torch.tensor(800))

    def loss(scale: float) -> float:
        prediction = p.posterior.y_mean + scale * (exact - p.posterior.y_mean)
        return float(l_simple(prediction, y_c, eps, t, p.mask, SCHEDULE, "denoised").mean())

    assert loss(1.0) < min(loss(0.95), loss(1.05))


def test_wrong_input_is_refused() -> None:
    y_c, eps, t, mask = batch("fourier")
    with pytest.raises(ValueError, match=r"prediction has shape \(4, 5\), expected \(4, 5, 6\)"):
        l_simple(eps[..., 0], y_c, eps, t, mask, SCHEDULE)
    with pytest.raises(ValueError, match="parameterisation is 'v', expected one of: eps, denoised"):
        l_simple(eps, y_c, eps, t, mask, SCHEDULE, "v")
    with pytest.raises(ValueError, match="step_noise is 'gamma', expected one of: beta, tilde_beta"):
        l_vlb(eps, y_c, eps, t, mask, SCHEDULE, step_noise="gamma")
    with pytest.raises(ValueError, match=r"eps has shape \(5, 6\), expected \(4, 5, 6\)"):
        diffuse(y_c, eps[0], t, mask, SCHEDULE)
    with pytest.raises(ValueError, match=r"mask has shape \(7,\)"):
        l_simple(eps, y_c, eps, t, torch.ones(7).bool(), SCHEDULE)


def test_times_outside_the_schedule_do_not_look_right() -> None:
    """t counted from 0, as the authors' program does, must not silently read step T."""
    y_c, eps, _, mask = batch("fourier")
    for wrong in (0, 1001):
        t = torch.full((4,), wrong)
        mean, std = posterior(eps, y_c, t, mask, SCHEDULE)
        assert std.isnan().all() and mean[..., ~mask].isnan().all()
        assert l_vlb(0 * eps, y_c, eps, t, mask, SCHEDULE).isnan().all()
    assert SCHEDULE.at(torch.tensor([-1.0, 1000.5]))[0].isnan().all()
