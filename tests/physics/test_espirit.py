"""ESPIRiT finds the maps of simulated coils, and those that a real scan's file carries."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm import metrics
from mcddpm.data import catalogue
from mcddpm.data.phantoms import drawn
from mcddpm.data.readers import open_volume
from mcddpm.physics import masks
from mcddpm.physics.coils import calibration_block, coil_maps
from mcddpm.physics.espirit import espirit
from mcddpm.physics.fourier import fft, ifft
from mcddpm.physics.linear import conjugate_gradients
from mcddpm.physics.normal import Normal
from mcddpm.physics.receivers import maps_from_centre, receivers_of
from mcddpm.physics.sense import Sense
from tests.problems import columns, head, scanned

SIZE = 96


def middle(y: Tensor, size: int = 24) -> Tensor:
    top, left = ((n - size) // 2 for n in y.shape[-2:])
    return y[..., top : top + size, left : left + size]


def alike(maps: Tensor, others: Tensor, where: Tensor) -> Tensor:
    """|<a, b>| / (|a| |b|) of the pixels: 1 where they differ by a phase and a size alone."""
    size = maps.abs().square().sum(0).sqrt() * others.abs().square().sum(0).sqrt()
    return ((maps.conj() * others).sum(0).abs() / size.clamp(min=1e-12))[where]


@pytest.fixture(scope="module")
def scan() -> tuple[Tensor, Tensor, Tensor]:
    """Maps (C, H, W), k-space without noise, and where the head is."""
    x = torch.from_numpy(drawn(1, SIZE, seed=2))[0]
    maps = coil_maps(6, (SIZE, SIZE), 4)
    return maps, fft(maps * x), x.abs() > 0.1 * x.abs().max()


def test_the_maps_of_simulated_coils_are_found(scan: tuple[Tensor, Tensor, Tensor]) -> None:
    maps, y, head = scan
    found = espirit(middle(y), (SIZE, SIZE))
    assert found.dtype == y.dtype and found.shape == maps.shape
    close = alike(found, maps, head)
    assert float(close.mean()) > 0.998 and float(close.quantile(0.02)) > 0.98
    length = found.abs().square().sum(0)
    assert torch.allclose(length[length > 0], torch.ones(1), atol=1e-4)


def test_they_explain_what_was_measured(scan: tuple[Tensor, Tensor, Tensor]) -> None:
    """Coils' images, projected onto the maps, are themselves; up to a phase that is the image's."""
    _, y, head = scan
    found, images = espirit(middle(y), (SIZE, SIZE)), ifft(y)
    explained = found * (found.conj() * images).sum(0)
    assert float((explained - images)[:, head].norm() / images[:, head].norm()) < 0.03


def test_their_phase_is_smooth(scan: tuple[Tensor, Tensor, Tensor]) -> None:
    """Eigenvectors have any phase, from pixel to pixel; these have one of their own."""
    _, y, head = scan
    found = espirit(middle(y), (SIZE, SIZE))
    inside = head[1:] & head[:-1]
    turn = (found[:, 1:] * found[:, :-1].conj()).sum(0)[inside]
    assert float(torch.angle(turn).abs().quantile(0.98)) < 0.3


def test_it_is_that_of_the_strongest_combination_of_coils(scan: tuple[Tensor, Tensor, Tensor]) -> None:
    """Which sees them real and positive."""
    _, y, head = scan
    centre = middle(y).flatten(1)
    combination = torch.linalg.svd(centre.to(torch.complex128), full_matrices=False).U[:, 0]
    seen = torch.einsum("c,chw->hw", combination.conj(), espirit(middle(y), (SIZE, SIZE)).to(torch.complex128))[head]
    assert float(seen.imag.abs().max()) < 1e-5 and float(seen.real.min()) > -1e-5
    assert float(seen.real.mean()) > 0.5


def test_a_small_centre_is_refused() -> None:
    with pytest.raises(ValueError, match="the centre of k-space has 8 x 24 entries, ESPIRiT takes 12 or more"):
        espirit(torch.zeros(2, 8, 24, dtype=torch.complex64), (32, 32))


# --- where there is something to see --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 4])
@pytest.mark.parametrize("lines", [24, 9])
@pytest.mark.parametrize("virtual", [False, True])
def test_nothing_of_a_noisy_head_is_lost_and_air_is_left_out(virtual: bool, lines: int, seed: int) -> None:
    """8 coils at an SNR of 20; the maps of the coils, or of virtual ones."""
    x = head(SIZE, seed)
    data, mask = scanned(x, 8, 20.0), columns(SIZE, lines | 1)
    y_m = data.y * mask
    assert calibration_block(y_m, mask).shape == (8, 24, lines)
    maps = receivers_of(y_m, mask, data.covariance).maps if virtual else maps_from_centre(y_m, mask)
    seen, energy = maps.abs().sum(0) > 0, x.abs().square()
    assert float(energy[seen].sum() / energy.sum()) >= 0.995
    assert float(seen.sum() / data.inside.sum()) < 1.4, "a few pixels more than the head"


# --- a real scan ----------------------------------------------------------------------------------------------------


class Real(NamedTuple):
    """theirs: the maps that were made of all flip angles, in the file, of unit length everywhere; y: one of them."""

    theirs: Tensor
    y: Tensor
    path: Path

    @property
    def truth(self) -> Tensor:
        return Sense(self.theirs).pinv(self.y).abs()

    @property
    def head(self) -> Tensor:
        return self.truth > 0.1 * self.truth.max()


@pytest.fixture(scope="module")
def real() -> Real:
    """13 coils, 224 x 224."""
    path = catalogue.volume_path("kspace", catalogue.scans("kspace")[0])
    if not path.exists():
        pytest.skip("the real scan is not here: mcddpm data get kspace")
    import h5py

    volume = open_volume(path)
    with h5py.File(path) as file:
        theirs = torch.from_numpy(file["Coils"][:]).to(torch.complex64).reshape(volume.shape[1:])
    return Real(theirs, volume[5], path)


def cg_sense(maps: Tensor, y: Tensor, mask: Tensor, truth: Tensor, steps: int = 30) -> float:
    """The PSNR of argmin_x |M (y - A x)|^2 + w |x|^2, with the best of five weights."""
    A, weights = Sense(maps), torch.tensor([1e-3, 3e-3, 1e-2, 3e-2, 1e-1])[:, None, None]
    N, b = Normal(A, mask.float(), torch.zeros_like(mask)), A.adjoint(y * mask).expand(5, -1, -1)
    x = conjugate_gradients(lambda x: N(x) + weights * x, b, torch.zeros_like(b), torch.ones(1), steps)
    return max(float(metrics.psnr(image, truth)) for image in x.abs())


def test_the_maps_of_a_real_scan(real: Real) -> None:
    """They agree with those of the file up to a smooth phase, which goes to the image; 0.01 rad from coil to coil."""
    ours = espirit(middle(real.y), (224, 224))
    close = alike(ours, real.theirs, real.head)
    assert float(close.mean()) > 0.999 and float(close.quantile(0.05)) > 0.999
    turn = (ours * real.theirs.conj()).sum(0)
    apart = torch.angle(ours * turn.conj() * real.theirs.conj()).square() * real.theirs.abs().square()
    assert float(apart.sum(0)[real.head].mean().sqrt()) < 0.02
    steps = torch.angle(turn[1:] * turn[:-1].conj())[real.head[1:] & real.head[:-1]]
    assert float(steps.abs().quantile(0.98)) < 0.1


def test_cg_sense_with_them_is_as_good_as_with_the_maps_of_the_file(real: Real) -> None:
    """At 4x. Those of the file have no end, so that they are also given ours, which is worth more than two decibels."""
    mask = masks.random_columns(224, acceleration=4, seed=0)
    ours = maps_from_centre(real.y * mask, mask)
    psnr, theirs, within = (
        cg_sense(maps, real.y, mask, real.truth) for maps in (ours, real.theirs, real.theirs * (ours.abs().sum(0) > 0))
    )
    assert psnr > theirs - 0.2
    assert psnr > within - 0.1
    lost = (ours.abs().sum(0) == 0) & real.head
    assert float(lost.sum() / real.head.sum()) < 0.002


def test_they_are_those_of_a_published_program(real: Real) -> None:
    """Every eighth pixel of what sigpy 0.1.27 makes of the same lines: EspiritCalib(y, calib_width=19, thresh=0.02,
    kernel_width=6, crop=0.95). It takes a square block of the centre, ours is 24 x 19."""
    with np.load(Path(__file__).parent / "espirit_sigpy.npz") as file:
        theirs, mask = torch.from_numpy(file["maps"]), torch.from_numpy(file["mask"])
    y = open_volume(real.path)[3]
    ours = maps_from_centre(y * mask, mask)[:, ::8, ::8]
    both = (ours.abs().sum(0) > 0) & (theirs.abs().sum(0) > 0)
    close = alike(ours, theirs, both)
    assert float(close.mean()) > 0.9998 and float(close.quantile(0.02)) > 0.999
    assert float(both.sum()) > 0.95 * float((theirs.abs().sum(0) > 0).sum())
