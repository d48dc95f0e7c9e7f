"""The denoiser of noisy measurements: what its network is shown and told, what is made of the answer, and s -> 0."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mcddpm.diffusion import schedules
from mcddpm.models.cascade import Cascade
from mcddpm.models.denoiser import Denoiser, Spectrum, to_channels
from mcddpm.models.unet import UNet
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.linear import LEAST, LinearEstimate
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense, gain_of
from tests.problems import OPERATORS, randn

SCHEDULE, SIZE, S = schedules.cosine(1000, 0.5), 16, 0.2
MASK = torch.arange(SIZE) % 3 == 0
T = torch.tensor([150.0, 700.5])


class Recorder(nn.Module):
    """Stands in for the network: keeps what it was shown and told, and answers with a fixed image."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, images: Tensor, time: Tensor, noise: Tensor | None = None) -> Tensor:
        self.images, self.time, self.level = images, time, noise
        return self.answer


def scanner(name: str) -> Operator:
    maps = randn(3, SIZE, SIZE)
    return {"fourier": Fourier(), "sense": Sense(maps), "radon": Radon(SIZE, SIZE)}[name]


def scan(name: str) -> tuple[Operator, Tensor, Tensor, torch.dtype]:
    """A, y_m and y_t of two draws; every entry of y_t is there, as none is known exactly."""
    A, dtype = scanner(name), torch.float32 if name == "radon" else torch.complex64
    y = A(randn(1, SIZE, SIZE, dtype=dtype, seed=1))
    return A, y * MASK, A(randn(2, SIZE, SIZE, dtype=dtype, seed=2)), dtype


@pytest.mark.parametrize("name", OPERATORS)
def test_the_network_corrects_the_best_linear_estimate(name: str) -> None:
    A, y_m, y_t, dtype = scan(name)
    f, noise = randn(2, SIZE, SIZE, dtype=dtype, seed=3), 0.05
    network = Recorder(to_channels(f))
    model = Denoiser(network, SCHEDULE, data_std=S, operator=A).eval()
    y_0 = model.denoise(y_t, T, y_m, MASK, noise=noise)
    a, b = (v.float().reshape(-1, *[1] * (y_t.ndim - 1)) for v in SCHEDULE.at(T))
    linear = LinearEstimate(A, y_m, MASK, noise, torch.full((SIZE, SIZE), S**2))
    x_w = linear(y_t / a, b / a)
    level = gain_of(A) * (b / a).reshape(-1, 1, 1)  # of noise in the image
    c_out = level * S / (level**2 + S**2).sqrt()
    assert torch.allclose(y_0, A(x_w + c_out * linear.consistent(f, c_out)), atol=1e-4)
    measured = linear.measured.expand_as(x_w)
    assert torch.allclose(
        network.images, torch.cat([to_channels((x_w - measured) / S), to_channels(measured)], 1), atol=1e-4
    )
    assert network.level is None, "it was not trained with noise"


def test_the_network_sees_the_same_whatever_the_power_of_the_coils() -> None:
    """Maps, data and all noise three times as large are the same scan in other units."""
    _, y_m, y_t, _ = scan("sense")
    seen = []
    for by in (1.0, 3.0):
        network = Recorder(torch.zeros(1, 2, SIZE, SIZE))
        louder = Sense(by * scanner("sense").maps)  # type: ignore[attr-defined]
        model = Denoiser(network, SCHEDULE, data_std=S, operator=louder, knows_noise=True).eval()
        t = SCHEDULE.time_of(0.1 * by)
        y_0 = model.denoise(by * y_t[:1] * float(SCHEDULE.at(t)[0]), t, by * y_m, MASK, noise=0.05 * by)
        seen.append((network.images, network.time, network.level, y_0 / by))
    for one, other in zip(*seen, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-3)


def test_the_level_that_is_told() -> None:
    A, y_m, y_t, _ = scan("fourier")
    network = Recorder(torch.zeros(2, 2, SIZE, SIZE))
    model = Denoiser(network, SCHEDULE, data_std=S, operator=A, knows_noise=True)
    for noise, level in ((0.05, 0.05), (0.0, LEAST), (1e-6, LEAST)):
        model.denoise(y_t, T, y_m, MASK, noise=noise)
        assert network.level is not None
        assert torch.allclose(network.level, torch.full((2,), 100 * torch.tensor(level).log()), rtol=1e-4)
    a, b = (v.float() for v in SCHEDULE.at(T))
    assert torch.allclose(network.time, 100 * (b / a).clamp(max=100 * S).log(), rtol=1e-3)


