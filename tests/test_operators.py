"""Every operator obeys the same laws; Radon also agrees with scikit-image and inverts what it measured."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense

SIZES = [(8, 8), (7, 7), (6, 9), (5, 12), (1, 4), (4, 1)]
BATCHES: list[tuple[int, ...]] = [(), (3,), (2, 3), (1, 2, 1)]


def make(kind: str, size: tuple[int, int]) -> Operator:
    g = torch.Generator().manual_seed(0)
    if kind == "fourier":
        return Fourier()
    if kind == "sense":
        return Sense(torch.randn(3, *size, dtype=torch.complex128, generator=g))
    angles = torch.rand(7, generator=g, dtype=torch.float64) * 400 - 100
    return Radon(size, angles)


def data_shape(A: Operator, size: tuple[int, int]) -> tuple[int, ...]:
    return size if A.data_shape is None else A.data_shape


def randn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def inner(a: Tensor, b: Tensor) -> Tensor:
    dtype = torch.promote_types(a.dtype, b.dtype)
    return torch.vdot(a.to(dtype).flatten(), b.to(dtype).flatten())


KINDS = ["fourier", "sense", "radon"]
DTYPES = [torch.float64, torch.complex128]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
class TestLaws:
    def test_linear(self, kind: str, size: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype) -> None:
        A = make(kind, size)
        x, z = randn((*batch, *size), dtype, 1), randn((*batch, *size), dtype, 2)
        scale = (0.3 - 1.7j) if dtype.is_complex else -1.7
        assert torch.allclose(A(scale * x + z), scale * A(x) + A(z), rtol=1e-12, atol=1e-12)

    def test_adjoint(self, kind: str, size: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype) -> None:
        A = make(kind, size)
        x, y = randn((*batch, *size), dtype, 1), randn((*batch, *data_shape(A, size)), dtype, 2)
        left, right = inner(y, A(x)), inner(A.adjoint(y), x)
        assert abs(left - right) <= 1e-10 * max(1.0, float(A(x).norm() * y.norm()))
        assert A(x).shape == y.shape and A.adjoint(y).shape == x.shape

    def test_batch_is_a_loop(
        self, kind: str, size: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        A = make(kind, size)
        x = randn((*batch, *size), dtype, 1)
        one_by_one = torch.stack([A(image) for image in x.reshape(-1, *size)])
        assert torch.allclose(A(x).reshape(one_by_one.shape), one_by_one, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["fourier", "sense"])
def test_pinv_inverts(kind: str, size: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype) -> None:
    A = make(kind, size)
    x = randn((*batch, *size), dtype, 1)
    assert torch.allclose(A.pinv(A(x)), x.to(torch.complex128), rtol=1e-10, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 12), st.integers(0, 99))
def test_radon_adjoint_for_any_size_and_angles(height: int, width: int, views: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    A = Radon((height, width), torch.rand(views, generator=g, dtype=torch.float64) * 720 - 360)
    x, y = randn((height, width), torch.float64, seed), randn(data_shape(A, (0, 0)), torch.float64, seed + 1)
    assert abs(inner(y, A(x)) - inner(A.adjoint(y), x)) <= 1e-10 * (1 + float(y.norm() * A(x).norm()))


def test_fourier_is_centred_and_orthonormal() -> None:
    """A constant becomes one point at H//2, W//2; a centred point becomes a constant; norms are kept."""
    for height, width in ((6, 8), (5, 7)):
        y = Fourier()(torch.ones(height, width, dtype=torch.complex128))
        expected = torch.zeros_like(y)
        expected[height // 2, width // 2] = math.sqrt(height * width)
        assert torch.allclose(y, expected, atol=1e-12)
        x = randn((height, width), torch.complex128, 0)
        assert torch.allclose(Fourier()(x).norm(), x.norm())
        i, j = torch.arange(height)[:, None] - height // 2, torch.arange(width)[None] - width // 2
        point = torch.zeros_like(x)
        point[0, 1] = 1
        phase = -2 * torch.pi * (-(height // 2) * i / height + (1 - width // 2) * j / width)
        assert torch.allclose(Fourier()(point), torch.polar(torch.ones_like(phase), phase).to(x) / math.sqrt(x.numel()))


def test_sense_is_fourier_of_each_coil() -> None:
    maps, x = randn((3, 6, 5), torch.complex128, 0), randn((2, 6, 5), torch.complex128, 1)
    y = Sense(maps)(x)
    for coil in range(3):
        assert torch.allclose(y[:, coil], Fourier()(maps[coil] * x))
    normalised = maps / maps.abs().square().sum(0).sqrt()
    A = Sense(normalised)
    assert torch.allclose(A.pinv(y), A.adjoint(y))  # A^H A = 1
    batched = Sense(torch.stack([maps, 2 * maps]))
    assert torch.allclose(batched(x)[1], 2 * y[1])


def test_sense_gives_zero_where_no_coil_sees() -> None:
    maps = torch.ones(2, 4, 4, dtype=torch.complex128)
    maps[:, 0, 0] = 1e-12
    A, x = Sense(maps), torch.ones(4, 4, dtype=torch.complex128)
    back = A.pinv(A(x))
    assert back[0, 0] == 0 and torch.allclose(back[1:], x[1:])


# --- Radon ----------------------------------------------------------------------------------------------------------


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
    """180 views of a smooth 128 x 128 phantom come back at 30 dB or better, whatever order or turn they are in."""
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


def test_filtered_back_projection_of_non_square_and_complex() -> None:
    x = smooth_phantom(60, 90).float()
    A = Radon((60, 90), 150)
    back = A.pinv(A(torch.complex(x, 2 * x)))
    assert torch.allclose(back.imag, 2 * back.real, atol=1e-4)
    assert (back.real - x).square().mean() < 1e-3 * x.max() ** 2


def test_radon_gradient_is_the_adjoint() -> None:
    A = Radon((6, 5), 4)
    x = randn((2, 6, 5), torch.float64, 0).requires_grad_()
    assert torch.autograd.gradcheck(A, (x,))
    y = A(x).detach().requires_grad_()
    assert torch.autograd.gradcheck(A.adjoint, (y,))
    assert torch.autograd.gradcheck(A.pinv, (y,))


def test_radon_in_chunks_is_radon(monkeypatch: pytest.MonkeyPatch) -> None:
    A, x = Radon(16, 20), randn((3, 16, 16), torch.float64, 0)
    whole, back = A(x), A.adjoint(A(x))
    monkeypatch.setattr(Radon, "_chunks", lambda self, _: [(v, t) for s, t in self._sheaves() for v in s.split(3)])
    assert torch.allclose(A(x), whole) and torch.allclose(A.adjoint(whole), back)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Fourier()(torch.zeros(4)), r"image has shape \(4,\), expected \(..., H, W\)"),
        (lambda: Fourier((4, 4))(torch.zeros(4, 5)), r"image has shape \(4, 5\), expected \(..., 4, 4\)"),
        (lambda: Fourier()(torch.zeros(0, 4)), "above zero"),
        (lambda: Sense(torch.zeros(4, 4)), r"maps have shape \(4, 4\), expected \(..., C, H, W\)"),
        (lambda: Sense(torch.full((1, 2, 2), torch.nan)), "maps hold NaN or infinite values"),
        (lambda: Sense(torch.ones(2, 4, 4))(torch.zeros(4, 5)), r"expected \(..., 4, 4\)"),
        (lambda: Sense(torch.ones(2, 4, 4)).adjoint(torch.zeros(3, 4, 4)), r"expected \(..., 2, 4, 4\)"),
        (lambda: Sense(torch.ones(2, 3, 4, 4))(torch.zeros(3, 4, 4)), r"does not go with maps \(2, 3, 4, 4\)"),
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
