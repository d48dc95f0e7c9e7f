"""ESPIRiT finds the maps of simulated coils, and those that a real scan's file carries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcddpm.data import catalogue
from mcddpm.data.phantoms import drawn
from mcddpm.data.readers import open_volume
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.espirit import espirit
from mcddpm.physics.fourier import fft, ifft

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


def test_a_small_centre_is_refused() -> None:
    with pytest.raises(ValueError, match="the centre of k-space has 8 x 24 entries, ESPIRiT takes 12 or more"):
        espirit(torch.zeros(2, 8, 24, dtype=torch.complex64), (32, 32))


def test_the_maps_of_a_real_scan() -> None:
    """13 coils: against the maps that were made of all flip angles, in the file."""
    path = catalogue.volume_path("kspace", catalogue.scans("kspace")[0])
    if not path.exists():
        pytest.skip("the real scan is not here: mcddpm data get kspace")
    import h5py

    volume = open_volume(path)
    with h5py.File(path) as file:
        theirs = torch.from_numpy(file["Coils"][:]).to(torch.complex64).reshape(volume.shape[1:])
    y = volume[5]
    image = (theirs.conj() * ifft(y)).sum(0).abs()
    shape = (int(y.shape[-2]), int(y.shape[-1]))
    close = alike(espirit(middle(y), shape), theirs, image > 0.1 * image.max())
    assert float(close.mean()) > 0.999 and float(close.quantile(0.05)) > 0.999