@pytest.mark.parametrize("network", [UNet, Cascade])
def test_a_network_learns_of_noise_beginning_with_nothing(network: type[UNet] | type[Cascade]) -> None:
    more = {"stages": 2, "patch": 2} if network is Cascade else {"heads": 1, "attention": ()}
    made = network(4, 2, channels=8, multipliers=(1,), noise=True, **more)  # type: ignore[arg-type]
    for p in made.parameters():
        if p.ndim == 4:
            nn.init.normal_(p, std=0.1)
    model = Denoiser(made, SCHEDULE, data_std=S, operator=Fourier(), knows_noise=True)
    _, y_m, y_t, _ = scan("fourier")

    def answer(noise: float) -> Tensor:
        linear = model.see(y_m, MASK, None, noise)
        return model._run(
            torch.cat([to_channels(y_t), to_channels(y_t)], 1),
            torch.zeros(2),
            (lambda f: torch.cat([f, f], 1)),
            100 * linear.linear.level.log().flatten().expand(2),  # type: ignore[union-attr]
        )

    assert torch.equal(answer(0.01), answer(0.1))
    nn.init.normal_(made.noise[-1].weight)  # type: ignore[index]
    assert not torch.allclose(answer(0.01), answer(0.1), atol=1e-3)


@pytest.mark.parametrize("spectrum", [None, Spectrum([2.0, 1.0, 0.3, 0.1], (SIZE, SIZE))])
def test_without_noise_one_coil_is_as_it_was(spectrum: Spectrum | None) -> None:
    """A network that is told of noise takes the way of noisy scans at s = 0 too: to the same place."""
    network = Cascade(4, 2, stages=2, channels=8, multipliers=(1,), patch=2)
    for p in network.parameters():
        nn.init.normal_(p, std=0.1)
    _, y_m, y_t, _ = scan("fourier")
    plain = Denoiser(network, SCHEDULE, data_std=S, operator=Fourier(), spectrum=spectrum).requires_grad_(False)
    before = plain.denoise(y_t * ~MASK, T, y_m, MASK)
    seen = plain.see(y_m, MASK, None, 0.0)
    power = torch.full((SIZE, SIZE), S**2) if spectrum is None else spectrum.power(seen.image)
    linear = LinearEstimate(Fourier(), y_m, MASK, 0.0, power)
    after = plain._denoise(y_t * ~MASK, T, seen._replace(image=linear.measured, linear=linear))
    assert torch.allclose(before, after, atol=1e-4 * float(before.abs().max()))


@pytest.mark.parametrize("name", ["fourier", "sense"])
def test_less_and_less_noise_leads_to_none(name: str) -> None:
    """On M the answer comes to what was measured; off M, for one coil, to the answer of no noise."""
    A, y_m, y_t, _ = scan(name)
    network = Recorder(to_channels(randn(2, SIZE, SIZE, seed=3)))
    model = Denoiser(network, SCHEDULE, data_std=S, operator=A).eval()
    exact = model.denoise(y_t * ~MASK, T, y_m, MASK)
    errors = []
    for noise in (1e-1, 1e-2, 1e-3):
        y_0 = model.denoise(y_t, T, y_m, MASK, noise=noise)
        on = ((y_0 - y_m) * MASK).norm() / y_m.norm()
        off = ((y_0 - exact) * ~MASK).norm() / exact.norm() if name == "fourier" else torch.zeros(())
        errors.append(max(float(on), float(off)))
    assert errors[1] < errors[0] / 5 and errors[2] < (errors[1] / 5 if name == "fourier" else 0.5)


def test_a_network_that_predicts_eps_takes_no_noise() -> None:
    _, y_m, y_t, _ = scan("fourier")
    model = Denoiser(Recorder(y_t), SCHEDULE, parameterisation="eps", operator=Fourier())
    with pytest.raises(ValueError, match="keeps what was measured: it takes noise 0"):
        model.denoise(y_t, T, y_m, MASK, noise=0.1)
