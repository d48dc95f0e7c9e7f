"""Samplers against closed forms: the posterior itself, orders, equivalences, bit-exact measurements, seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple, get_args

import pytest
import torch
from torch import Tensor

from mcddpm.diffusion import schedules
from mcddpm.diffusion.samplers import SAMPLERS, MaskedNoise, sample
from mcddpm.diffusion.schedules import Schedule, Spacing
from mcddpm.physics.sense import Sense
from tests.diffusion.test_gaussian import noisy
from tests.problems import OPERATORS, Problem, problem

DRAWING = [name for name in SAMPLERS if name != "mean"]
EVERYWHERE = [*OPERATORS, "plane"]
CASES: dict[str, tuple[str, dict[str, object]]] = {  # each sampler with its settings
    "ancestral": ("ancestral", {}),
    "ancestral, tilde_beta": ("ancestral", {"step_noise": "tilde_beta"}),
    "ddim": ("ddim", {}),
    "ddim, half the noise": ("ddim", {"eta": 0.5}),
    "heun": ("heun", {}),
    "dpmpp_2m": ("dpmpp_2m", {}),
    "dpmpp_2m_sde": ("dpmpp_2m_sde", {}),
    "dpmpp_2m_sde, half the noise": ("dpmpp_2m_sde", {"eta": 0.5}),
}
SCHEDULES = {
    "cosine 0.5": schedules.cosine(1000, 0.5),
    "cosine": schedules.cosine(1000),
    "linear": schedules.linear(1000),
    "linear 0.3": schedules.linear(500, 0.3),
    "exploding": schedules.variance_exploding(),
}
COSINES = list(SCHEDULES)[:2]


def refuse() -> Tensor:
    raise AssertionError("a deterministic sampler asked for noise")


# --- what is drawn, exactly -----------------------------------------------------------------------------------------
# Samplers are affine in the noise that they are given, so that nothing needs to be drawn.


@lru_cache(maxsize=8)
def known(name: str) -> Problem:
    return problem(name)


def fine_grid(schedule: Schedule, spacing: str) -> Tensor:
    """The paper's 250 steps, uniform in t; or 400, which leave little of the solver's own error."""
    if spacing == "uniform":
        return schedule.grid(250, spacing)
    low, high = min(1e-3, float(schedule.sigma[0])), min(1000.0, float(schedule.sigma[-1]))
    return schedule.grid(400, spacing, sigma_min=low, sigma_max=high)


class Errors(NamedTuple):
    """Of what a sampler draws, relative to the posterior: mean and std of the worst pixel in units of its std, std of
    all pixels in norm, and the covariance of all of the data in norm."""

    mean: float
    worst: float
    std: float
    covariance: float


def errors(p: Problem, sampler: str, grid: Tensor, schedule: Schedule, **settings: object) -> Errors:
    posterior = p.posterior
    y_mean, variances = posterior.moments_of(partial(SAMPLERS[sampler], **settings), grid, schedule)
    mean, std = posterior.image_moments(y_mean, variances)
    true_mean, true_std = posterior.image_moments(posterior.y_mean, posterior.variances)
    return Errors(
        float(((mean - true_mean).abs() / true_std).max()),
        float((std / true_std - 1).abs().max()),
        float((std - true_std).norm() / true_std.norm()),
        float((variances - posterior.variances).norm() / posterior.variances.norm()),
    )


def start(p: Problem, grid: Tensor, schedule: Schedule) -> tuple[float, float]:
    """Errors of mean and variance of the exact flow, which come of starting at bar_beta z, without bar_alpha y_0."""
    bar_alpha, bar_beta = (float(value) for value in schedule.at(grid[0]))
    y = p.posterior.flow(torch.zeros_like(p.y_m), bar_alpha, bar_beta)
    std = p.posterior.image_moments(y, p.posterior.variances)[1]
    mean = (p.A.pinv(y - p.posterior.y_mean).abs() / std).max()
    top = float(p.posterior.variances.max())
    return float(mean), top / (top + (bar_beta / bar_alpha) ** 2)


# By the order of the sampler and the spacing of the steps: worst pixel, all pixels, covariance.
TOLERANCE = {
    (1, "log_sigma"): (0.02, 0.02, 0.04),
    (1, "karras"): (0.025, 0.025, 0.045),
    (1, "uniform"): (0.025, 0.025, 0.05),
    (2, "log_sigma"): (3e-4, 3e-4, 6e-4),
    (2, "karras"): (8e-4, 8e-4, 1.5e-3),
    (2, "uniform"): (5e-3, 3e-3, 6e-3),
}


@pytest.mark.parametrize("spacing", get_args(Spacing))
@pytest.mark.parametrize(
    ("name", "schedule"),
    [*itertools.product(EVERYWHERE, COSINES), *(("plane", name) for name in SCHEDULES if name not in COSINES)],
)
@pytest.mark.parametrize("case", CASES)
def test_each_sampler_draws_the_posterior(case: str, name: str, schedule: str, spacing: str) -> None:
    """No Monte-Carlo error to hide behind. Deterministic samplers keep the start's error, and noise makes up for it."""
    p, (sampler, settings) = known(name), CASES[case]
    grid = fine_grid(SCHEDULES[schedule], spacing)
    found = errors(p, sampler, grid, SCHEDULES[schedule], **settings)
    mean, variance = start(p, grid, SCHEDULES[schedule])
    worst, std, covariance = TOLERANCE[SAMPLERS[sampler].order, spacing]
    assert found.mean < 1.05 * mean + 1e-3
    assert found.worst < worst + variance and found.std < std + variance and found.covariance < covariance + variance


