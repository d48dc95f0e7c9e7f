"""The linear estimate against dense linear algebra, for every operator; and that its steps settle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.linear import LEAST, LinearEstimate
from mcddpm.physics.noise import known_exactly
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense
from tests.problems import matrix, off, randn

SIZE = 16
SIGMA = 0.3
NOISES = ("a number", "by entry", "by entry, none in part")


def scanner(name: str) -> tuple[Operator, torch.dtype]:
    if name == "fourier":
        return Fourier(), torch.complex128
    if name == "sense":
        maps = torch.randn(3, SIZE, SIZE, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
        return Sense(maps), torch.complex128
    return Radon((SIZE, SIZE), 12), torch.float64


def spectrum() -> Tensor:
    """The power of images at each place of their k-space."""
    i = torch.arange(SIZE, dtype=torch.float64) - SIZE // 2
    return 1 / (1 + torch.hypot(i[:, None], i)) ** 2


class Scan:
    """What was measured, and a state of the diffusion; all of it as vectors and matrices beside."""

    def __init__(self, name: str, noise: str) -> None:
        g = torch.Generator().manual_seed(1)
        self.A, dtype = scanner(name)
        x = torch.randn(SIZE, SIZE, dtype=dtype, generator=g)
        y = self.A(x)
        self.mask = torch.rand(y.shape[-1], generator=g) < 0.4
        self.noise = self._noise(noise, y.shape, g)
        self.known = known_exactly(self.mask, self.noise).expand(y.shape)
        self.y_m = y.masked_fill(~self.mask, 0)
        self.z = (y + SIGMA * torch.randn(y.shape, dtype=dtype, generator=g)).masked_fill(self.known, 0)
        self.f = torch.randn(SIZE, SIZE, dtype=dtype, generator=g)
        self.B = matrix(self.A, (SIZE, SIZE), dtype)
        F = matrix(Fourier(), (SIZE, SIZE), torch.complex128)
        prior = F.mH @ (spectrum().flatten().reciprocal()[:, None] * F)
        self.prior = prior if dtype.is_complex else prior.real
        s = torch.as_tensor(self.noise, dtype=torch.float64).expand(y.shape).clamp(min=1e-4)
        self.of_y = torch.where(self.mask, s.square().reciprocal(), 0).flatten()
        self.of_z = torch.where(self.known, 0.0, 1 / SIGMA**2).flatten()

    def _noise(self, name: str, shape: torch.Size, g: torch.Generator) -> Tensor | float:
        by_entry = 0.05 + 0.3 * torch.rand(shape, dtype=torch.float64, generator=g)
        if name == "by entry, none in part":
            return by_entry.masked_fill(torch.rand(shape, generator=g) < 0.3, 0)
        return 0.2 if name == "a number" else by_entry

    def estimate(self, first: int = 600, after: int = 600) -> LinearEstimate:
        return LinearEstimate(self.A, self.y_m[None], self.mask, self.noise, spectrum(), first, after, after)

    def dense(self, of_z: Tensor) -> Tensor:
        """(B^H W B + S^-2)^-1 B^H (W_y y + W_z z)"""
        normal = self.B.mH @ ((self.of_y + of_z)[:, None] * self.B) + self.prior
        known = self.of_y * self.y_m.flatten() + of_z * self.z.flatten()
        return torch.linalg.solve(normal, self.B.mH @ known.to(self.B.dtype))


CASES = [(name, noise) for name in ("fourier", "sense", "radon") for noise in NOISES]
SOFT = [case for case in CASES if case[0] == "fourier" or case[1] != NOISES[2]]  # CG does not take s = 0 exactly


@pytest.mark.parametrize(("name", "noise"), SOFT)
def test_it_is_the_solution_of_the_dense_problem(name: str, noise: str) -> None:
    scan = Scan(name, noise)
    estimate, sigma = scan.estimate(), torch.full((1,) * (scan.z.ndim + 1), SIGMA, dtype=torch.float64)
    assert off(estimate.measured, scan.dense(torch.zeros_like(scan.of_z))) < 1e-5
    assert off(estimate(scan.z[None], sigma), scan.dense(scan.of_z)) < 1e-5


@pytest.mark.parametrize(("name", "noise"), SOFT)
def test_what_agrees_with_the_measurement_is_the_dense_solution(name: str, noise: str) -> None:
    scan, scale = Scan(name, noise), 0.5
    normal = scan.B.mH @ (scale**2 * scan.of_y[:, None] * scan.B) + torch.eye(SIZE**2, dtype=scan.B.dtype)
    wanted = torch.linalg.solve(normal, scan.f.flatten())
    found = scan.estimate().consistent(scan.f[None], torch.full((1, 1, 1), scale, dtype=torch.float64))
    assert off(found, wanted) < 1e-5


def test_without_noise_one_coil_keeps_what_was_measured() -> None:
    scan = Scan("fourier", NOISES[2])
    kept = Fourier()(scan.estimate()(scan.z[None], torch.full((1, 1, 1), SIGMA, dtype=torch.float64))[0])
    assert float((kept - scan.y_m)[scan.known].abs().max()) < 1e-12


def test_each_of_a_batch_is_as_alone() -> None:
    """Two states at two levels of noise."""
    scan = Scan("sense", NOISES[0])
    states, sigmas = torch.stack([scan.z, 2 * scan.z]), torch.tensor([0.3, 1.0], dtype=torch.float64)
    together = scan.estimate(60, 8)(states, sigmas.reshape(2, 1, 1, 1))
    for k in range(2):
        alone = scan.estimate(60, 8)(states[k : k + 1], sigmas[k].reshape(1, 1, 1, 1))
        assert torch.allclose(together[k], alone[0], rtol=1e-9, atol=1e-12)


def test_a_call_starts_from_the_answer_before() -> None:
    """Three steps from there are nearer than three from the measured part."""
    scan, sigma = Scan("sense", NOISES[0]), torch.full((1, 1, 1, 1), 0.05, dtype=torch.float64)
    exact = scan.estimate()(scan.z[None], sigma)
    cold, warm = scan.estimate(600, 3), scan.estimate(600, 3)
    warm(scan.z[None], 1.2 * sigma)
    first, second = (off(e(scan.z[None], sigma), exact.flatten()) for e in (cold, warm))
    assert second < 0.5 * first


def test_more_steps_than_are_needed_change_nothing() -> None:
    """In single precision the residual comes to nothing, and nothing is divided by it."""
    scan = Scan("sense", NOISES[0])
    A = Sense(scan.A.maps.to(torch.complex64))  # type: ignore[attr-defined]
    y_m, power = scan.y_m[None].to(torch.complex64), spectrum().float()
    found = LinearEstimate(A, y_m, scan.mask, 0.2, power, first=500).measured
    assert torch.isfinite(torch.view_as_real(found)).all()
    assert off(found, scan.dense(torch.zeros_like(scan.of_z)).to(torch.complex64)) < 1e-4


# --- s, as one number a scan ----------------------------------------------------------------------------------------


def level(noise: Tensor | float, mask: Tensor, A: Operator | None = None, coils: tuple[int, ...] = ()) -> Tensor:
    """Of two scans of 4 x 6."""
    y_m = randn(2, *coils, 4, 6).masked_fill(~mask, 0)
    result = LinearEstimate(A or Fourier(), y_m, mask, noise, torch.ones(4, 6), first=1).level
    assert result.shape == (2, 1, 1) and result.dtype == torch.float32
    return result.flatten()


COLUMNS = torch.tensor([0, 1, 0, 1, 1, 0]).bool()


def test_the_level_of_one_number_is_that_number() -> None:
    """However much was measured."""
    maps = Sense(randn(3, 4, 6))
    for mask in (COLUMNS, torch.ones(6).bool(), torch.arange(24).reshape(4, 6) % 5 == 0):
        assert torch.allclose(level(0.2, mask), torch.tensor(0.2))
        assert torch.allclose(level(0.2, mask, maps, (3,)), torch.tensor(0.2))
    each = torch.tensor([0.1, 0.4]).reshape(2, 1, 1)
    assert torch.allclose(level(each, COLUMNS), each.flatten())
    masks_of_each = torch.stack([COLUMNS, ~COLUMNS | COLUMNS.flip(0)])[:, None]
    assert torch.allclose(level(each, masks_of_each), each.flatten())


def test_the_level_of_several_is_of_their_precision_where_it_was_measured() -> None:
    noise = 0.05 + torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    wanted = noise[:, COLUMNS].square().reciprocal().mean().rsqrt()
    assert torch.allclose(level(noise, COLUMNS), wanted)
    by_coil = torch.tensor([0.1, 0.2, 0.7]).reshape(3, 1, 1)
    wanted = by_coil.square().reciprocal().mean().rsqrt()
    assert torch.allclose(level(by_coil, COLUMNS, Sense(randn(3, 4, 6)), (3,)), wanted)


def test_no_noise_is_the_least_level() -> None:
    for noise in (0.0, LEAST / 3):
        assert torch.allclose(level(noise, COLUMNS), torch.tensor(LEAST))


def test_other_draws_of_the_scan_start_from_what_was_measured() -> None:
    """Not from the images of the draws before."""
    scan, sigma = Scan("sense", NOISES[0]), torch.full((1, 1, 1, 1), 0.05, dtype=torch.float64)
    used, new = scan.estimate(600, 3), scan.estimate(600, 3)
    used(3 * scan.z[None], sigma)
    assert torch.equal(used.afresh()(scan.z[None], sigma), new(scan.z[None], sigma))
    assert not torch.allclose(used(scan.z[None], sigma), new(scan.z[None], sigma), rtol=1e-3)
