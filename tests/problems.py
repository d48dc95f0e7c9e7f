"""Small measuring problems whose posterior is known in closed form: one per operator, all correlated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mcddpm.diffusion.gaussian import GaussianPosterior, GaussianPrior
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense

OPERATORS = ("fourier", "sense", "radon")


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
