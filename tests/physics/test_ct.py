"""Radon is what it says: known integrals, scikit-image, exact adjoint, and an inverse of what it measured."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mcddpm.physics.ct import Radon
from tests.problems import randn


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 12), st.integers(0, 99))
def test_radon_adjoint_for_any_size_and_angles(height: int, width: int, views: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    A = Radon((height, width), torch.rand(views, generator=g, dtype=torch.float64) * 720 - 360)
    x = randn(height, width, dtype=torch.float64, seed=seed)
    y = randn(*A.data_shape, dtype=torch.float64, seed=seed + 1)
    assert abs((y * A(x)).sum() - (A.adjoint(y) * x).sum()) <= 1e-10 * (1 + float(y.norm() * A(x).norm()))


def smooth_phantom(height: int, width: int) -> Tensor:
    """A few Gaussian blobs, off centre and of different size."""
    i = torch.arange(height, dtype=torch.float64)[:, None] - height // 2
    j = torch.arange(width, dtype=torch.float64)[None] - width // 2
    scale = min(height, width) / 128
    x = torch.zeros(height, width, dtype=torch.float64)
    for value, u, v, s in ((1.0, 5, -9, 12), (0.7, -20, 14, 8), (-0.3, 10, 20, 6)):
        x += value * torch.exp(-((i - u * scale) ** 2 + (j - v * scale) ** 2) / (2 * (s * scale) ** 2))
    return x


@pytest.mark.parametrize("size", [128, 101])
def test_radon_agrees_with_scikit_image(size: int) -> None:
    """On a smooth image, to 0.1 % in norm: both are discretisations of the same line integrals."""
    from skimage.transform import radon

    x, angles = smooth_phantom(size, size), torch.arange(0, 180, 7.5, dtype=torch.float64)
    ours = Radon(size, angles)(x)
    theirs = torch.as_tensor(radon(x.numpy(), angles.numpy(), circle=False))
    reach = min(len(ours), len(theirs) - 1) // 2 - 1
    ours, theirs = (y[len(y) // 2 - reach : len(y) // 2 + reach + 1] for y in (ours, theirs))
    assert (ours - theirs).norm() < 1e-3 * theirs.norm()


def test_radon_of_a_gaussian_is_known() -> None:
    """A blob at (i, j) = (u, v) of width s projects to sqrt(2 pi) s exp(-(r - r0)^2 / 2 s^2), r0 = v cos - u sin."""
    height, width, (u, v, s) = 90, 120, (7.0, -11.0, 6.0)
    i = torch.arange(height, dtype=torch.float64)[:, None] - height // 2
    j = torch.arange(width, dtype=torch.float64)[None] - width // 2
    A = Radon((height, width), 24)
    y = A(torch.exp(-((i - u) ** 2 + (j - v) ** 2) / (2 * s**2)))
    theta = A.angles.deg2rad()
    r = torch.arange(y.shape[0], dtype=torch.float64)[:, None] - y.shape[0] // 2
    expected = math.sqrt(2 * math.pi) * s * torch.exp(-((r - v * theta.cos() + u * theta.sin()) ** 2) / (2 * s**2))
    assert (y - expected).abs().max() < 0.01 * expected.max()
    assert (y - expected).norm() < 0.003 * expected.norm()


@pytest.mark.parametrize("angles", [180, torch.arange(0, 360, 1.0), torch.arange(180.0).roll(50)])
def test_filtered_back_projection(angles: int | Tensor) -> None:
    """180 views of a smooth 128 x 128 phantom come back at 50 dB or better, whatever order or turn they are in."""
    x = smooth_phantom(128, 128)
    A = Radon(128, angles)
    mse = (A.pinv(A(x)) - x).square().mean()
    assert 10 * math.log10(float(x.max() ** 2 / mse)) > 50


def test_filtered_back_projection_of_uneven_angles() -> None:
    """Views at twice the density on one half of the circle: their weights even it out."""
    x = smooth_phantom(128, 128)
    angles = torch.cat([torch.arange(0, 90, 0.5), torch.arange(90, 180, 1.0)])
    A = Radon(128, angles)
    mse = (A.pinv(A(x)) - x).square().mean()
    assert 10 * math.log10(float(x.max() ** 2 / mse)) > 50


def test_each_view_stands_for_its_arc() -> None:
    """A ray through the centre comes back there times the ramp filter's 1/4 and half the way to the views beside it,
    round the half circle."""
    angles = torch.tensor([100.0, 0.0, 10.0, 40.0])
    A = Radon((5, 6), angles)
    y = torch.zeros(4, *A.data_shape, dtype=torch.float64)
    y[range(4), A.data_shape[0] // 2, range(4)] = 1
    expected = torch.tensor([70.0, 45.0, 20.0, 45.0]).deg2rad().double() / 4
    assert torch.allclose(A.pinv(y)[:, 2, 3], expected)


def test_filtered_back_projection_of_non_square_and_complex() -> None:
    x = smooth_phantom(60, 90).float()
    A = Radon((60, 90), 150)
    back = A.pinv(A(torch.complex(x, 2 * x)))
    assert torch.allclose(back.imag, 2 * back.real, atol=1e-4)
    assert (back.real - x).square().mean() < 1e-3 * x.max() ** 2


def test_radon_gradient_is_the_adjoint() -> None:
    A = Radon((6, 5), 4)
    x = randn(2, 6, 5, dtype=torch.float64, seed=0).requires_grad_()
    assert torch.autograd.gradcheck(A, (x,))
    y = A(x).detach().requires_grad_()
    assert torch.autograd.gradcheck(A.adjoint, (y,))
    assert torch.autograd.gradcheck(A.pinv, (y,))


def test_radon_in_chunks_is_radon(monkeypatch: pytest.MonkeyPatch) -> None:
    A, x = Radon(16, 20), randn(3, 16, 16, dtype=torch.float64, seed=0)
    whole, back = A(x), A.adjoint(A(x))
    monkeypatch.setattr(Radon, "_chunks", lambda self, _: [(v, t) for s, t in self._sheaves() for v in s.split(3)])
    assert torch.allclose(A(x), whole) and torch.allclose(A.adjoint(whole), back)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Radon(8, 5)(torch.zeros(8, 8).half()), "image has dtype torch.float16, expected one of"),
        (lambda: Radon(8, 5)(torch.zeros(8, 9)), r"image has shape \(8, 9\), expected \(..., 8, 8\)"),
        (lambda: Radon(8, 5).pinv(torch.zeros(8, 8)), r"sinogram has shape \(8, 8\), expected \(..., 13, 5\)"),
        (lambda: Radon(0, 5), "size is"),
        (lambda: Radon(8, 0), "angles have shape"),
        (lambda: Radon(8, [0.0, float("nan")]), "finite degrees"),
    ],
)
def test_wrong_shapes_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