def several_coils(coils: int, columns: int) -> Problem:
    """4 x 5 pixels by so many coils, so many columns of 5 measured: coils * columns / 5 entries a pixel. (Without
    noise, many of them leave nothing to draw.)"""
    p, g = known("sense"), torch.Generator().manual_seed(3)
    A = Sense(torch.randn(coils, 4, 5, dtype=torch.complex128, generator=g))
    mask = torch.arange(5) < columns
    return Problem(A, mask, p.x, A(p.x).masked_fill(~mask, 0), p.prior, p.posterior)


NOISY = {
    "fourier": lambda: known("fourier"),
    "radon": lambda: known("radon"),
    "half as many entries as pixels": lambda: several_coils(2, 1),
    "1.6 times": lambda: several_coils(2, 4),
    "6 times": lambda: several_coils(10, 3),
}


@pytest.mark.parametrize("kind", ["a number", "by entry", "none in part"])
@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("case", CASES)
def test_each_sampler_draws_the_posterior_of_a_noisy_measurement(case: str, name: str, kind: str) -> None:
    """Every entry that is not known exactly moves, measured or not, and D knows y_M and its noise. A design in which
    measured entries start at their own level would be wrong for deterministic samplers: they would end where they are
    taken, with no spread of their own."""
    p, (sampler, settings), schedule = NOISY[name](), CASES[case], SCHEDULES["cosine"]
    s, y = noisy(p, kind)
    p = replace(p, y_m=y, posterior=p.prior.posterior(p.A, y, p.mask, s))
    grid = fine_grid(schedule, "log_sigma")
    found = errors(p, sampler, grid, schedule, **settings)
    mean, variance = start(p, grid, schedule)
    worst, std, covariance = TOLERANCE[SAMPLERS[sampler].order, "log_sigma"]
    assert found.mean < 1.05 * mean + 1e-3
    assert found.worst < worst + variance and found.std < std + variance and found.covariance < covariance + variance


