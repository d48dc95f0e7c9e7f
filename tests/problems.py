"""Small problems with known answers, one for each operator; a denoiser that is exact, and one that knows nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mcddpm.diffusion.gaussian import GaussianPosterior, GaussianPrior
from mcddpm.diffusion.schedules import Schedule, cosine
from mcddpm.models.denoiser import Denoiser, Seen
from mcddpm.models.unet import UNet
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense
from mcddpm.system.settings import from_dict
from mcddpm.training.settings import Config
from mcddpm.training.setup import card_of

OPERATORS = ("fourier", "sense", "radon")
TINY = {"network": {"channels": 8, "multipliers": [1, 2], "attention": [2], "heads": 2, "patch": 2}}


@dataclass(frozen=True)
class Problem:
    A: Operator
    mask: Tensor
    x: Tensor
    y_m: Tensor
    prior: GaussianPrior
    posterior: GaussianPosterior


def problem(name: str, seed: int = 0) -> Problem:
    """A draw x of a dense, smooth, non-stationary Gaussian prior with a mean, and its measurement."""
    g = torch.Generator().manual_seed(seed)
    A, shape, mask, dtype = _scanner(name, g)
    prior = GaussianPrior(_randn(shape, dtype, g), _smooth_factor(shape, dtype, g))
    x = prior.draw(g)
    y_m = A(x).masked_fill(~mask, 0)
    return Problem(A, mask, x, y_m, prior, prior.posterior(A, y_m, mask))


def _scanner(name: str, g: torch.Generator) -> tuple[Operator, tuple[int, int], Tensor, torch.dtype]:
    if name == "fourier":
        return Fourier(), (5, 6), torch.tensor([0, 1, 0, 1, 0, 0]).bool(), torch.complex128
    if name == "plane":  # points of the k-space plane instead of columns
        return Fourier(), (5, 4), torch.rand(5, 4, generator=g) < 0.4, torch.complex128
    if name == "sense":
        maps = _randn((2, 4, 5), torch.complex128, g)
        maps = maps / maps.abs().square().sum(0).sqrt()
        return Sense(maps), (4, 5), torch.tensor([0, 0, 1, 0, 0]).bool(), torch.complex128
    if name == "radon":
        return Radon((5, 4), 7), (5, 4), torch.tensor([1, 0, 0, 0, 1, 0, 0]).bool(), torch.float64
    raise KeyError(name)


def _smooth_factor(shape: tuple[int, int], dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """(k, H, W): white noise blurred and scaled differently from pixel to pixel."""
    pixels = shape[0] * shape[1]
    place = torch.stack(torch.meshgrid(*map(torch.arange, shape), indexing="ij")).reshape(2, -1).double()
    blur = torch.exp(-torch.cdist(place.T, place.T).square() / 3)
    return (_randn((pixels, pixels), dtype, g) * 0.3 + 1).mul(blur).reshape(pixels, *shape)


def _randn(shape: tuple[int, ...], dtype: torch.dtype, g: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=g)


def randn(*shape: int, dtype: torch.dtype = torch.complex64, seed: int = 0) -> Tensor:
    """torch's own: complex numbers have variance 1/2 in each part."""
    return _randn(shape, dtype, torch.Generator().manual_seed(seed))


class Exact(Denoiser):
    """Knows the posterior of a Gaussian prior, whatever was measured; where nothing was, the prior itself.

    The prior is in the units of y_m: that of an image x is `scaled(prior, m.scale)` for a Measurement m of it.
    """

    def __init__(self, prior: GaussianPrior, schedule: Schedule | None = None) -> None:
        network = UNet(4, 2, channels=8, multipliers=(1,), heads=1, attention=())
        super().__init__(network, schedule or cosine(1000, 0.5), data_std=1.0, operator=None)
        self.prior = prior
        self._by_mask: dict[tuple[object, ...], Callable[[Tensor], GaussianPosterior]] = {}
        self._known: dict[tuple[object, ...], GaussianPosterior] = {}

    def posterior(self, A: Operator, y_m: Tensor, mask: Tensor) -> GaussianPosterior:
        """y_m: (data). What is costly is done once for each mask."""
        scanner = (A(self.prior.mean).numpy().tobytes(), mask.shape, mask.numpy().tobytes())
        if scanner not in self._by_mask:
            everything = GaussianPosterior(A, torch.zeros_like(y_m), mask, self.prior.mean, self.prior.factor)
            self._by_mask[scanner] = self.prior.measured_by(A, mask) if mask.any() else lambda _: everything
        key = (*scanner, y_m.numpy().tobytes())
        if key not in self._known:
            self._known[key] = self._by_mask[scanner](y_m)
        return self._known[key]

    def _denoise(self, y_t: Tensor, t: Tensor, seen: Seen) -> Tensor:
        bar_alpha, bar_beta = (float(value) for value in self.schedule.at(t))
        return self.posterior(seen.A, seen.y_m[0], seen.mask).denoise(y_t, bar_alpha, bar_beta)


def scaled(prior: GaussianPrior, scale: float) -> GaussianPrior:
    return GaussianPrior(prior.mean * scale, prior.factor * scale)


def tiny(extra: dict | None = None, shape: tuple[int, int] = (32, 32), seed: int = 0) -> Denoiser:
    """A denoiser for images of this shape that knows nothing: a network with random weights, whose answer depends on
    all of its inputs. extra: sections of a training's configuration."""
    card = card_of(from_dict(Config, TINY | (extra or {})), shape)
    model = card.build()
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        nn.init.normal_(p, std=0.1, generator=g)
    model.card = card
    assert isinstance(model, Denoiser)
    return model.eval().requires_grad_(False)
