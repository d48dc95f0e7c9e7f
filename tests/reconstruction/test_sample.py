"""Measurement -> samples: the posterior's, in the input's scale, with the measured data in them; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm import Measurement
from mcddpm.diffusion.samplers import Snapshot
from mcddpm.diffusion.schedules import Spacing
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.supervised import Supervised
from mcddpm.models.unet import UNet
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.masks import sparse_views
from mcddpm.physics.measurement import measure
from mcddpm.physics.sense import Sense
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.sample import check, reconstruct
from mcddpm.system import memory
from mcddpm.system.progress import Notice
from tests.problems import Exact, problem, scaled, tiny
from tests.scans import MASK, SIZE


def kspace(seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(SIZE, SIZE, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


def measured(seed: int = 0, scale: float = 1.0) -> Measurement:
    return Measurement.from_kspace(kspace(seed, scale), MASK)


def counted(model: Denoiser, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that its network gets from now on."""
    sizes: list[int] = []
    own = model.network.forward
    monkeypatch.setattr(model.network, "forward", lambda x, *rest: sizes.append(len(x)) or own(x, *rest))
    return sizes


def test_mean_and_spread_are_those_of_the_posterior() -> None:
    """With the exact denoiser of a Gaussian prior, through all of the scaling, 2000 samples have its mean and std."""
    p = problem("fourier")
    m = measure(p.A(p.x), p.mask, p.A, p.x)
    recon = reconstruct(Exact(scaled(p.prior, m.scale)), m, samples=2000, steps=40, sampler="dpmpp_2m")
    error = (recon.samples.mean(0) - p.posterior.x_mean).norm()
    assert error < 2 * p.posterior.x_std.norm() * (2 / 2000) ** 0.5
    spread = torch.view_as_real(recon.samples).std(0).square().mean(-1).sqrt()
    assert torch.allclose(spread, p.posterior.x_std, rtol=0.05)


def test_measured_data_come_back() -> None:
    for scale in (1.0, 3e4, 1e-5):
        y = kspace(scale=scale)
        recon = reconstruct(tiny(), measured(scale=scale), samples=3, steps=3)
        back = Fourier()(recon.samples)[..., MASK]
        assert (back - y[:, MASK]).abs().max() < 2e-6 * y.abs().max()
        assert (Fourier()(recon.samples)[..., ~MASK] - y[:, ~MASK]).abs().max() > 0.1 * y.abs().max()


def test_the_result_is_in_the_scale_of_the_input() -> None:
    one, many = (reconstruct(tiny(), measured(scale=s), samples=2, steps=2) for s in (1.0, 1e4))
    assert torch.allclose(1e4 * one.mean, many.mean, rtol=1e-3)
    assert torch.allclose(1e4 * one.std, many.std, rtol=2e-2, atol=1e-3 * float(many.mean.max()))


def test_numpy_in_numpy_out() -> None:
    y = kspace().numpy() * MASK.numpy()
    from_numpy = reconstruct(tiny(), Measurement.from_kspace(y), samples=2, steps=2)
    from_torch = reconstruct(tiny(), Measurement.from_kspace(torch.from_numpy(y)), samples=2, steps=2)
    for name in ("samples", "mean", "std"):
        a, b = getattr(from_numpy, name), getattr(from_torch, name)
        assert isinstance(a, np.ndarray) and isinstance(b, Tensor)
        np.testing.assert_array_equal(a, b.numpy())


def test_a_sample_is_the_same_alone_and_among_many() -> None:
    five, three = (reconstruct(tiny(), measured(), samples=n, steps=3, seed=4).samples for n in (5, 3))
    assert torch.allclose(five[:3], three, atol=1e-5)
    other = reconstruct(tiny(), measured(), samples=3, steps=3, seed=5).samples
    assert not torch.allclose(other, three, atol=1e-2)


def test_a_plan_and_its_settings_as_keywords_are_the_same() -> None:
    plan = DrawPlan(3, "heun", 2, "karras", seed=4)
    keywords = {"samples": 3, "sampler": "heun", "steps": 2, "grid": "karras", "seed": 4}
    one, two = reconstruct(tiny(), measured(), plan), reconstruct(tiny(), measured(), **keywords)
    assert torch.equal(one.samples, two.samples) and one.plan == two.plan == plan and one.calls == 3
    changed = reconstruct(tiny(), measured(), plan, seed=5)
    assert changed.plan == replace(plan, seed=5) and not torch.allclose(changed.samples, one.samples, atol=1e-2)


def test_every_step_is_shown() -> None:
    seen: list[Snapshot] = []
    reconstruct(tiny(), measured(), samples=3, steps=4, callback=seen.append)
    assert [(now.step, now.steps) for now in seen] == [(k, 4) for k in (1, 2, 3, 4)]
    assert all(now.y.shape == (3, SIZE, SIZE) for now in seen) and seen[-1].t == 0


@pytest.mark.parametrize(
    ("plan", "spacing"),
    [
        (DrawPlan(1, steps=4), "log_sigma"),
        (DrawPlan(1, steps=4, grid="karras"), "karras"),
        (DrawPlan(1, "ancestral", 4), "uniform"),
        (DrawPlan(1, "ancestral", 4, "karras"), "karras"),
    ],
)
def test_steps_are_spread_as_the_plan_says(plan: DrawPlan, spacing: Spacing) -> None:
    seen: list[float] = []
    model = tiny()
    reconstruct(model, measured(), plan, callback=lambda now: seen.append(now.t))
    assert seen == model.grid(4, spacing)[1:].tolist()


# --- what is computed once ------------------------------------------------------------------------------------------