@pytest.mark.parametrize("kind", ["a number", "by entry", "none in part"])
@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("case", CASES)
def test_short_grids_come_close_to_it(case: str, name: str, kind: str) -> None:
    """In 24 steps the mean is right, and the std to what a solver of its order leaves."""
    p, (sampler, settings), schedule = NOISY[name](), CASES[case], SCHEDULES["cosine"]
    s, y = noisy(p, kind)
    p = replace(p, y_m=y, posterior=p.prior.posterior(p.A, y, p.mask, s))
    found = errors(p, sampler, schedule.grid(24, "log_sigma", sigma_min=1e-3, sigma_max=1000.0), schedule, **settings)
    assert found.mean < 0.02 and found.std < {1: 0.25, 2: 0.045}[SAMPLERS[sampler].order]


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("case", CASES)
def test_exact_moments_are_those_of_the_sampler_in_the_space_of_the_data(case: str, name: str) -> None:
    """`moments_of` rests on D being diagonal in the axes of K. Here is what each unit of each step's noise, entry by
    entry, becomes through the denoiser itself: the sum of their squares is the variance."""
    p, schedule, (sampler, settings) = known(name), SCHEDULES["cosine 0.5"], CASES[case]
    grid, places = schedule.grid(6, "karras", sigma_max=50.0), (~p.mask.expand(p.y_m.shape)).flatten().nonzero()[:, 0]
    units = torch.eye(p.y_m.numel(), dtype=p.y_m.dtype)[places].reshape(-1, *p.y_m.shape)
    state = p.y_m.new_zeros(1 + len(grid) * len(units), *p.y_m.shape)
    rows = iter(range(1, len(state), len(units)))

    def noise() -> Tensor:
        z, row = torch.zeros_like(state), next(rows)
        z[row : row + len(units)] = units
        return z

    y_T = noise() * schedule.at(grid[0])[1]
    drawn = SAMPLERS[sampler](p.posterior.denoiser(schedule), y_T, grid, schedule, noise=noise, **settings)
    y_mean, variances = p.posterior.moments_of(partial(SAMPLERS[sampler], **settings), grid, schedule)
    assert torch.allclose(drawn[0], y_mean, rtol=1e-9, atol=1e-9)
    became = drawn[1:] - drawn[0]
    assert torch.allclose(became.abs().square().sum(), variances.sum(), rtol=1e-9)
    _, std = p.posterior.image_moments(y_mean, variances)
    assert torch.allclose(p.A.pinv(became).abs().square().sum(0).sqrt(), std, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("case", "tolerance"), [(case, 0.2 if SAMPLERS[CASES[case][0]].order == 1 else 0.25) for case in CASES]
)
def test_order_of_the_spread(case: str, tolerance: float) -> None:
    """The std's error falls as n^-order."""
    p, schedule, (sampler, settings) = known("fourier"), SCHEDULES["cosine 0.5"], CASES[case]
    grids = [schedule.grid(n, "log_sigma", sigma_min=1e-3, sigma_max=1000.0) for n in (50, 100, 200)]
    found = [errors(p, sampler, grid, schedule, **settings).std for grid in grids]
    for coarse, fine in pairwise(found):
        assert abs(math.log2(coarse / fine) - SAMPLERS[sampler].order) <= tolerance


@pytest.mark.parametrize(("sampler", "tolerance"), [("ddim", 0.2), ("heun", 0.25), ("dpmpp_2m", 0.25)])
@pytest.mark.parametrize("spacing", ["log_sigma", "karras"])
@pytest.mark.parametrize("name", OPERATORS)
def test_order_of_each_path(sampler: str, tolerance: float, spacing: str, name: str) -> None:
    """ODE solvers: the end point nears the probability flow's own, known in closed form, as n^-order."""
    p, schedule = problem(name), schedules.cosine(1000, 0.5)
    z = MaskedNoise(p.y_m.expand(5, *p.y_m.shape), p.mask, range(5))()
    errors = []
    for n in (50, 100, 200):
        grid = schedule.grid(n, spacing, sigma_min=1e-3, sigma_max=1000.0)
        bar_alpha, bar_beta = (float(value) for value in schedule.at(grid[0]))
        y = SAMPLERS[sampler](p.posterior.denoiser(schedule), bar_beta * z, grid, schedule, noise=refuse)
        errors.append(float((y - p.posterior.flow(bar_beta * z, bar_alpha, bar_beta)).norm()))
    for coarse, fine in pairwise(errors):
        assert abs(math.log2(coarse / fine) - SAMPLERS[sampler].order) <= tolerance


