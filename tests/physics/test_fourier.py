"""The centred, orthonormal Fourier transform."""

from __future__ import annotations

import math

import pytest
import torch

from mcddpm.physics.fourier import Fourier, fft, ifft
from tests.problems import randn


def test_fourier_is_centred_and_orthonormal() -> None:
    """A constant becomes one point at H//2, W//2; a centred point becomes a constant; norms are kept."""
    for height, width in ((6, 8), (5, 7)):
        y = Fourier()(torch.ones(height, width, dtype=torch.complex128))
        expected = torch.zeros_like(y)
        expected[height // 2, width // 2] = math.sqrt(height * width)
        assert torch.allclose(y, expected, atol=1e-12)
        x = randn(height, width, dtype=torch.complex128, seed=0)
        assert torch.allclose(Fourier()(x).norm(), x.norm())
        i, j = torch.arange(height)[:, None] - height // 2, torch.arange(width)[None] - width // 2
        point = torch.zeros_like(x)
        point[0, 1] = 1
        phase = -2 * torch.pi * (-(height // 2) * i / height + (1 - width // 2) * j / width)
        assert torch.allclose(Fourier()(point), torch.polar(torch.ones_like(phase), phase).to(x) / math.sqrt(x.numel()))


def test_the_functions_are_the_operator() -> None:
    x = randn(2, 5, 6, dtype=torch.complex128)
    A = Fourier((5, 6))
    assert torch.equal(fft(x), A(x)) and torch.equal(ifft(x), A.adjoint(x)) and torch.equal(ifft(x), A.pinv(x))
    assert torch.allclose(ifft(fft(x)), x) and torch.allclose(fft(ifft(x)), x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Fourier()(torch.zeros(4)), r"image has shape \(4,\), expected \(..., H, W\)"),
        (lambda: Fourier((4, 4))(torch.zeros(4, 5)), r"image has shape \(4, 5\), expected \(..., 4, 4\)"),
        (lambda: Fourier()(torch.zeros(0, 4)), "above zero"),
    ],
)
def test_wrong_shapes_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
