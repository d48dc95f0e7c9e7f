"""Protocols against the authors' loader, what they refuse, and manifests that repeat a run."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mcddpm.data.phantoms import drawn
from mcddpm.data.protocols import manifest, mask_seed, measurement, read_manifest, repeat, write_manifest
from mcddpm.data.readers import open_volume
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier, fft
from mcddpm.physics.measurement import Measurement
from mcddpm.simulation.scans import noise_std
from tests.data.files import COILS, SLICES, fastmri_file, kspace, write_fastmri
from tests.golden import golden


def test_protocol_paper_is_the_authors_loader() -> None:
    """Slice 1 at 4x: mask, scale, measured and unmeasured k-space; theirs is ours times (-1)^(i + j)."""
    theirs = load_file(golden("file1000999.4x.safetensors"))
    m = measurement(golden("file1000999.h5"), 1, protocol="paper", acceleration=4)
    i = torch.arange(320)
    sign = 1.0 - 2 * ((i[:, None] + i) % 2)
    y_m, y_c = (sign * torch.complex(*theirs[f"1.{key}"]) for key in ("kspace_zf", "kspace_c"))
    assert m.scale == pytest.approx(theirs["1.scale_coeff"].item(), rel=1e-5)
    assert (theirs["1.mask"].bool() == m.mask).all()
    assert (m.y_m - y_m).norm() < 1e-5 * y_m.norm()
    assert (m.operator(m.truth) * ~m.mask - y_c).norm() < 1e-5 * y_c.norm()


def test_protocol_paper_on_a_drawn_file(tmp_path: Path) -> None:
    path = fastmri_file(tmp_path / "file1000123.h5", 2)
    m = measurement(path, 1)
    assert mask_seed(path, 1) == 100012301
    assert m.y_m.shape == (320, 320) and m.operator.pinv(m.y_m).abs().max().item() == pytest.approx(1)
    with h5py.File(path) as file:
        rss = torch.from_numpy(file["reconstruction_rss"][1])
    assert torch.allclose(m.truth.abs() / m.scale, rss, atol=1e-5)
    assert torch.allclose(m.operator(m.truth) * m.mask, m.y_m, atol=1e-4)


# --- noise, and several coils ---------------------------------------------------------------------------------------

SIZE = 64


class Scan:
    """A head as receivers with correlated noise see it, of mean level `std` in each part: k-space y, (C, H, W)."""

    def __init__(self, coils: int) -> None:
        self.x = torch.from_numpy(drawn(1, SIZE, seed=3))[0]
        self.std = noise_std(self.x.abs(), 20)
        g = torch.Generator().manual_seed(7)
        L = torch.eye(coils) + 0.3 * torch.randn(coils, coils, dtype=torch.complex64, generator=g) * (coils > 1)
        L = self.std * L / (L @ L.mH).diagonal().real.mean().sqrt()
        self.covariance = L @ L.mH
        maps = coil_maps(coils, (SIZE, SIZE), 5) if coils > 1 else torch.ones(1, SIZE, SIZE)
        eps = torch.view_as_complex(torch.randn(coils, SIZE, SIZE, 2, generator=g))
        self.y = fft(maps * self.x) + torch.einsum("cd,dhw->chw", L, eps)
        self.rss = (maps * self.x).abs().square().sum(0).sqrt()  # without noise

    def error(self, m: Measurement) -> float:
        """The rms of the truth's magnitude within the head, over the mean level of the noise."""
        inside = self.rss > 0.1 * self.rss.max()
        return float((m.truth.abs() / m.scale - self.rss)[inside].square().mean().sqrt()) / self.std


def take(path: Path, y: Tensor, **noise: object) -> Measurement:
    """Through a file in fastMRI's layout, at 2x."""
    data = y[None] if len(y) > 1 else y  # one coil has no axis of its own
    return measurement(write_fastmri(path / "file1.h5", data.numpy()), 0, "fastmri", acceleration=2, **noise)