@pytest.mark.parametrize("sampler", DRAWING)
def test_sample_itself_draws_the_posterior(sampler: str) -> None:
    """Drawn, through `sample`: its start, noise, seeds and mask, on a grid that begins far below T. Mean, pixel std and
    std along random directions, within 4.5 standard errors; a factor of sqrt 2 would be sixteen."""
    p, schedule, n = known("plane"), schedules.variance_exploding(1000, 0.002, 5000.0), 800
    grid = schedule.grid(250 if SAMPLERS[sampler].order == 1 else 40, "log_sigma", sigma_max=200.0)
    y = sample(
        p.posterior.denoiser(schedule), p.y_m[None], p.mask, schedule, grid=grid, seeds=range(n), sampler=sampler
    )
    x, factor, center = p.A.pinv(y), p.posterior.x_factor, p.posterior.x_mean
    g = torch.Generator().manual_seed(2)
    directions = [*torch.eye(x[0].numel(), dtype=x.dtype), *torch.randn(20, x[0].numel(), dtype=x.dtype, generator=g)]
    for direction in directions:
        along = (x - center).flatten(1) @ direction.conj()
        std = (factor.flatten(1) @ direction.conj()).norm()
        for part in (along.real, along.imag):
            assert abs(part.mean()) < 4.5 * std / n**0.5
            assert abs(part.square().mean().sqrt() / std - 1) < 4.5 / (2 * n) ** 0.5


def test_a_respaced_schedule_tells_the_network_its_own_times() -> None:
    p, schedule = problem("fourier"), schedules.cosine(1000, 0.5)
    few = schedule.respace(40)
    denoise, call = p.posterior.denoiser(schedule), {"seeds": [1], "sampler": "ancestral"}
    a = sample(denoise, p.y_m[None], p.mask, schedule, grid=schedule.grid(40, "uniform"), **call)
    b = sample(denoise, p.y_m[None], p.mask, few, grid=few.grid(40, "uniform"), **call)
    assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("spacing", ["uniform", "karras"])
def test_ddim_with_eta_one_is_ancestral(name: str, spacing: str) -> None:
    p, schedule = problem(name), schedules.cosine(1000, 0.5)
    grid = schedule.grid(30, spacing)
    a = draw(p, schedule, grid, "ddim", eta=1.0)
    b = draw(p, schedule, grid, "ancestral", step_noise="tilde_beta")
    assert torch.allclose(a, b, rtol=1e-10, atol=1e-10)


def test_sde_solver_without_noise_is_the_ode_solver() -> None:
    p, schedule = problem("sense"), schedules.cosine(1000, 0.5)
    grid = schedule.grid(12, "karras", sigma_max=300.0)
    a, b = draw(p, schedule, grid, "dpmpp_2m_sde", eta=0.0), draw(p, schedule, grid, "dpmpp_2m")
    assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)


def test_ancestral_on_whole_steps_is_algorithm_2() -> None:
    """Written out from the paper's mu_theta and sigma_t = beta_t, with the schedule's own arrays, respaced to 50."""
    p, schedule = problem("fourier"), schedules.cosine(1000, 0.5)
    denoise, few = p.posterior.denoiser(schedule), schedule.respace(50)
    noise = MaskedNoise(p.y_m[None], p.mask, [3])
    y = noise() * few.bar_beta[-1]
    for i in reversed(range(few.T)):
        eps = (y - few.bar_alpha[i] * denoise(y, few.t[i])) / few.bar_beta[i]
        y = (y - few.beta[i] ** 2 / few.bar_beta[i] * eps) / few.alpha[i]
        if i:
            y = y + few.beta[i] * noise()
    drawn = draw(p, schedule, schedule.grid(50, "uniform"), "ancestral", seeds=[3])
    assert torch.allclose(drawn, torch.where(p.mask, p.y_m, y), rtol=1e-9, atol=1e-9)


def test_mean_is_the_posterior_mean_in_one_call() -> None:
    for name in OPERATORS:
        p, schedule = problem(name), schedules.cosine(1000, 0.5)
        calls = 0

        def denoise(y: Tensor, t: Tensor, p: Problem = p, schedule: Schedule = schedule) -> Tensor:
            nonlocal calls
            calls += 1
            return p.posterior.denoiser(schedule)(y, t)

        grid = schedule.grid(50, "log_sigma", sigma_max=1.0)  # `mean` starts at T all the same
        y = sample(denoise, p.y_m[None], p.mask, schedule, grid=grid, seeds=[0], sampler="mean")
        assert calls == SAMPLERS["mean"].calls(50) == 1
        assert torch.allclose(y[0], p.y_m + p.posterior.y_mean, atol=1e-2)


