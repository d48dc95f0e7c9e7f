"""Small problems with known answers, one for each operator; a denoiser that is exact, and one that knows nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mcddpm.data.phantoms import drawn
from mcddpm.diffusion.gaussian import GaussianPosterior, GaussianPrior
from mcddpm.diffusion.schedules import Schedule, cosine
from mcddpm.models.denoiser import Denoiser, Seen
from mcddpm.models.unet import UNet
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier, fft
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense
from mcddpm.simulation.scans import noise_std
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

    def posterior(self, A: Operator, y_m: Tensor, mask: Tensor, noise: Tensor | float = 0.0) -> GaussianPosterior:
        """y_m: (data). What is costly is done once for each mask."""
        s = torch.as_tensor(noise)
        of_maps = A(self.prior.factor[:1]).numpy().tobytes()
        scanner = (of_maps, mask.shape, mask.numpy().tobytes(), s.shape, s.numpy().tobytes())
        if scanner not in self._by_mask:
            everything = GaussianPosterior(A, torch.zeros_like(y_m), mask, self.prior.mean, self.prior.factor)
            self._by_mask[scanner] = self.prior.measured_by(A, mask, noise) if mask.any() else lambda _: everything
        key = (*scanner, y_m.numpy().tobytes())
        if key not in self._known:
            self._known[key] = self._by_mask[scanner](y_m)
        return self._known[key]

    def _denoise(self, y_t: Tensor, t: Tensor, seen: Seen) -> Tensor:
        bar_alpha, bar_beta = (float(value) for value in self.schedule.at(t))
        noise = 0.0 if seen.linear is None else seen.linear.noise
        return self.posterior(seen.A, seen.y_m[0], seen.mask, noise).denoise(y_t, bar_alpha, bar_beta)


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


# --- linear algebra -------------------------------------------------------------------------------------------------


def matrix(A: Operator, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """(data, pixels)"""
    return A(torch.eye(shape[0] * shape[1], dtype=dtype).reshape(-1, *shape)).flatten(1).mT


def off(x: Tensor, wanted: Tensor) -> float:
    """|x - wanted| / |wanted|"""
    return float((x.flatten() - wanted.flatten()).norm() / wanted.norm())


# --- heads, as noisy receivers see them -----------------------------------------------------------------------------


class Heads(NamedTuple):
    """maps: (C, H, W), of any length; clean, y: k-space without and with noise; covariance: of it in each part."""

    x: Tensor
    maps: Tensor
    clean: Tensor
    y: Tensor
    covariance: Tensor

    @property
    def rss(self) -> Tensor:
        """Of the receivers, without noise."""
        return (self.maps * self.x).abs().square().sum(0).sqrt()

    @property
    def inside(self) -> Tensor:
        return self.x.abs() > 0.1 * self.x.abs().max()


def head(size: int, seed: int = 3) -> Tensor:
    """Complex, with air around it, (H, W)."""
    return torch.from_numpy(drawn(1, size, seed=seed))[0]


def without_air(x: Tensor) -> Tensor:
    """The rows of its middle, an even number."""
    rows = (x.abs() > 0.1 * x.abs().max()).any(1).nonzero().flatten()
    middle = x[int(rows[0]) + 12 : int(rows[-1]) - 12]
    return middle[: len(middle) // 2 * 2]


def mixing(coils: int) -> Tensor:
    """L with L L^H the covariance of correlated coils, whose mean variance is 1."""
    g = torch.Generator().manual_seed(1)
    L = torch.eye(coils, dtype=torch.complex64)
    if coils > 1:
        L = L + 0.3 * torch.randn(coils, coils, dtype=torch.complex64, generator=g)
    return L / (L @ L.mH).diagonal().real.mean().sqrt()


def scanned(x: Tensor, coils: int, snr: float, spread: float = 1.0, gains: Tensor | float = 1.0) -> Heads:
    """spread: how much more noise the worst receiver has than the best; gains: what maps of sum 1 are multiplied by."""
    height, width = x.shape
    g = torch.Generator().manual_seed(7)
    by_coil = torch.logspace(-0.5, 0.5, coils, base=spread)[:, None]
    L = noise_std(x.abs(), snr) * by_coil * mixing(coils)
    maps = coil_maps(coils, (height, width), 5) if coils > 1 else torch.ones(1, height, width)
    maps = maps * torch.as_tensor(gains).reshape(-1, 1, 1)
    eps = torch.view_as_complex(torch.randn(coils, height, width, 2, generator=g))
    clean = fft(maps * x)
    return Heads(x, maps, clean, clean + torch.einsum("cd,dhw->chw", L, eps), L @ L.mH)


def columns(width: int, centre: int) -> Tensor:
    """A mask of so many columns in the centre, an odd number and no more, and some 15 % of the others."""
    away = (torch.arange(width) - width // 2).abs()
    others = torch.rand(width, generator=torch.Generator().manual_seed(0)) < 0.15
    return (away <= centre // 2) | (others & (away > centre // 2 + 1))