def combination(m: Measurement, y: Tensor) -> Tensor:
    """T of y_m = M T y, (C', C): refused if it is not of that form."""
    flat, virtual = y.masked_fill(~m.mask, 0).flatten(1), (m.y_m / m.scale).reshape(-1, SIZE * SIZE)
    T = virtual @ torch.linalg.pinv(flat)
    assert (T @ flat - virtual).norm() < 1e-4 * virtual.norm() and not m.y_m[..., ~m.mask].any()
    return T


@pytest.mark.parametrize("source", ["auto", "covariance", "one a coil"])
def test_coils_become_white(tmp_path: Path, source: str) -> None:
    """Of the level that receivers had. The truth is the full scan, combined with the maps of those coils: as large as
    the root sum of squares of the receivers, and with less noise than if they had counted as independent."""
    scan = Scan(4)
    stds = scan.covariance.diagonal().real.sqrt()
    how = {"auto": {}, "covariance": {"noise": scan.covariance}, "one a coil": {"noise": stds}}[source]
    m = take(tmp_path, scan.y, **how)
    assert m.noise_from == ("air" if source == "auto" else "given")
    level = float(m.noise / m.scale)
    assert m.noise_level == pytest.approx(scan.std, rel=0.1 if source == "auto" else 1e-4)
    T, K = combination(m, scan.y), torch.diag(stds.square()) + 0j if source == "one a coil" else scan.covariance
    white = T @ K @ T.mH / level**2
    off = float(torch.linalg.matrix_norm(white - torch.eye(len(T)), 2))
    assert off < (0.3 if source == "auto" else 1e-3), "air is few numbers"
    whole = torch.einsum("vc,chw->vhw", T, scan.y)
    assert (m.truth / m.scale - m.operator.pinv(whole)).norm() < 1e-4 * scan.rss.norm()
    plain = scan.error(take(tmp_path, scan.y, noise=0.0))
    assert plain > 0.9
    if source != "one a coil":
        assert scan.error(m) < 0.8 * plain


@pytest.mark.parametrize("coils", [1, 4])
def test_without_noise_receivers_stay_as_they_are(tmp_path: Path, coils: int) -> None:
    """Measured k-space to the bit, scaled; the truth explains it."""
    scan = Scan(coils)
    m = take(tmp_path, scan.y, noise=0.0)
    y = scan.y if coils > 1 else scan.y[0]
    assert m.noise == 0 and m.noise_from == "none" and m.y_m.shape == y.shape
    assert torch.equal(m.y_m, y.masked_fill(~m.mask, 0) / (1 / m.scale))
    assert m.operator.pinv(m.y_m).abs().max().item() == pytest.approx(1)
    assert (m.truth / m.scale - m.operator.pinv(y)).norm() < 1e-5 * m.truth.norm() / m.scale
    if coils == 1:
        assert torch.allclose(Fourier()(m.truth) * m.mask, m.y_m, atol=1e-5)


def test_noise_of_one_coil(tmp_path: Path) -> None:
    """Given in the units of k-space, or read off the air; and what cannot be known is bounded from above."""
    scan = Scan(1)
    plain = take(tmp_path, scan.y, noise=0.0)
    for noise, expected, source in (
        (0.5, 0.5, "given"),
        (3 * scan.std, 3 * scan.std, "given"),
        (None, scan.std, "air"),
    ):
        m = take(tmp_path, scan.y, noise=noise)
        assert float(m.noise / m.scale) == pytest.approx(expected, rel=0.1 if noise is None else 1e-5)
        assert m.noise_from == source and torch.equal(m.y_m, plain.y_m) and torch.equal(m.truth, plain.truth)
    by_entry = torch.linspace(0, 1, SIZE).expand(SIZE, SIZE)
    m = take(tmp_path, scan.y, noise=by_entry)
    assert torch.allclose(m.noise / m.scale, by_entry, rtol=1e-5)
    few = write_fastmri(tmp_path / "few.h5", kspace())
    assert measurement(few, 0, "fastmri", 2).noise_from == "at most", "too few columns outside the centre"