# --- what `sample` promises -----------------------------------------------------------------------------------------


def draw(p: Problem, schedule: Schedule, grid: Tensor, sampler: str, seeds: Sequence[int] = (5, 6), **settings: object):
    denoise = p.posterior.denoiser(schedule)
    return sample(denoise, p.y_m[None], p.mask, schedule, grid=grid, seeds=seeds, sampler=sampler, **settings)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_measured_entries_stay_bit_identical(sampler: str, name: str) -> None:
    """At every step, for a denoiser that tries to overwrite them, and down to the sign of zero."""
    p, schedule = problem(name), schedules.cosine(1000, 0.5)
    measured = p.mask.expand(p.y_m.shape)
    y_m = p.y_m.clone()
    y_m.view(-1)[measured.flatten().nonzero()[0]] = -0.0
    seen: list[Tensor] = []
    exact = p.posterior.denoiser(schedule)
    y = sample(
        lambda y, t: exact(y, t) + torch.where(p.mask, torch.nan, 0.0),
        y_m[None],
        p.mask,
        schedule,
        grid=schedule.grid(9, "karras"),
        seeds=[1, 2, 3],
        sampler=sampler,
        callback=lambda now: seen.append(now.y.clone()),
    )
    assert len(seen) == (1 if sampler == "mean" else 9)
    for state in [*seen, y]:
        for one in state:
            assert bits(one[measured]) == bits(y_m[measured])
    assert not torch.equal(y[0], y[1]) or sampler == "mean"


def bits(x: Tensor) -> bytes:
    return x.numpy().tobytes()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_state_is_zero_on_the_mask_inside_the_loop(sampler: str) -> None:
    p, schedule = problem("fourier"), schedules.cosine(1000, 0.5)
    states: list[Tensor] = []

    def denoise(y: Tensor, t: Tensor) -> Tensor:
        states.append(y.clone())
        return p.posterior.denoiser(schedule)(y, t)

    grid = schedule.grid(6, "log_sigma")
    sample(denoise, p.y_m[None], p.mask, schedule, grid=grid, seeds=[1, 2], sampler=sampler)
    assert len(states) == SAMPLERS[sampler].calls(6)
    for state in states:
        assert (state[:, p.mask.expand(p.y_m.shape)] == 0).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sample_k_does_not_depend_on_its_batch(sampler: str) -> None:
    """Alone, in a batch, in another order: the same bits, with a denoiser that treats entries one by one."""
    p, schedule = problem("fourier"), schedules.cosine(1000, 0.5)
    grid = schedule.grid(7, "karras", sigma_max=100.0)

    def run(*seeds: int) -> Tensor:
        def denoise(y: Tensor, t: Tensor) -> Tensor:
            return y / (1 + t)

        return sample(denoise, p.y_m[None], p.mask, schedule, grid=grid, seeds=seeds, sampler=sampler)

    together = run(11, 12, 13, 14)
    shuffled = run(13, 11, 14, 12)
    assert torch.equal(together[2], run(13)[0])
    assert torch.equal(together[[2, 0, 3, 1]], shuffled)
    assert not torch.equal(together[0], together[1])


def test_several_measurements_in_one_batch() -> None:
    """Slices with their own y_m and mask travel together, and come out as they would alone."""
    p, schedule = problem("fourier"), schedules.cosine(1000, 0.5)
    other = problem("fourier", seed=9)
    masks = torch.stack([p.mask, ~p.mask])[:, None, :]
    y_m = torch.stack([p.y_m, p.A(other.x).masked_fill(p.mask, 0)])
    grid = schedule.grid(5, "karras", sigma_max=100.0)
    both = sample(half, y_m, masks, schedule, grid=grid, seeds=[1, 2])
    for k in range(2):
        alone = sample(half, y_m[k : k + 1], masks[k : k + 1], schedule, grid=grid, seeds=[k + 1])
        assert torch.equal(both[k], alone[0])


