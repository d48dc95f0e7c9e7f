"""The closed forms that everything else is measured with, checked by other means."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcddpm.diffusion import schedules
from mcddpm.diffusion.gaussian import GaussianPosterior
from tests.problems import OPERATORS, Exact, Problem, problem, randn


def textbook_posterior(p: Problem) -> tuple[Tensor, Tensor]:
    """Mean and covariance of x by C - C H^H (H C H^H)^+ H C, with dense matrices."""
    prior = p.prior
    L = prior.factor.flatten(1).mT
    C = L @ L.mH
    pixels = torch.eye(len(C), dtype=C.dtype).reshape(-1, *prior.mean.shape)
    H = p.A(pixels).flatten(1).mT[p.mask.expand(p.y_m.shape).flatten()]
    gain = C @ H.mH @ torch.linalg.pinv(H @ C @ H.mH, hermitian=True, rtol=1e-12)
    rest = p.y_m.flatten()[p.mask.expand(p.y_m.shape).flatten()] - H @ prior.mean.flatten()
    return prior.mean.flatten() + gain @ rest, C - gain @ H @ C


@pytest.mark.parametrize("name", OPERATORS)
def test_posterior_is_the_textbook_formula(name: str) -> None:
    p = problem(name)
    mean, covariance = textbook_posterior(p)
    assert torch.allclose(p.posterior.x_mean.flatten(), mean, atol=1e-7)
    assert torch.allclose(p.posterior.x_std.flatten().square(), covariance.diagonal().real, atol=1e-8)
    assert p.posterior.x_std.max() > 0.1, "a posterior without spread would test nothing"


@pytest.mark.parametrize("name", OPERATORS)
def test_posterior_explains_the_measurement(name: str) -> None:
    p = problem(name)
    assert torch.allclose(p.A(p.posterior.x_mean).masked_fill(~p.mask, 0), p.y_m, atol=1e-9)
    assert p.A(p.posterior.x_factor).masked_fill(~p.mask, 0).abs().max() < 1e-9


@pytest.mark.parametrize("name", OPERATORS)
def test_denoiser_is_the_gradient_of_the_log_density(name: str) -> None:
    """Tweedie: D = y / bar_alpha + sigma^2 score, for y ~ N(bar_alpha m, bar_alpha^2 K + bar_beta^2)."""
    p, schedule = problem(name), schedules.cosine(1000, 0.5)
    t = torch.tensor(700)
    a, b = (float(v) for v in schedule.at(t))
    unmeasured = ~p.mask.expand(p.y_m.shape).flatten()
    G = p.A(p.posterior.x_factor).flatten(1).mT[unmeasured]
    K = G @ G.mH
    m = p.posterior.y_mean.flatten()[unmeasured]
    y = torch.randn(p.y_m.shape, dtype=p.y_m.dtype, generator=torch.Generator().manual_seed(0)).masked_fill(p.mask, 0)
    score = -torch.linalg.solve(a**2 * K + b**2 * torch.eye(len(K), dtype=K.dtype), y.flatten()[unmeasured] - a * m)
    expected = (y.flatten()[unmeasured] + b**2 * score) / a
    got = p.posterior.denoiser(schedule)(y[None], t)[0].flatten()
    assert torch.allclose(got[unmeasured], expected, rtol=1e-9, atol=1e-9)
    assert (got[~unmeasured] == 0).all()


def test_flow_keeps_the_marginals() -> None:
    """The flow maps N(bar_alpha m, bar_alpha^2 K + bar_beta^2) onto N(m, K): push the covariance through it."""
    p = problem("fourier")
    a, b = 0.3, 2.0
    basis = torch.eye(p.y_m.numel(), dtype=p.y_m.dtype).reshape(-1, *p.y_m.shape)
    J = (p.posterior.flow(basis, a, b) - p.posterior.flow(0 * basis, a, b)).flatten(1).mT
    G = p.A(p.posterior.x_factor).masked_fill(p.mask, 0).flatten(1).mT
    K = G @ G.mH
    noisy = a**2 * K + b**2 * torch.eye(len(K), dtype=K.dtype)
    assert torch.allclose(J @ noisy @ J.mH, K, atol=1e-9)


@pytest.mark.parametrize("name", OPERATORS)
def test_many_measurements_with_one_mask_have_each_their_own_posterior(name: str) -> None:
    p = problem(name)
    given = p.prior.measured_by(p.A, p.mask)
    other = 2 * p.y_m
    for y_m in (p.y_m, other, p.y_m):
        found, expected = given(y_m), p.prior.posterior(p.A, y_m, p.mask)
        for key in ("y_m", "x_mean", "y_mean", "x_std", "variances"):
            assert torch.equal(getattr(found, key), getattr(expected, key)), key
    assert not torch.equal(given(other).x_mean, given(p.y_m).x_mean)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_exact_denoiser_of_the_tests_knows_each_posterior(name: str) -> None:
    """One model, many measurements, masks and operators: and where nothing was measured, the prior."""
    p, schedule = problem(name), schedules.cosine(1000, 0.5)
    model, t = Exact(p.prior, schedule), torch.tensor(600.0)
    y_t = randn(3, *p.y_m.shape, dtype=p.y_m.dtype)
    nothing = torch.zeros_like(p.mask)
    other = p.mask.roll(1, -1)
    for y_m, mask in ((p.y_m, p.mask), (2 * p.y_m, p.mask), (p.A(p.x) * other, other), (p.y_m, p.mask)):
        expected = p.prior.posterior(p.A, y_m, mask).denoiser(schedule)(y_t, t)
        assert torch.equal(model.denoise(y_t, t, y_m[None], mask, p.A), expected)
        assert torch.equal(model.conditioned(y_m[None], mask, p.A)(y_t, t), expected)
    prior = GaussianPosterior(p.A, 0 * p.y_m, nothing, p.prior.mean, p.prior.factor).denoiser(schedule)(y_t, t)
    assert torch.equal(model.denoise(y_t, t, 0 * p.y_m[None], nothing, p.A), prior)


# --- a measurement with noise ---------------------------------------------------------------------------------------


def noisy(p: Problem, kind: str, seed: int = 5) -> tuple[Tensor, Tensor]:
    """The std of the noise of each entry, (data), and the problem's measurement with it."""
    g = torch.Generator().manual_seed(seed)
    by_entry = 0.1 + torch.rand(p.y_m.shape, dtype=torch.float64, generator=g)
    s = torch.full_like(by_entry, 0.4) if kind == "a number" else by_entry
    if kind == "none in part":
        s = s.masked_fill(torch.rand(p.y_m.shape, generator=g) < 0.08, 0)
    parts = torch.randn(*p.y_m.shape, 2, dtype=torch.float64, generator=g)
    eps = torch.view_as_complex(parts) if p.y_m.is_complex() else parts[..., 0]
    return s, (p.y_m + s * eps).masked_fill(~p.mask, 0)