def test_the_paper_has_no_noise(tmp_path: Path) -> None:
    path = fastmri_file(tmp_path / "file1000123.h5", 2)
    usual, noisy = measurement(path, 1), measurement(path, 1, noise=0.2)
    assert usual.noise == 0 and torch.equal(usual.y_m, noisy.y_m)
    assert float(noisy.noise / noisy.scale) == pytest.approx(0.2, rel=1e-5)


# --- what else protocols do -----------------------------------------------------------------------------------------


def test_padding_is_not_a_mask(tmp_path: Path) -> None:
    """Zero columns at the edges of a fully sampled file; with references or without."""
    data = kspace()
    data[..., :2] = data[..., -1:] = 0
    for extra in ({}, {"reconstruction_esc": np.ones((SLICES, 8, 8), np.float32)}):
        path = write_fastmri(tmp_path / f"file{len(extra)}.h5", data, **extra)
        assert open_volume(path).mask is None
        m = measurement(path, 0, protocol="fastmri", acceleration=2)
        assert m.truth is not None and not m.mask[:2].any() and (m.target is not None) == bool(extra)


def test_coil_maps_do_not_know_what_was_not_measured(tmp_path: Path) -> None:
    data = kspace(COILS)
    path = write_fastmri(tmp_path / "file1.h5", data)
    first = measurement(path, 1, protocol="fastmri", acceleration=2)
    changed = np.where(first.mask.numpy(), data, 7 * data)
    second = measurement(write_fastmri(tmp_path / "other.h5", changed), 1, "fastmri", mask=first.mask)
    assert torch.equal(first.operator.maps, second.operator.maps)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: measurement(p, 0, protocol="mine"), "unknown protocol 'mine'; known: paper, fastmri"),
        (lambda p: measurement(p, 9), "has slices 0 to 1, there is no slice 9"),
        (lambda p: measurement(p, 0, acceleration=0.5), "acceleration is 0.5"),
        (
            lambda p: measurement(p, 0, mask=torch.ones(7).bool()),
            r"mask has shape \(7,\), expected one that broadcasts",
        ),
        (lambda p: measurement(p, 0, mask=torch.ones(320)), r"mask has dtype torch.float32, expected torch.bool"),
        (lambda p: measurement(p, 0, "fastmri", mask=torch.zeros(330).bool()), "the measured data are zero everywhere"),
        (lambda p: measurement(p, 0, noise=-1.0), "noise holds values that are negative"),
        (lambda p: measurement(p, 0, noise=torch.ones(7)), r"noise has shape \(7,\), k-space \(320, 320\): expected"),
        (lambda p: manifest([p], "paper", 4), "no slices left of 1 files"),
    ],
)
def test_wrong_requests_are_refused(tmp_path: Path, call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(fastmri_file(tmp_path / "file1000123.h5", 2))


def test_manifests_repeat_a_run(tmp_path: Path) -> None:
    """PD apart from PDFS, five slices dropped at each end, and the same measurement again from the manifest."""
    pd = fastmri_file(tmp_path / "file1000001.h5", 12)
    pdfs = fastmri_file(tmp_path / "file1000002.h5", 11, "CORPDFS_FBK")
    entries = manifest([pd, pdfs], "paper", 4, acquisition="CORPD_FBK")
    assert [(e.file, e.slice, e.seed) for e in entries] == [
        ("file1000001.h5", 5, 100000105),
        ("file1000001.h5", 6, 100000106),
    ]
    digest = write_manifest(tmp_path / "manifest.json", entries)
    again = read_manifest(tmp_path / "manifest.json")
    assert again == entries and len(digest) == 64
    assert torch.equal(repeat(again[0], tmp_path).y_m, measurement(pd, 5).y_m)
    changed = json.loads((tmp_path / "manifest.json").read_text())
    changed["slices"][0]["slice"] = 7
    (tmp_path / "manifest.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="was changed"):
        read_manifest(tmp_path / "manifest.json")
    with h5py.File(pd, "r+") as file:
        file.attrs["touched"] = 1
    with pytest.raises(ValueError, match="is not the file of the manifest"):
        repeat(entries[0], tmp_path)
