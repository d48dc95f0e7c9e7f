"""Schedules against the authors' arrays, their defining recursions, and round trips between t and sigma."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from mcddpm.diffusion.schedules import SCHEDULES, Schedule, ScheduleChoice, Spacing, cosine, linear, variance_exploding
from mcddpm.system.settings import from_dict
from tests.golden import golden_json

NAMES = ("alpha", "beta", "bar_alpha", "bar_beta", "tilde_beta")

# Rows of the authors' arrays at T = 1000 and beta scale 0.5: t -> alpha, beta, bar_alpha, bar_beta, tilde_beta.
PAPER = {
    1: (0.9999793576745362, 0.0032126400678402, 0.9999793576745362, 0.0032126400678402, 0.0),
    2: (0.9999769288574929, 0.0033963860475750667, 0.9999562870082711, 0.00467504204879822, 0.0023339610186175713),
    500: (0.9984258178600561, 0.02804410022838167, 0.702740058941169, 0.3557233509201225, 0.028000892414608014),
    1000: (0.031622776601683805, 0.4997499374687304, 4.928252131369544e-05, 0.4999999993928082, 0.4997493311871942),
}
# The same, respaced to 250: position -> (kept t, alpha, beta, bar_alpha, bar_beta, tilde_beta).
RESPACED = {
    2: (5, 0.9998931456741392, 0.0073091934212115425, 0.9998725055543971, 0.007983931305629615, 0.0029411334779422195),
    125: (498, 0.9937860279571679, 0.05565368504671434, 0.7049543197630399, 0.3546263551427861, 0.05530774741210173),
    250: (1000, 0.00790574214593282, 0.4999843745661263, 4.928252131369544e-05, 0.49999999939280826, 0.49997466043284),
}


@pytest.mark.parametrize("t", PAPER)
def test_the_papers_schedule(t: int) -> None:
    schedule = cosine(1000, beta_scale=0.5)
    assert [getattr(schedule, name)[t - 1].item() for name in NAMES] == pytest.approx(PAPER[t], rel=1e-10)


@pytest.mark.parametrize("position", RESPACED)
def test_the_papers_schedule_respaced(position: int) -> None:
    schedule = cosine(1000, beta_scale=0.5).respace(250)
    row = [schedule.t[position - 1].item(), *(getattr(schedule, name)[position - 1].item() for name in NAMES)]
    assert row == pytest.approx(RESPACED[position], rel=1e-10)


@pytest.mark.parametrize("case", ["T=1000", "spaced_250"])
def test_all_of_the_authors_arrays(case: str) -> None:
    arrays = golden_json("schedule_cosine_x0.5.json")[case]
    schedule = cosine(1000, beta_scale=0.5)
    if case == "spaced_250":
        schedule = schedule.respace(250)
        assert (schedule.t - 1).tolist() == arrays["use_timesteps"]
    theirs = ("alphas", "betas", "bar_alphas", "bar_betas", "posterior_std")
    for name, key in zip(NAMES, theirs, strict=True):
        np.testing.assert_allclose(getattr(schedule, name), arrays[key], rtol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    "schedule", [cosine(100, 0.5), cosine(100), linear(100), linear(1000, 0.3), variance_exploding(50), cosine(1)]
)
def test_marginals_follow_the_recursion(schedule: Schedule) -> None:
    """bar_alpha_t = alpha_t bar_alpha_{t-1}; bar_beta_t^2 = alpha_t^2 bar_beta_{t-1}^2 + beta_t^2 (Eqs 7, 8)."""
    a, b2 = 1.0, 0.0
    for t in range(schedule.T):
        tilde = schedule.beta[t] * b2**0.5
        a, b2 = a * schedule.alpha[t], schedule.alpha[t] ** 2 * b2 + schedule.beta[t] ** 2
        assert schedule.bar_alpha[t].item() == pytest.approx(float(a), rel=1e-12)
        assert schedule.bar_beta[t].item() == pytest.approx(float(b2) ** 0.5, rel=1e-12)
        assert schedule.tilde_beta[t].item() == pytest.approx(float(tilde / b2**0.5), rel=1e-12)
    assert schedule.alpha.dtype == schedule.bar_beta.dtype == torch.float64


def test_variance_is_preserved_only_at_scale_one() -> None:
    """The trap: with beta x 0.5, bar_beta^2 is a quarter of 1 - bar_alpha^2."""
    one, half = cosine(1000), cosine(1000, 0.5)
    assert torch.allclose(one.bar_beta**2, 1 - one.bar_alpha**2, rtol=1e-9)
    assert torch.allclose(half.bar_beta**2, (1 - half.bar_alpha**2) / 4, rtol=1e-9)


def test_variance_exploding_is_geometric_in_sigma() -> None:
    schedule = variance_exploding(5, sigma_min=0.01, sigma_max=100.0)
    assert schedule.bar_beta.tolist() == pytest.approx([0.01, 0.1, 1, 10, 100])
    assert (schedule.bar_alpha == 1).all()


@pytest.mark.parametrize("n", [1, 2, 7, 250, 999, 1000])
def test_respacing_keeps_the_marginals(n: int) -> None:
    schedule = cosine(1000, 0.5)
    few = schedule.respace(n)
    assert few.T == n and few.t[-1] == 1000 and (few.t.diff() > 0).all()
    assert torch.allclose(few.bar_alpha, schedule.bar_alpha[few.t - 1], rtol=1e-12)
    assert torch.allclose(few.bar_beta, schedule.bar_beta[few.t - 1], rtol=1e-10)


@pytest.mark.parametrize("schedule", [cosine(1000, 0.5), linear(200), variance_exploding(30), cosine(1)])
def test_continuous_time(schedule: Schedule) -> None:
    whole = torch.arange(schedule.T + 1)
    bar_alpha, bar_beta = schedule.at(whole)
    assert bar_alpha[0] == 1 and bar_beta[0] == 0
    assert torch.allclose(bar_alpha[1:], schedule.bar_alpha, rtol=1e-14)
    assert torch.allclose(bar_beta[1:], schedule.bar_beta, rtol=1e-14)
    t = torch.linspace(0, schedule.T, 4321, dtype=torch.float64)
    bar_alpha, bar_beta = schedule.at(t)
    sigma = bar_beta / bar_alpha
    assert (sigma.diff() > 0).all()
    assert torch.allclose(schedule.time_of(sigma), t, rtol=1e-9)


def test_step_grids() -> None:
    schedule = cosine(1000, 0.5)
    for spacing in get_args(Spacing):
        grid = schedule.grid(10, spacing)
        assert len(grid) == 11 and grid[-1] == 0 and (grid.diff() < 0).all() and grid.dtype == torch.float64
        assert grid[0].item() == pytest.approx(1000)
    assert schedule.grid(250, "uniform")[:-1].flip(0).tolist() == schedule.respace(250).t.tolist()

    def sigma(grid: torch.Tensor) -> torch.Tensor:
        bar_alpha, bar_beta = schedule.at(grid[:-1])
        return bar_beta / bar_alpha

    geometric = sigma(schedule.grid(5, "log_sigma", sigma_min=0.01, sigma_max=100.0))
    assert geometric.tolist() == pytest.approx([100, 10, 1, 0.1, 0.01])
    karras = sigma(schedule.grid(5, "karras", sigma_min=0.01, sigma_max=100.0, rho=3.0))
    assert (karras ** (1 / 3)).diff().tolist() == pytest.approx([(0.01 ** (1 / 3) - 100 ** (1 / 3)) / 4] * 4)
    below = sigma(schedule.grid(3, "log_sigma", sigma_min=1e-4))
    assert below[-1].item() == pytest.approx(1e-4)  # finer than the schedule's own first step


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Schedule([0.9, 0.9], [0.1, 0.0]), r"beta is 0.0 at t = 2, expected a finite value above 0"),
        (lambda: Schedule([0.9, 0.9], [0.1, -0.1]), r"beta is -0.1 at t = 2"),
        (lambda: Schedule([0.9, 0.0], [0.1, 0.1]), r"alpha is 0.0 at t = 2"),
        (lambda: Schedule([0.9], [float("nan")]), r"beta is nan at t = 1"),
        (lambda: Schedule([0.9], [0.1, 0.1]), r"alpha and beta have shapes \(1,\) and \(2,\)"),
        (lambda: Schedule([], []), r"expected one \(T,\) for both with T of 1 or more"),
        (lambda: cosine(0), "T is 0, expected 1 step or more"),
        (lambda: cosine(10, beta_scale=0), "beta_scale is 0, expected a finite value above 0"),
        (lambda: linear(10), "expected values between 0 and 1"),
        (lambda: Schedule([0.5] * 1100, [0.1] * 1100), "values that are infinite or do not rise"),
        (lambda: variance_exploding(1), "T is 1, expected 2 steps or more"),
        (lambda: variance_exploding(10, 2.0, 1.0), "expected 0 < sigma_min < sigma_max"),
        (lambda: cosine(10).respace(0), "0 steps uniform in t, expected 1 to 10"),
        (lambda: cosine(10).respace(11), "11 steps uniform in t, expected 1 to 10"),
        (lambda: cosine(10).grid(0), "the step grid is empty: 0 steps"),
        (lambda: cosine(10).grid(5, "cubic"), "spacing is 'cubic', expected one of: uniform, log_sigma, karras"),
        (lambda: cosine(10).grid(5, sigma_max=1e9), "expected 0 < sigma_min < sigma_max"),
        (lambda: cosine(10).grid(5, sigma_min=0.0), "expected 0 < sigma_min < sigma_max"),
        (lambda: cosine(10).grid(5, "uniform", sigma_min=0.1), "uniform in t"),
        (lambda: cosine(10).time_of(-1.0), "expected values from 0 to"),
    ],
)
def test_wrong_settings_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_schedules_by_name() -> None:
    for name, make in SCHEDULES.items():
        assert make(100).T == 100, name


@pytest.mark.parametrize(
    ("choice", "schedule"),
    [
        (ScheduleChoice(), cosine(1000, 0.5)),
        (ScheduleChoice("cosine", T=50, beta_scale=1.0, sigma_max=3.0), cosine(50)),
        (ScheduleChoice("linear", T=500, beta_scale=0.3), linear(500, 0.3)),
        (
            ScheduleChoice("variance_exploding", T=50, sigma_min=0.01, sigma_max=100.0),
            variance_exploding(50, 0.01, 100),
        ),
    ],
)
def test_a_configuration_chooses_a_schedule(choice: ScheduleChoice, schedule: Schedule) -> None:
    made = choice.schedule()
    assert torch.equal(made.alpha, schedule.alpha) and torch.equal(made.beta, schedule.beta)


def test_a_configuration_names_a_known_schedule() -> None:
    with pytest.raises(ValueError, match="name is 'sine', expected one of: cosine, linear, variance_exploding"):
        from_dict(ScheduleChoice, {"name": "sine"})


def test_a_respaced_schedule_knows_the_networks_times() -> None:
    """Whole steps of its own are the kept ones; between them times lie in proportion."""
    schedule, few = cosine(1000, 0.5), cosine(1000, 0.5).respace(40)
    whole = torch.arange(41)
    assert few.original(whole).tolist() == [0, *few.t.tolist()]
    assert torch.equal(schedule.original(whole / 4), (whole / 4).double())
    half = few.original(torch.tensor([0.5, 1.5]))
    assert half.tolist() == [few.t[0].item() / 2, (few.t[0] + few.t[1]).item() / 2]
    again = few.respace(10)
    assert again.t[-1] == 1000 and set(again.t.tolist()) <= set(few.t.tolist())


def test_outside_the_schedule_nothing_looks_right() -> None:
    bar_alpha, bar_beta = cosine(10).at(torch.tensor([-0.1, 0.0, 10.0, 10.1]))
    assert bar_alpha.isnan().tolist() == bar_beta.isnan().tolist() == [True, False, False, True]


def test_on_a_device_a_schedule_is_the_same() -> None:
    few = cosine(1000, 0.5).respace(7)
    there = few.to("cpu")
    assert torch.equal(there.bar_beta, few.bar_beta) and torch.equal(there.t, few.t)
    assert repr(few) == "Schedule(T=7, sigma=0.00321...1.01e+04)"
