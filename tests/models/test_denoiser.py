"""The denoiser: both parameterisations against the formulas, for every operator, with nothing on M."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from mcddpm.diffusion import schedules
from mcddpm.diffusion.samplers import sample
from mcddpm.models.denoiser import Denoiser, Spectrum, from_channels, noise_gain, to_channels
from mcddpm.models.unet import UNet
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.sense import Sense
from tests.problems import OPERATORS, randn

SCHEDULE = schedules.cosine(1000, 0.5)
MASK = torch.arange(8) % 3 == 0


class Recorder(nn.Module):
    """Stands in for the network: keeps what it was shown and answers with a fixed image."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, images: Tensor, time: Tensor | None = None) -> Tensor:
        self.images, self.time = images, time
        return self.answer


def test_channels_round_trip() -> None:
    x = randn(2, 3, 4)
    assert torch.equal(from_channels(to_channels(x)), x)
    assert torch.equal(to_channels(x)[:, 0], x.real) and torch.equal(to_channels(x)[:, 1], x.imag)
    assert torch.equal(from_channels(to_channels(x.real)), x.real)


def test_eps_is_equation_12() -> None:
    y_m, y_t = randn(2, 8, 8, seed=1) * MASK, randn(2, 8, 8, seed=2) * ~MASK
    f, A = randn(2, 8, 8, seed=3), Fourier()
    network = Recorder(to_channels(f))
    model = Denoiser(network, SCHEDULE, parameterisation="eps", operator=A)
    eps = model.eps(y_t, torch.tensor([1, 700]), y_m, MASK)
    assert torch.allclose(eps, ~MASK * A(f))
    assert torch.allclose(network.images, torch.cat([to_channels(A.pinv(y_t + y_m)), to_channels(A.pinv(y_m))], 1))
    assert network.time.tolist() == [0.0, 699.0]  # the authors count from 0


@pytest.mark.parametrize("gain", [1.0, 0.3])
def test_denoised_is_preconditioned(gain: float) -> None:
    """y_0 = M^c A (x_w + c_out f), where noise of std sigma in the data is gain sigma in the image."""
    y_m, y_t = randn(2, 8, 8, seed=1) * MASK, randn(2, 8, 8, seed=2) * ~MASK
    f, A, s = randn(2, 8, 8, seed=3), Fourier(), 0.2
    network, t = Recorder(to_channels(f)), torch.tensor([100.0, 700.5])
    model = Denoiser(network, SCHEDULE, data_std=s, gain=gain, operator=A)
    y_0 = model.denoise(y_t, t, y_m, MASK)
    a, b = (v.float()[:, None, None] for v in SCHEDULE.at(t))
    sigma, x = gain * b / a, A.pinv(y_t / a)
    c_skip, c_out = s**2 / (sigma**2 + s**2), sigma * s / (sigma**2 + s**2).sqrt()
    assert torch.allclose(y_0, ~MASK * A(c_skip * x + c_out * f), atol=1e-5)
    assert torch.allclose(
        network.images, torch.cat([to_channels(c_skip * x / s), to_channels(A.pinv(y_m))], 1), atol=1e-5
    )
    assert torch.allclose(network.time, 100 * sigma.flatten().log(), rtol=1e-4)


@pytest.mark.parametrize("name", OPERATORS)
def test_network_owes_unit_variance_at_every_level_and_sees_less_of_more_noise(name: str) -> None:
    """An image of std s, measured: the answer the network owes has variance 1 in any units; what it sees, at most."""
    s, size = 0.1, 48
    A = {
        "fourier": Fourier(),
        "sense": Sense(torch.full((4, size, size), 0.5, dtype=torch.complex64)),
        "radon": Radon(size, 60),
    }[name]
    real = name == "radon"
    x_0 = randn(4, size, size, dtype=torch.float32 if real else torch.complex64)
    x_0 = x_0 * s / to_channels(A.pinv(A(x_0))).std()
    y_0 = A(x_0)
    x_0 = A.pinv(y_0)
    gain = noise_gain(A, tuple(y_0.shape[1:]), not real)
    assert gain < 0.2 if real else gain == pytest.approx(1, rel=0.05)
    eps = randn(*y_0.shape, dtype=y_0.dtype, seed=1) * (1 if real else 2**0.5)
    nothing = torch.zeros(y_0.shape[1:]).bool()
    for level in (0.03, 0.3, 3.0):
        sigma = level / gain
        t = SCHEDULE.time_of(sigma)
        network = Recorder(torch.zeros(4, 1 if real else 2, size, size))
        model = Denoiser(network, SCHEDULE, data_std=s, gain=gain, operator=A)
        a, b = (float(v) for v in SCHEDULE.at(t))
        model.denoise(a * y_0 + b * eps, t, 0 * y_0, nothing)
        seen = network.images[:, : 1 if real else 2].var().item()
        assert seen == pytest.approx(s**2 / (level**2 + s**2), rel=0.1)
        owed = (x_0 - s**2 / (level**2 + s**2) * A.pinv(y_0 + sigma * eps)) / (level * s / (level**2 + s**2) ** 0.5)
        assert to_channels(owed).var().item() == pytest.approx(1, rel=0.1)


