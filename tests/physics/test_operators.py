"""Every operator obeys the same laws, at any size, with any batch in front, for real and complex numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.operator import LABELS, Operator
from mcddpm.physics.sense import Sense
from tests.problems import OPERATORS, randn

SIZES = [(8, 8), (7, 7), (6, 9), (5, 12), (1, 4), (4, 1)]
BATCHES: list[tuple[int, ...]] = [(), (3,), (2, 3), (1, 2, 1)]
DTYPES = [torch.float64, torch.complex128]


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


def inner(a: Tensor, b: Tensor) -> Tensor:
    dtype = torch.promote_types(a.dtype, b.dtype)
    return torch.vdot(a.to(dtype).flatten(), b.to(dtype).flatten())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", OPERATORS)
class TestLaws:
    def test_linear(self, kind: str, size: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype) -> None:
        A = make(kind, size)
        x, z = (randn(*batch, *size, dtype=dtype, seed=seed) for seed in (1, 2))
        scale = (0.3 - 1.7j) if dtype.is_complex else -1.7
        assert torch.allclose(A(scale * x + z), scale * A(x) + A(z), rtol=1e-12, atol=1e-12)

    def test_adjoint(self, kind: str, size: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype) -> None:
        A = make(kind, size)
        x, y = randn(*batch, *size, dtype=dtype, seed=1), randn(*batch, *data_shape(A, size), dtype=dtype, seed=2)
        left, right = inner(y, A(x)), inner(A.adjoint(y), x)
        assert abs(left - right) <= 1e-10 * max(1.0, float(A(x).norm() * y.norm()))
        assert A(x).shape == y.shape and A.adjoint(y).shape == x.shape

    def test_batch_is_a_loop(
        self, kind: str, size: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        A = make(kind, size)
        x, y = randn(*batch, *size, dtype=dtype, seed=1), randn(*batch, *data_shape(A, size), dtype=dtype, seed=2)
        for call, given in ((A, x), (A.adjoint, y), (A.pinv, y)):
            one_by_one = torch.stack([call(one) for one in given.reshape(-1, *given.shape[len(batch) :])])
            assert torch.allclose(call(given).reshape(one_by_one.shape), one_by_one, rtol=1e-13, atol=1e-13)

    def test_pinv_inverts(self, kind: str, size: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype) -> None:
        """Filtered back-projection does so only nearly, and only with enough views: see `test_ct`."""
        A = make(kind, size)
        x = randn(*batch, *size, dtype=dtype, seed=1)
        if kind == "radon":
            assert A.pinv(A(x)).shape == x.shape and A.pinv(A(x)).dtype == dtype
        else:
            assert torch.allclose(A.pinv(A(x)), x.to(torch.complex128), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", OPERATORS)
def test_an_operator_says_what_it_is(kind: str) -> None:
    A = make(kind, (6, 9))
    assert isinstance(A, Operator) and A.kind == kind and A.label == LABELS[kind]
    assert A.image_shape in (None, (6, 9)) and A.data_shape in (None, tuple(A(torch.ones(6, 9)).shape))


@pytest.mark.parametrize("kind", OPERATORS)
def test_on_a_device_it_is_the_same_operator(kind: str) -> None:
    A = make(kind, (6, 9))
    there, x = A.to("cpu"), randn(2, 6, 9, dtype=torch.complex128)
    assert type(there) is type(A) and torch.equal(there(x), A(x)) and there.kind == A.kind


def test_sense_takes_its_maps_along_to_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    own = Tensor.to
    monkeypatch.setattr(Tensor, "to", lambda self, device: (asked.append(device), own(self, "cpu"))[1])
    Sense(torch.ones(2, 4, 4)).to("cuda:1")
    assert asked == ["cuda:1"]
