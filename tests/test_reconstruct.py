"""Measurement -> samples, mean, std: the input's scale, the measured data, each sample its own, what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mcddpm import Measurement
from mcddpm.diffusion import schedules
from mcddpm.diffusion.gaussian import GaussianPosterior, GaussianPrior
from mcddpm.evaluation import baselines
from mcddpm.models.card import build, card_of
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.supervised import Supervised
from mcddpm.models.unet import UNet
from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import measure
from mcddpm.physics.sense import Sense
from mcddpm.reconstruction.mismatch import why_unlike
from mcddpm.reconstruction.sample import reconstruct
from mcddpm.system import memory
from mcddpm.system.settings import from_dict
from mcddpm.training.settings import Config
from tests.problems import problem

SIZE = 32
MASK = masks.random_columns(SIZE, acceleration=4, seed=0)
TINY = {"network": {"channels": 8, "multipliers": [1, 2], "attention": [2], "heads": 2, "patch": 2}}


def kspace(seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(SIZE, SIZE, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


def tiny(extra: dict | None = None, shape: tuple[int, int] = (SIZE, SIZE), seed: int = 0) -> Denoiser:
    card = card_of(from_dict(Config, TINY | (extra or {})), shape)
    model = build(card)
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        nn.init.normal_(p, std=0.1, generator=g)
    model.card = card
    assert isinstance(model, Denoiser)
    return model.eval().requires_grad_(False)


class Exact(Denoiser):
    """A denoiser that knows the posterior of a Gaussian prior."""

    def __init__(self, posterior: GaussianPosterior) -> None:
        network = UNet(4, 2, channels=8, multipliers=(1,), heads=1, attention=())
        super().__init__(network, schedules.cosine(1000, 0.5), data_std=1.0, operator=None)
        self.exact = posterior.denoiser(self.schedule)

    def denoise(self, y_t: Tensor, t: Tensor, *_: object) -> Tensor:
        return self.exact(y_t, t)


def test_mean_and_spread_are_those_of_the_posterior() -> None:
    """With the exact denoiser of a Gaussian prior, through all of the scaling, 2000 samples have its mean and std."""
    p = problem("fourier")
    m = measure(p.A(p.x), p.mask, p.A, p.x)
    scaled = GaussianPrior(p.prior.mean * m.scale, p.prior.factor * m.scale).posterior(p.A, m.y_m, m.mask)
    recon = reconstruct(Exact(scaled), m, samples=2000, steps=40, sampler="dpmpp_2m")
    error = (recon.samples.mean(0) - p.posterior.x_mean).norm()
    assert error < 2 * p.posterior.x_std.norm() * (2 / 2000) ** 0.5
    spread = torch.view_as_real(recon.samples).std(0).square().mean(-1).sqrt()
    assert torch.allclose(spread, p.posterior.x_std, rtol=0.05)


def test_measured_data_come_back() -> None:
    for y in (kspace(), kspace(scale=3e4), kspace(scale=1e-5)):
        m = Measurement.from_kspace(y, MASK)
        recon = reconstruct(tiny(), m, samples=3, steps=3)
        back = Fourier()(recon.samples)[..., MASK]
        assert (back - y[:, MASK]).abs().max() < 2e-6 * y.abs().max()
        assert (Fourier()(recon.samples)[..., ~MASK] - y[:, ~MASK]).abs().max() > 0.1 * y.abs().max()


def test_the_result_is_in_the_scale_of_the_input() -> None:
    one, many = (
        reconstruct(tiny(), Measurement.from_kspace(kspace(scale=s), MASK), samples=2, steps=2) for s in (1.0, 1e4)
    )
    assert torch.allclose(1e4 * one.mean, many.mean, rtol=1e-3)
    assert torch.allclose(1e4 * one.std, many.std, rtol=2e-2, atol=1e-3 * float(many.mean.max()))


def test_mean_and_std_are_of_magnitudes() -> None:
    recon = reconstruct(tiny(), Measurement.from_kspace(kspace(), MASK), samples=4, steps=2)
    assert torch.allclose(recon.mean, recon.samples.abs().mean(0))
    assert torch.allclose(recon.std, recon.samples.abs().std(0))


def test_numpy_in_numpy_out() -> None:
    y = kspace().numpy() * MASK.numpy()
    from_numpy = reconstruct(tiny(), Measurement.from_kspace(y), samples=2, steps=2)
    from_torch = reconstruct(tiny(), Measurement.from_kspace(torch.from_numpy(y)), samples=2, steps=2)
    for name in ("samples", "mean", "std"):
        a, b = getattr(from_numpy, name), getattr(from_torch, name)
        assert isinstance(a, np.ndarray) and isinstance(b, Tensor)
        np.testing.assert_array_equal(a, b.numpy())


def test_a_sample_is_the_same_alone_and_among_many() -> None:
    m = Measurement.from_kspace(kspace(), MASK)
    five, three = (reconstruct(tiny(), m, samples=n, steps=3, seed=4).samples for n in (5, 3))
    assert torch.allclose(five[:3], three, atol=1e-5)
    other = reconstruct(tiny(), m, samples=3, steps=3, seed=5).samples
    assert not torch.allclose(other, three, atol=1e-2)


def test_batches_stay_within_the_memory_and_do_not_change_the_samples(monkeypatch) -> None:
    m, model, sizes = Measurement.from_kspace(kspace(), MASK), tiny(), []
    own = model.denoise
    monkeypatch.setattr(model, "denoise", lambda y, *rest: sizes.append(len(y)) or own(y, *rest))
    one = memory.peak_bytes(lambda: own(m.y_m[None], torch.tensor(1.0), m.y_m[None], MASK)) + 6 * 8 * SIZE * SIZE
    sizes.clear()
    model.bytes_a_sample.clear()
    tight = reconstruct(model, m, samples=7, steps=2, memory=memory.PROCESS + 3.5 * memory.SCRATCH * one)
    assert sizes == [1, 1, 3, 3, 3, 3, 1, 1]  # a look at what one takes, then three, three and one, twice each
    sizes.clear()
    reconstruct(model, m, samples=3, steps=2)
    assert sizes == [3, 3]  # what one takes is known by now
    assert torch.allclose(tight.samples, reconstruct(tiny(), m, samples=7, steps=2).samples, atol=1e-5)
    with pytest.warns(UserWarning, match=r"takes more than 0.001 GB"):
        reconstruct(tiny(), m, samples=2, steps=1, memory="1MB")


def test_mean_is_one_call() -> None:
    model = tiny()
    calls = []
    own = model.network.forward
    model.network.forward = lambda *a: calls.append(1) or own(*a)  # type: ignore[method-assign]
    m = Measurement.from_kspace(kspace(), MASK)
    recon = reconstruct(model, m, sampler="mean", samples=20)
    assert recon.samples.shape == (1, SIZE, SIZE) and recon.calls == 1 and recon.std.isnan().all()
    assert len(calls) == 3  # two of them to find out what a sample takes, once
    reconstruct(model, m, sampler="mean")
    assert len(calls) == 4


def test_from_kspace_finds_what_was_sampled() -> None:
    y = kspace() * MASK
    assert torch.equal(Measurement.from_kspace(y).mask.all(0), MASK)
    assert torch.equal(Measurement.from_kspace(y).y_m, Measurement.from_kspace(kspace(), MASK).y_m)
    plane = masks.gaussian_2d((SIZE, SIZE), acceleration=4, seed=0)
    assert torch.equal(Measurement.from_kspace(kspace() * plane).mask, plane)


def test_several_coils() -> None:
    maps = coil_maps(4, (SIZE, SIZE), 0)
    x = torch.zeros(SIZE, SIZE, dtype=torch.complex64)
    x[8:24, 6:20] = 1.0
    y = Sense(maps)(x)
    m = Measurement.from_kspace(y, MASK, maps=maps)
    assert isinstance(m.operator, Sense) and m.truth is not None
    assert torch.allclose(m.truth / m.scale, x, atol=1e-5)
    for mask in (
        MASK,
        masks.gaussian_2d((SIZE, SIZE), acceleration=3, seed=0),
        masks.radial((SIZE, SIZE), acceleration=3, seed=0),
    ):
        assert isinstance(Measurement.from_kspace(y, mask).operator, Sense)  # maps from whatever centre is sampled
    with pytest.raises(ValueError, match="the centre of k-space is not sampled"):
        Measurement.from_kspace(y, torch.arange(SIZE) < 8)
    with pytest.warns(UserWarning, match="by MRI with several coils, the model was trained on MRI with one coil"):
        recon = reconstruct(tiny(), m, samples=2, steps=2)
    assert recon.samples.shape == (2, SIZE, SIZE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(4, 4),), "expected complex"),
        ((torch.zeros(4, dtype=torch.complex64),), r"shape \(4,\), expected complex \(H, W\)"),
        ((kspace(),), "fully sampled and no mask was given"),
        ((kspace(), torch.ones(5).bool()), r"mask has shape \(5,\)"),
        ((kspace() * float("nan"),), "NaN or infinite"),
        ((torch.zeros(4, 4, dtype=torch.complex64), torch.arange(4) < 2), "zero everywhere"),
    ],
)
def test_k_space_that_cannot_be_used(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Measurement.from_kspace(*arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples is 0, expected 1 or more"),
        ({"steps": 0}, "steps is 0, expected 1 or more"),
        ({"sampler": "magic"}, "unknown sampler 'magic'; known: ancestral"),
        ({"grid": "magic"}, "unknown spacing 'magic'"),
        ({"memory": "lots"}, "memory is 'lots', expected a size as 2GB"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reconstruct(tiny(), Measurement.from_kspace(kspace(), MASK), **settings)


def test_a_supervised_network_draws_no_samples() -> None:
    model = Supervised(UNet(2, 2, channels=8, multipliers=(1,), heads=1, attention=(), time=False), operator=Fourier())
    with pytest.raises(ValueError, match="a Supervised, which draws no samples"):
        reconstruct(model, Measurement.from_kspace(kspace(), MASK))  # type: ignore[arg-type]


# --- a scan that the model was not made for -------------------------------------------------------------------------


DISC = (torch.hypot(torch.arange(SIZE)[:, None] - 16.0, torch.arange(SIZE) - 16.0) < 10).to(torch.complex64)


def energetic(low: float, high: float) -> Denoiser:
    model = tiny()
    model.card["measured_rms"] = [low, high]
    return model


def rms(m: Measurement) -> float:
    return float(m.operator.pinv(m.y_m).abs().square().mean().sqrt())


def test_a_scan_like_the_training_data_gets_no_warning() -> None:
    m = Measurement.from_kspace(kspace(), MASK)
    assert why_unlike(energetic(0.9 * rms(m), 1.1 * rms(m)), m) == []


@pytest.mark.parametrize(
    ("model", "m", "reason"),
    [
        (
            tiny(shape=(48, 40)),
            Measurement.from_kspace(kspace(), MASK),
            "the matrix is 32 x 32, the model was trained on 48 x 40",
        ),
        (
            tiny(),
            Measurement.from_kspace(kspace(), torch.arange(SIZE) % 2 == 0),
            "under-sampled 2.0x, the model was trained on 4x and 8x",
        ),
        (
            tiny(),
            Measurement.from_kspace(kspace(), masks.radial((SIZE, SIZE), acceleration=4, seed=0)),
            "the mask is made not of columns",
        ),
        (
            tiny(),
            Measurement.from_kspace(kspace(), MASK[:, None].expand(SIZE, SIZE)),
            "the mask is made of rows: transpose the scan",
        ),
        (
            tiny(),
            Measurement.from_kspace(torch.fft.ifftshift(Fourier()(DISC), -2), MASK),
            "9[0-9] % of the energy lies in the outer half of the rows",
        ),
        (
            energetic(0.9, 1.0),
            Measurement.from_kspace(kspace(), MASK),
            "the measured energy is unlike the training data's",
        ),
        (
            energetic(0.0001, 0.001),
            Measurement.from_kspace(kspace(), MASK),
            "the measured energy is unlike the training data's",
        ),
    ],
)
def test_what_is_unlike_is_said_and_it_still_runs(model: Denoiser, m: Measurement, reason: str) -> None:
    (said,) = why_unlike(model, m)
    assert re.search(reason, said)
    with pytest.warns(UserWarning, match=reason):
        recon = reconstruct(model, m, samples=2, steps=1)
    assert recon.warnings == (said,) and recon.mean.shape == (SIZE, SIZE)


def test_a_model_of_another_kind_of_scan_is_refused() -> None:
    A = Radon(SIZE, 24)
    x = torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    ct = measure(A(x), masks.sparse_views(24, acceleration=4, seed=0), A, x)
    with pytest.raises(ValueError, match="measured by CT, the model is for MRI with one coil"):
        reconstruct(tiny(), ct)
    model = tiny({"operator": {"kind": "radon", "views": 24}})
    recon = reconstruct(model, ct, samples=2, steps=2)
    assert not torch.is_complex(recon.samples) and torch.allclose(recon.mean, recon.samples.mean(0))
    assert torch.allclose(baselines.zero_filled(ct).mean, A.pinv(ct.y_m) / ct.scale)


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "size"), [("2GB", 2e9), ("500M", 5e8), ("1.5 gb", 1.5e9), ("64", 64), ("3KiB", 3e3)])
def test_sizes(text: str, size: float) -> None:
    assert memory.parse(text) == size


def test_peak_counts_what_lives_at_once() -> None:
    def call() -> None:
        a = torch.zeros(1000)  # 4000 bytes
        b = a + 1  # 8000
        del a
        c = b.view(10, 100).add_(1) * 2  # 8000: a view and an in-place result are nothing new
        del b, c
        torch.zeros(500)

    assert memory.peak_bytes(call) == 8000
