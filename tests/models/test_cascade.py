"""The cascade: what it is shown between its stages, any size, and the way through configuration and disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mcddpm import load_model
from mcddpm.diffusion import schedules
from mcddpm.models.cascade import Cascade
from mcddpm.models.denoiser import Denoiser, from_channels
from mcddpm.models.store import save_model
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.sense import Sense
from tests.problems import randn, tiny

SCHEDULE = schedules.cosine(1000, 0.5)
MASK = torch.arange(24) % 3 == 0


def cascade(stages: int = 2, **more: object) -> Cascade:
    network = Cascade(4, 2, stages=stages, channels=8, patch=2, groups=4, **more)  # type: ignore[arg-type]
    g = torch.Generator().manual_seed(1)
    for p in network.parameters():
        nn.init.normal_(p, std=0.2, generator=g)
    return network.eval()


@pytest.mark.parametrize("size", [(16, 24), (15, 22), (3, 5)])
@pytest.mark.parametrize("multipliers", [(1,), (1, 2), (1, 2, 2)])
def test_any_size(size: tuple[int, int], multipliers: tuple[int, ...]) -> None:
    x = randn(2, 4, *size, dtype=torch.float32)
    f = cascade(multipliers=multipliers)(x, torch.tensor([1.0, 50.0]), lambda f: torch.cat([f, f], 1))
    assert f.shape == (2, 2, *size) and f.isfinite().all() and f.abs().max() > 0


def test_each_stage_is_told_of_the_one_before() -> None:
    """The first asks with f = 0; every later one with what it has, and what it is told changes the answer."""
    x, time = randn(1, 4, 8, 8, dtype=torch.float32), torch.tensor([3.0])
    asked: list[Tensor] = []

    def refine(f: Tensor) -> Tensor:
        asked.append(f)
        return torch.cat([f + 1, f], 1)

    network = cascade(3)
    f = network(x, time, refine)
    assert len(asked) == 3 and not asked[0].any()
    assert asked[1].any() and not torch.equal(asked[1], asked[2]) and not torch.equal(asked[2], f)
    assert not torch.allclose(network(x, time, lambda f: torch.cat([f, f], 1)), f, atol=1e-3)


def test_a_fresh_cascade_returns_nothing_and_learns_at_every_stage() -> None:
    network = Cascade(4, 2, stages=2, channels=8, patch=2, groups=4)
    f = network(randn(1, 4, 8, 8, dtype=torch.float32), torch.tensor([3.0]), lambda f: torch.cat([f, f], 1))
    assert not f.any()
    (f - 1).square().sum().backward()
    assert all(stage["leave"].weight.grad.abs().max() > 0 for stage in network.stages)


@pytest.mark.parametrize("kind", ["fourier", "sense"])
def test_what_the_denoiser_tells(kind: str) -> None:
    """A+ y_M + x_w + c_out P f and f - P f, P = A+ M^c A; the image agrees with the measurement."""
    A = Fourier() if kind == "fourier" else Sense(coil_maps(3, (16, 24), 0))
    y = A(randn(2, 16, 24))
    mask = MASK
    y_m, y_t = y * mask, 0.4 * A(randn(2, 16, 24, seed=3)) * ~mask
    told: list[tuple[Tensor, Tensor]] = []

    class Asking(Cascade):
        def forward(self, x: Tensor, time: Tensor, refine) -> Tensor:
            for f in (torch.zeros_like(x[:, :2]), randn(2, 2, 16, 24, dtype=torch.float32, seed=5)):
                told.append((from_channels(f), refine(f)))
            return f

    s, t = 0.2, torch.tensor([400.0, 400.0])
    model = Denoiser(Asking(4, 2, stages=1, channels=8), SCHEDULE, data_std=s, operator=A)
    y_0 = model.denoise(y_t, t, y_m, mask)
    bar_alpha, bar_beta = SCHEDULE.at(400)
    sigma = float(bar_beta / bar_alpha)
    c_skip, c_out = s**2 / (sigma**2 + s**2), sigma * s / (sigma**2 + s**2) ** 0.5
    for f, answer in told:
        image, lost = from_channels(answer[:, :2]), from_channels(answer[:, 2:])
        kept = A.pinv(A(f).masked_fill(mask, 0))
        expected = A.pinv(y_m) + c_skip * A.pinv(y_t / float(bar_alpha)) + c_out * kept
        assert torch.allclose(image, expected, atol=1e-4) and torch.allclose(lost, f - kept, atol=1e-5)
        if kind == "fourier":
            assert torch.allclose(A(image)[..., mask], y_m[..., mask], atol=1e-4)
    f = told[1][0]
    x_0 = c_skip * A.pinv(y_t / float(bar_alpha)) + c_out * f
    assert torch.allclose(y_0, A(x_0).masked_fill(mask, 0), atol=1e-4)


def test_through_configuration_and_disk(tmp_path: Path) -> None:
    model = tiny({"network": {"stages": 2, "channels": 8, "multipliers": [1, 2], "patch": 2, "groups": 4}}, (16, 24))
    assert model.card is not None and model.card.architecture.stages == 2 and isinstance(model.network, Cascade)
    save_model(tmp_path / "m", model.network.state_dict(), model.card)
    again = load_model(tmp_path / "m")
    y_m, y_t, t = randn(1, 16, 24) * MASK, randn(1, 16, 24, seed=2) * ~MASK, torch.tensor([300.0])
    assert isinstance(again, Denoiser) and isinstance(again.network, Cascade)
    assert torch.equal(again.denoise(y_t, t, y_m, MASK), model.denoise(y_t, t, y_m, MASK))


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="a cascade with stages=0"):
        Cascade(4, 2, stages=0)
    with pytest.raises(ValueError, match="goes with parameterisation denoised, not eps"):
        Denoiser(cascade(), SCHEDULE, parameterisation="eps", operator=Fourier())