@pytest.mark.parametrize("kind", ["a number", "by entry", "none in part"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_noisy_measurement_by_the_textbook(name: str, kind: str) -> None:
    """x | y ~ N(mean + K (y - A mean), C - K B C), K = C B^H (B C B^H + s^2)^+, in matrices. Entries without noise come
    to be known exactly."""
    p = problem(name)
    s, y = noisy(p, kind)
    found = p.prior.posterior(p.A, y, p.mask, s)
    measured = p.mask.expand(y.shape).flatten()
    L, B = p.prior.factor.flatten(1).mT, p.A(p.prior.factor).flatten(1).mT[measured]
    among = B @ B.mH + torch.diag(s.flatten()[measured].square()).to(B.dtype)
    K = L @ B.mH @ torch.linalg.pinv(among, rtol=1e-13, hermitian=True)
    mean = p.prior.mean.flatten() + K @ (y - p.A(p.prior.mean)).flatten()[measured]
    covariance, F = L @ L.mH - K @ B @ L.mH, found.x_factor.flatten(1).mT
    assert float((found.x_mean.flatten() - mean).norm() / mean.norm()) < 1e-6
    assert float((F @ F.mH - covariance).norm() / covariance.norm()) < 1e-6
    assert torch.equal(found.mask.expand(y.shape), p.mask.expand(y.shape) & (s == 0))


@pytest.mark.parametrize("name", OPERATORS)
def test_no_noise_is_the_limit_of_little(name: str) -> None:
    """At the noise's first order or faster, down to what double precision leaves."""
    p = problem(name)
    close = [p.prior.posterior(p.A, p.y_m, p.mask, s) for s in (1e-1, 1e-3, 1e-5)]
    off = [float((c.x_mean - p.posterior.x_mean).norm() / p.posterior.x_mean.norm()) for c in close]
    wide = [float((c.x_std - p.posterior.x_std).norm() / p.posterior.x_std.norm()) for c in close]
    for errors in (off, wide):
        assert errors[0] > 3 * errors[1] and errors[1] < 0.2 and errors[2] < 0.01