def operators() -> list[tuple[Any, Tensor, Tensor, dict[str, Any]]]:
    """Each with a mask, an image, and what a model for it is configured by."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, SIZE, dtype=torch.complex64, generator=g)
    views = sparse_views(24, acceleration=4, seed=0)
    return [
        (Fourier(), MASK, x, {}),
        (Sense(coil_maps(3, (SIZE, SIZE), 0)), MASK, x, {"operator": {"kind": "sense", "maps": "simulated:3"}}),
        (Radon(SIZE, 24), views, x.abs(), {"operator": {"kind": "radon", "views": 24}}),
    ]


@pytest.mark.parametrize("k", range(3), ids=["fourier", "sense", "radon"])
@pytest.mark.parametrize("parameterisation", ["denoised", "eps"])
def test_the_zero_filled_image_is_found_once_a_scan(k: int, parameterisation: str, monkeypatch) -> None:
    """A+ y_M does not change from call to call: twice as many steps and samples need it no more often."""
    A, mask, x, extra = operators()[k]
    m = measure(A(x), mask, A, x)
    model = tiny(extra | {"model": {"parameterisation": parameterisation}})
    own, seen = type(A).pinv, []

    def pinv(self: object, y: Tensor) -> Tensor:
        seen.append(y.numel() == m.y_m.numel() and torch.equal(y.reshape(m.y_m.shape), m.y_m))
        return own(self, y)

    monkeypatch.setattr(type(A), "pinv", pinv)
    times = []
    for settings in ({"samples": 2, "steps": 2}, {"samples": 2, "steps": 2}, {"samples": 40, "steps": 4}):
        seen.clear()
        reconstruct(model, m, **settings)
        times.append(sum(seen))
    assert times[1] == times[2] == 2, "to see if the scan is like those of training, and for the network"
    assert times[0] == (2 if parameterisation == "denoised" else 4), "the first time eps is asked of no noise, too"


@pytest.mark.parametrize("parameterisation", ["denoised", "eps"])
def test_finding_it_once_changes_nothing(parameterisation: str) -> None:
    m, model = measured(), tiny({"model": {"parameterisation": parameterisation}})
    g, t = torch.Generator().manual_seed(1), torch.tensor(300.0)
    y_t = torch.randn(3, SIZE, SIZE, dtype=torch.complex64, generator=g).masked_fill(MASK, 0)
    y_m = m.y_m[None]
    alike = model.conditioned(y_m, m.mask, m.operator)(y_t, t)
    assert torch.equal(alike, model.denoise(y_t, t, y_m.expand(3, SIZE, SIZE), m.mask, m.operator))


def test_mean_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model, m = tiny(), measured()
    sizes = counted(model, monkeypatch)
    recon = reconstruct(model, m, sampler="mean", samples=20)
    assert recon.samples.shape == (1, SIZE, SIZE) and recon.calls == 1 and recon.std.isnan().all()
    assert sizes == [1, 1, 1]  # two of them to find out what a sample takes, once
    reconstruct(model, m, sampler="mean")
    assert len(sizes) == 4


# --- memory ---------------------------------------------------------------------------------------------------------


def test_batches_stay_within_the_memory_and_do_not_change_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    m, model = measured(), tiny()
    call: Callable[[], Tensor] = lambda: model.denoise(m.y_m[None], torch.tensor(1.0), m.y_m[None], MASK)  # noqa: E731
    one = memory.peak_bytes(call) + 6 * 8 * SIZE * SIZE
    sizes = counted(model, monkeypatch)
    tight = reconstruct(model, m, samples=7, steps=2, memory=memory.PROCESS + 3.5 * memory.SCRATCH * one)
    assert sizes == [1, 1, 3, 3, 3, 3, 1, 1]  # a look at what one takes, then three, three and one, twice each
    sizes.clear()
    reconstruct(model, m, samples=3, steps=2)
    assert sizes == [3, 3]  # what one takes is known by now
    assert torch.allclose(tight.samples, reconstruct(tiny(), m, samples=7, steps=2).samples, atol=1e-5)
    assert tight.notices == ()
    sizes.clear()
    reconstruct(model, m, samples=40, steps=1, memory="100GB")
    assert sizes == [32, 8]  # beyond 32 a batch is not faster


def test_too_little_memory_for_one_sample_is_told() -> None:
    recon = reconstruct(tiny(), measured(), samples=2, steps=1, memory="1MB")
    told = "one sample of this size takes more than 0.001 GB; drawing one at a time all the same"
    assert recon.notices == (Notice("memory", told),) and recon.samples.shape == (2, SIZE, SIZE)


# --- what cannot be done --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples is 0, expected 1 or more"),
        ({"steps": 0}, "steps is 0, expected 1 or more"),
        ({"sampler": "magic"}, "sampler is 'magic', expected one of: ancestral"),
        ({"grid": "magic"}, "grid is 'magic', expected one of: uniform, log_sigma, karras"),
        ({"sampler": "ancestral", "steps": 2000}, "2000 steps uniform in t, expected 1 to 1000"),
        ({"memory": "lots"}, "memory is 'lots', expected a size as 2GB"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reconstruct(tiny(), measured(), **settings)


def test_settings_that_are_unknown() -> None:
    with pytest.raises(TypeError, match=r"no setting sample; known: samples, sampler, steps, grid, seed, memory"):
        reconstruct(tiny(), measured(), sample=2)


def test_models_that_draw_no_samples() -> None:
    model = Supervised(UNet(2, 2, channels=8, multipliers=(1,), heads=1, attention=(), time=False), operator=Fourier())
    with pytest.raises(ValueError, match="a Supervised, which draws no samples; expected a diffusion model"):
        reconstruct(model, measured())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is a prior, which is shown no measurement"):
        check(tiny({"model": {"conditional": False}}), DrawPlan())