def half(y: Tensor, t: Tensor) -> Tensor:
    return y / 2


def test_global_generator_is_untouched() -> None:
    p, schedule = problem("fourier"), schedules.cosine(1000, 0.5)
    before = torch.get_rng_state()
    draw(p, schedule, schedule.grid(4, "karras"), "ancestral")
    assert torch.equal(before, torch.get_rng_state())


def test_noise_has_variance_one_in_each_part_and_none_on_the_mask() -> None:
    mask = torch.tensor([True, False])
    z = MaskedNoise(torch.empty(2, 40_000, 2, dtype=torch.complex64), mask, [0, 1])()
    assert (z[..., 0] == 0).all()
    for part in (z[..., 1].real, z[..., 1].imag):
        assert torch.allclose(part.square().mean(1), torch.ones(2), atol=0.03)


def test_float32_stays_float32() -> None:
    p, schedule = problem("fourier"), schedules.cosine(1000, 0.5)
    y_m = p.y_m.to(torch.complex64)
    y = sample(lambda y, t: y / 2, y_m[None], p.mask, schedule, grid=schedule.grid(4, "karras"), seeds=[0])
    assert y.dtype == torch.complex64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(6)}, "mask has dtype torch.float32, expected torch.bool"),
        ({"mask": torch.ones(7).bool()}, r"mask has shape \(7,\), expected one that broadcasts to data \(1, 5, 6\)"),
        ({"mask": torch.ones(6).bool()}, "mask samples everything"),
        ({"y_m": torch.full((1, 5, 6), torch.nan)}, "y_m holds 30 NaN or infinite values"),
        ({"y_m": torch.full((1, 5, 6), torch.inf)}, "y_m holds 30 NaN or infinite values"),
        ({"y_m": torch.ones(1, 5, 6)}, "y_m holds 20 values off the mask"),
        ({"y_m": torch.ones(1, 5, 6, dtype=torch.int64)}, "y_m has dtype torch.int64"),
        ({"y_m": torch.zeros(3, 5, 6)}, "y_m has 3 measurements for 2 seeds"),
        ({"seeds": []}, "y_m has 1 measurements for 0 seeds"),
        ({"grid": torch.zeros(0)}, "the step grid is empty"),
        ({"grid": torch.zeros(1)}, "the step grid is empty"),
        ({"grid": torch.tensor([1.0, 2.0, 0.0])}, "expected falling times"),
        ({"grid": torch.tensor([2000.0, 0.0])}, "expected falling times from at most T = 1000 to 0"),
        ({"grid": torch.tensor([2.0, 1.0])}, "expected falling times"),
        ({"sampler": "euler"}, "sampler is 'euler', expected one of: ancestral, ddim"),
        ({"eta": 0.5}, "sampler dpmpp_2m has no setting eta; known: none"),
        ({"sampler": "ddim", "eta": 1.5}, "eta is 1.5, expected 0"),
        ({"sampler": "ancestral", "step_noise": "gamma"}, "step_noise is 'gamma', expected one of: beta, tilde_beta"),
        ({"denoise": lambda y, t: y * torch.nan}, "ended in NaN or infinite values"),
        (
            {"denoise": lambda y, t: y[..., :2]},
            r"the denoiser returned torch.complex128 of shape \(2, 5, 2\), expected",
        ),
        ({"denoise": lambda y, t: y.real}, r"the denoiser returned torch.float64 of shape \(2, 5, 6\), expected"),
    ],
)
def test_wrong_input_is_refused(change: dict, message: str) -> None:
    p, schedule = problem("fourier"), schedules.cosine(1000, 0.5)
    call = {"denoise": half, "y_m": p.y_m[None], "mask": p.mask, "grid": schedule.grid(3, "karras"), "seeds": [0, 1]}
    with pytest.raises(ValueError, match=message):
        sample(schedule=schedule, **(call | change))


def test_samplers_alone_refuse_an_empty_grid() -> None:
    for sampler in SAMPLERS.values():
        with pytest.raises(ValueError, match="the step grid is empty"):
            sampler(half, torch.zeros(1, 2, 2), torch.zeros(1), schedules.cosine(10), noise=refuse)
