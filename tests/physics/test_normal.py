"""The normal matrix A^H W A against dense linear algebra; the quick way is taken where it is right, and only there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mcddpm.physics import normal
from mcddpm.physics.ct import Radon
from mcddpm.physics.normal import Normal, rows_of
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense
from tests.problems import matrix, off, randn

COILS = 3


def maps(*shape: int) -> Tensor:
    return randn(*shape, dtype=torch.complex128, seed=1)


def weights(*shape: int) -> Tensor:
    """Some of them 0, as of what was not measured."""
    g = torch.Generator().manual_seed(2)
    return (torch.rand(*shape, dtype=torch.float64, generator=g) + 0.2) * (torch.rand(*shape, generator=g) < 0.7)


def dense(A: Operator, weight: Tensor, shape: tuple[int, int]) -> Tensor:
    """A^H W A, (pixels, pixels), of A alone."""
    assert A.data_shape is not None
    B = matrix(A, shape, torch.float64 if isinstance(A, Radon) else torch.complex128)
    return B.mH @ (weight.expand(A.data_shape).reshape(-1, 1) * B)


@pytest.mark.parametrize("shape", [(4, 6), (6, 5), (5, 8), (7, 7), (3, 1)])
def test_rows_are_all_of_the_normal_matrix(shape: tuple[int, int]) -> None:
    """It mixes the pixels of a row alone. Widths are odd and even."""
    A, weight = Sense(maps(COILS, *shape)), weights(shape[1])
    assert off(torch.block_diag(*rows_of(A.maps, weight)), dense(A, weight, shape)) < 1e-13


def test_rows_in_single_precision_are_as_good_as_it_is() -> None:
    """Angles go up to 56 turns."""
    S, weight = maps(2, 3, 225), weights(225)
    single = rows_of(S.to(torch.complex64), weight.float())
    assert single.dtype == torch.complex64 and off(single, rows_of(S, weight)) < 1e-6


@dataclass(frozen=True)
class Case:
    """maps: of all, or of each of two scans; weight: of data; known: as a mask; quick: whether rows are used."""

    maps: Tensor
    weight: Tensor
    known: Tensor
    quick: bool


NONE = torch.zeros(5, dtype=torch.bool)
CASES = {
    "columns": Case(maps(COILS, 4, 5), weights(5), NONE, True),
    "columns of an even number": Case(maps(COILS, 5, 6), weights(6), torch.zeros(6).bool(), True),
    "columns of a batch of one": Case(maps(COILS, 4, 5), weights(1, 1, 1, 5), NONE, True),
    "one coil": Case(maps(1, 4, 5), weights(5), NONE, True),
    "plane": Case(maps(COILS, 4, 5), weights(4, 5), NONE, False),
    "by coil": Case(maps(COILS, 4, 5), weights(COILS, 1, 5), NONE, False),
    "masks of each": Case(maps(COILS, 4, 5), weights(2, 1, 1, 5), NONE, False),
    "maps of each": Case(maps(2, COILS, 4, 5), weights(5), NONE, False),
    "known": Case(maps(COILS, 4, 5), weights(5), torch.tensor([0, 1, 0, 0, 1]).bool(), False),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_dense_product_either_way(name: str) -> None:
    """Of two images, with a precision for each."""
    case = CASES[name]
    A, shape = Sense(case.maps), (case.maps.shape[-2], case.maps.shape[-1])
    N, x = Normal(A, case.weight, case.known), randn(2, *shape, dtype=torch.complex128)
    assert (N.rows is not None) == case.quick
    precision = torch.tensor([0.3, 4.0], dtype=torch.float64).reshape(2, 1, 1, 1)
    with_it, without = N(x, precision), N(x)
    assert with_it.shape == without.shape == x.shape
    for k in range(2):
        own = Sense(case.maps[k]) if case.maps.ndim == 4 else A
        weight = case.weight[k] if case.weight.ndim == 4 and len(case.weight) == 2 else case.weight.squeeze(0)
        assert off(without[k], dense(own, weight, shape) @ x[k].flatten()) < 1e-13
        total = weight + torch.where(case.known, 0, precision[k])
        assert off(with_it[k], dense(own, total, shape) @ x[k].flatten()) < 1e-13


def test_matrices_that_would_be_too_large_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["columns"]
    A, x = Sense(case.maps), randn(2, 4, 5, dtype=torch.complex128)
    precision = torch.tensor([0.3, 4.0], dtype=torch.float64).reshape(2, 1, 1, 1)
    answers = []
    for largest in (4 * 5**2, 4 * 5**2 - 1):
        monkeypatch.setattr(normal, "LARGEST", largest)
        N = Normal(A, case.weight, case.known)
        assert (N.rows is not None) == (largest == 100)
        answers.append(torch.stack([N(x), N(x, precision)]))
    assert off(answers[0], answers[1]) < 1e-13


def test_ct_has_no_rows() -> None:
    A, weight = Radon((5, 4), 7), weights(7)
    N, x = Normal(A, weight, torch.zeros(7).bool()), torch.rand(2, 5, 4, dtype=torch.float64)
    assert N.rows is None
    answer = N(x, torch.tensor([0.3, 4.0], dtype=torch.float64).reshape(2, 1, 1))
    for k, precision in enumerate((0.3, 4.0)):
        assert off(answer[k], dense(A, weight + precision, (5, 4)) @ x[k].flatten()) < 1e-12