def test_levels_far_above_the_data_look_alike() -> None:
    """So that the one-call mean, at T, is asked where the network was trained."""
    network = Recorder(torch.zeros(1, 2, 8, 8))
    model = Denoiser(network, SCHEDULE, data_std=0.1, operator=Fourier())
    times = []
    for t in (999.0, 1000.0):
        model.denoise(randn(1, 8, 8), torch.tensor(t), randn(1, 8, 8), MASK)
        times.append(network.time.item())
    assert times[0] == times[1] == pytest.approx(100 * math.log(10.0))


def test_double_precision_measurements_are_taken() -> None:
    model = Denoiser(UNet(4, 2, channels=8, multipliers=(1,), heads=2), SCHEDULE, operator=Fourier())
    y = randn(1, 8, 8, dtype=torch.complex128)
    assert model.denoise(y, torch.tensor(5.0), y * MASK, MASK).dtype == torch.complex128


@pytest.mark.parametrize("kind", ["eps", "denoised"])
def test_eps_and_denoise_belong_together(kind: str) -> None:
    y_m, y_t, t = randn(2, 8, 8, seed=1) * MASK, randn(2, 8, 8, seed=2) * ~MASK, torch.tensor([5, 900])
    model = Denoiser(Recorder(to_channels(randn(2, 8, 8, seed=3))), SCHEDULE, parameterisation=kind, operator=Fourier())
    a, b = (v.float()[:, None, None] for v in SCHEDULE.at(t))
    eps, y_0 = model.eps(y_t, t, y_m, MASK), model.denoise(y_t, t, y_m, MASK)
    assert torch.allclose(a * y_0 + b * eps, y_t, atol=1e-4)
    assert torch.equal(model(y_t, t, y_m, MASK), eps if kind == "eps" else y_0), "what it predicts by nature"
    assert (eps[..., MASK] == 0).all() and (y_0[..., MASK] == 0).all()


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_can_be_sampled(name: str) -> None:
    if name == "radon":
        A, answer = Radon(8, 10), torch.zeros(3, 1, 8, 8)
        mask, y = torch.arange(10) % 2 == 0, A(randn(1, 8, 8, dtype=torch.float32))
    else:
        A = Fourier() if name == "fourier" else Sense(randn(2, 8, 8, seed=4))
        mask, y, answer = MASK, A(randn(1, 8, 8)), torch.zeros(3, 2, 8, 8)
    y_m = y.masked_fill(~mask, 0)
    model = Denoiser(Recorder(answer), SCHEDULE, operator=None if name == "sense" else A)
    many = y_m.expand(3, *y_m.shape[1:])
    drawn = sample(
        lambda y, t: model.denoise(y, t, many, mask, A), y_m, mask, SCHEDULE, grid=model.grid(4), seeds=range(3)
    )
    assert drawn.shape == (3, *y_m.shape[1:]) and drawn.dtype == y_m.dtype
    if name == "sense":
        with pytest.raises(ValueError, match=r"pass A=Sense\(maps\)"):
            model.denoise(many, torch.tensor(5.0), many, mask)


