"""Several coils: a Fourier transform for each, and the least-squares inverse."""

from __future__ import annotations

import pytest
import torch

from mcddpm.physics.fourier import Fourier
from mcddpm.physics.sense import Sense
from tests.problems import randn


def test_sense_is_fourier_of_each_coil() -> None:
    maps, x = randn(3, 6, 5, dtype=torch.complex128, seed=0), randn(2, 6, 5, dtype=torch.complex128, seed=1)
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


def test_one_coil_is_one_coil_with_or_without_an_axis() -> None:
    one, two = Sense(torch.ones(1, 4, 4)), Sense(torch.ones(2, 4, 4))
    assert (one.kind, one.label) == ("fourier", Fourier.label) and one.data_shape == (1, 4, 4)
    assert (two.kind, two.label) == ("sense", "MRI with several coils")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sense(torch.zeros(4, 4)), r"maps have shape \(4, 4\), expected \(..., C, H, W\)"),
        (lambda: Sense(torch.full((1, 2, 2), torch.nan)), "maps hold NaN or infinite values"),
        (lambda: Sense(torch.ones(2, 4, 4))(torch.zeros(4, 5)), r"expected \(..., 4, 4\)"),
        (lambda: Sense(torch.ones(2, 4, 4)).adjoint(torch.zeros(3, 4, 4)), r"expected \(..., 2, 4, 4\)"),
        (lambda: Sense(torch.ones(2, 3, 4, 4))(torch.zeros(3, 4, 4)), r"does not go with maps \(2, 3, 4, 4\)"),
    ],
)
def test_wrong_shapes_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