@pytest.mark.parametrize("kind", ["eps", "denoised"])
@pytest.mark.parametrize("name", OPERATORS)
def test_many_draws_of_one_scan_are_as_each_alone(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`conditioned` is `denoise`, for which A+ y_M is found once and not in every call."""
    if name == "radon":
        A, mask, y = Radon(8, 10), torch.arange(10) % 2 == 0, randn(4, *Radon(8, 10).data_shape, dtype=torch.float32)
    else:
        A = Fourier() if name == "fourier" else Sense(randn(2, 8, 8, seed=4))
        mask, y = MASK, randn(4, *A(randn(8, 8)).shape)
    channels = 1 if name == "radon" else 2
    network = UNet(2 * channels, channels, channels=8, multipliers=(1,), heads=1, attention=(), groups=4)
    for p in network.parameters():
        nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(0))
    model = Denoiser(network, SCHEDULE, parameterisation=kind, operator=None).eval()
    y_m, y_t, t = y[:1].masked_fill(~mask, 0), y[1:].masked_fill(mask, 0), torch.tensor(300.0)
    asked: list[Tensor] = []
    own = A.pinv
    monkeypatch.setattr(A, "pinv", lambda y: asked.append(y) or own(y))
    denoise = model.conditioned(y_m, mask, A)
    many = [denoise(y_t, t) for _ in range(3)]
    assert [one is y_m for one in asked].count(True) == 1
    assert all(torch.equal(many[0], again) for again in many)
    for k in range(3):
        alone = model.denoise(y_t[k : k + 1], t, y_m, mask, A)
        assert torch.allclose(many[0][k : k + 1], alone, atol=1e-5)
    assert torch.allclose(model.denoise(y_t, t, y_m.expand(3, *y_m.shape[1:]), mask, A), many[0], atol=1e-5)
    assert not torch.allclose(model.denoise(y_t, t, 2 * y_m, mask, A), many[0], atol=1e-3), "what was measured counts"


def test_each_draw_may_have_its_own_time() -> None:
    model = Denoiser(Timed(), SCHEDULE, data_std=0.2, operator=Fourier())
    y_m, y_t, t = randn(2, 8, 8, seed=1) * MASK, randn(2, 8, 8, seed=2) * ~MASK, torch.tensor([100.0, 700.5])
    both = model.denoise(y_t, t, y_m, MASK)
    for k in range(2):
        assert torch.allclose(model.denoise(y_t[k : k + 1], t[k], y_m[k : k + 1], MASK)[0], both[k], atol=1e-6)


class Timed(nn.Module):
    """A network whose answer depends on the time alone."""

    def forward(self, images: Tensor, time: Tensor) -> Tensor:
        return (time / 100).reshape(-1, 1, 1, 1).expand(-1, 2, *images.shape[2:])


@pytest.mark.parametrize("gain", [1.0, 0.05])
def test_steps_reach_from_far_above_the_data_to_far_below(gain: float) -> None:
    """In the units of the data, where noise of std sigma has std gain x sigma in the image."""
    model = Denoiser(Timed(), SCHEDULE, data_std=0.1, gain=gain, operator=None)
    grid = model.grid(10)
    a, b = SCHEDULE.at(grid[:-1])
    sigma = gain * b / a
    assert len(grid) == 11 and grid[-1] == 0
    assert sigma[0].item() == pytest.approx(3.0) and sigma[-1].item() == pytest.approx(0.005)
    assert torch.allclose(sigma[1:] / sigma[:-1], (sigma[-1] / sigma[0]) ** (1 / 9), rtol=1e-6)
    assert torch.equal(model.grid(10, "uniform"), SCHEDULE.grid(10, "uniform"))
    assert not torch.equal(model.grid(10, "karras"), grid) and model.grid(10, "karras")[0] == grid[0]


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="parameterisation is 'v', expected one of: eps, denoised"):
        Denoiser(Recorder(torch.zeros(1)), SCHEDULE, parameterisation="v", operator=None)
    with pytest.raises(ValueError, match=r"data_std is 0 and gain 1.0, expected values above 0"):
        Denoiser(Recorder(torch.zeros(1)), SCHEDULE, data_std=0, operator=None)


def test_a_spectrum_is_measured_and_looked_up() -> None:
    """Noise of std 1 / (1 + r) in each part: found again, and at another matrix size scaled by sqrt(pixels)."""
    i = torch.arange(48) - 24
    radius = torch.hypot(i[:, None].float(), i.float())
    y = 2**0.5 * randn(400, 48, 48) / (1 + radius)  # torch's complex randn has 1/2 in each part
    spectrum = Spectrum.of(y)
    assert torch.allclose(spectrum.std[:24], 1 / (1 + torch.arange(24.0)), rtol=0.12)
    power = spectrum.power(y)
    assert torch.allclose(power[24, 24:44].sqrt(), 1 / (1 + torch.arange(20.0)), rtol=0.12)
    larger = spectrum.power(torch.zeros(1, 96, 96, dtype=torch.complex64))
    assert torch.allclose(larger[48, 48:68], 4 * power[24, 24:44], rtol=1e-4)
    assert larger[0, 0] == pytest.approx(4 * float(spectrum.std[-1]) ** 2)  # beyond what is known: as at its edge
    assert torch.allclose(spectrum.power(torch.zeros(1, 5, 48, 48, dtype=torch.complex64)), power / 5)


def test_with_a_spectrum_the_skip_is_wieners_estimate() -> None:
    """f = 0: y_0 = S^2 / (S^2 + sigma^2) y, the best linear one, for one coil and, by their share, several."""
    spectrum = Spectrum([5.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02], (8, 8))
    t = torch.tensor([300.0])
    a, b = (float(v) for v in SCHEDULE.at(300))
    for A, shape in ((Fourier(), (1, 8, 8)), (Sense(torch.full((4, 8, 8), 0.5, dtype=torch.complex64)), (1, 4, 8, 8))):
        x = randn(1, 8, 8, seed=2)
        y_t = A(x)
        network = Recorder(torch.zeros(1, 2, 8, 8))
        model = Denoiser(network, SCHEDULE, data_std=0.1, operator=A, spectrum=spectrum)
        nothing = torch.zeros(8).bool()
        y_0 = model.denoise(y_t, t, torch.zeros_like(y_t), nothing)
        power = spectrum.power(torch.zeros(shape, dtype=torch.complex64))
        expected = y_t / a * power / (power + (b / a) ** 2)
        assert torch.allclose(y_0, expected, atol=1e-5)
        assert torch.allclose(network.images[:, :2], to_channels(A.pinv(expected)) / 0.1, atol=1e-4)
