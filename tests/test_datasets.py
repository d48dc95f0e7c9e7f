"""Protocols against the authors' loader, manifests that repeat a run, slice caches, simulation."""

from __future__ import annotations

import json
import math
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mcddpm.data.readers import open_volume
from mcddpm.data import catalogue
from mcddpm.data.cases import Cases, cases_of
from mcddpm.data.examples import stream_of
from mcddpm.data.phantoms import drawn
from mcddpm.data.protocols import manifest, mask_seed, measurement, read_manifest, repeat, write_manifest
from mcddpm.data.slices import Slices, axial_slices, fourier_resize, open_slices, prepare
from mcddpm.physics import simulation
from mcddpm.physics.fourier import Fourier
from mcddpm.system.settings import from_dict
from mcddpm.training.settings import Config
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


def fastmri_file(path: Path, slices: int = 12, acquisition: str = "CORPD_FBK", size: int = 330) -> Path:
    images = drawn(slices, size, seed=3).images
    rss = np.abs(images)[:, 5:325, 5:325].astype(np.float32)
    with h5py.File(path, "w") as file:
        file["kspace"] = Fourier()(torch.from_numpy(images)).numpy()
        file["reconstruction_rss"] = rss
        file.attrs["acquisition"] = acquisition
    return path


def test_protocol_paper_on_a_drawn_file(tmp_path: Path) -> None:
    path = fastmri_file(tmp_path / "file1000123.h5", 2)
    m = measurement(path, 1)
    assert mask_seed(path, 1) == 100012301
    assert m.y_m.shape == (320, 320) and m.operator.pinv(m.y_m).abs().max().item() == pytest.approx(1)
    with h5py.File(path) as file:
        rss = torch.from_numpy(file["reconstruction_rss"][1])
    assert torch.allclose(m.truth.abs() / m.scale, rss, atol=1e-5)
    assert torch.allclose(m.operator(m.truth) * m.mask, m.y_m, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: measurement(p, 0, protocol="mine"), "unknown protocol 'mine'; known: paper, fastmri"),
        (lambda p: measurement(p, 9), "has slices 0 to 1, there is no slice 9"),
        (lambda p: measurement(p, 0, acceleration=0.5), "acceleration is 0.5"),
        (lambda p: measurement(p, 0, mask=torch.ones(7).bool()), r"mask has shape \(7,\)"),
        (lambda p: manifest([p], "paper", 4), "no slices left of 1 files"),
    ],
)
def test_wrong_requests_are_refused(tmp_path: Path, call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(fastmri_file(tmp_path / "file1000123.h5", 2))


def test_a_slice_with_nothing_in_it_is_refused_by_cases_too(tmp_path: Path) -> None:
    with h5py.File(fastmri_file(tmp_path / "file1000123.h5", 2), "r+") as file:
        file["kspace"][1] = 0
    first, empty = cases_of(Cases(str(tmp_path), "fastmri", accelerations=(4.0,)))
    assert first.make().y_m.any()
    with pytest.raises(ValueError, match="zero everywhere"):
        empty.make()


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


# --- slice caches ---------------------------------------------------------------------------------------------------


def head(path: Path, orientation: str) -> Path:
    """An ellipsoid 150 x 190 x 160 mm with a bright spot up, front and right, at 2 mm, stored in some orientation."""
    shape, spacing = (90, 110, 100), 2.0
    x, y, z = np.meshgrid(*((np.arange(n) - n / 2) * spacing for n in shape), indexing="ij")
    data = ((x / 75) ** 2 + (y / 95) ** 2 + (z / 80) ** 2 < 1).astype(np.float32)
    data += ((x - 30) ** 2 + (y - 40) ** 2 + (z - 20) ** 2 < 100) * 1.0
    image = nibabel.nifti1.Nifti1Image(data, np.diag([spacing, spacing, spacing, 1]))
    wanted = nibabel.orientations.axcodes2ornt(orientation)
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(
        image.as_reoriented(nibabel.orientations.ornt_transform(nibabel.io_orientation(image.affine), wanted)), path
    )
    return path


@pytest.mark.parametrize("orientation", ["RAS", "LPS", "PIR", "ASL"])
def test_axial_slices_whatever_the_orientation_on_disk(tmp_path: Path, orientation: str) -> None:
    images, kept = axial_slices(open_volume(head(tmp_path / "a.nii.gz", orientation)), 96)
    assert images.shape[1:] == (96, 96) and len(images) == len(kept) and images.dtype == np.float32
    _, i, j = np.unravel_index(images.argmax(), images.shape)
    assert i < 48 - 12 and j > 48 + 8, "the spot is to the front (up in the picture) and to the right"
    assert len(kept) == 63 or len(kept) == 64  # 125 mm at 2 mm
    width = (images[len(images) // 2] > 0.3).any(0).sum() * 240 / 96
    assert 130 < width < 155


def test_fourier_resize_keeps_intensity_and_inverts() -> None:
    rng = np.random.RandomState(0)
    small = rng.rand(20, 20)
    big = fourier_resize(small, 30)
    assert big.real.mean() == pytest.approx(small.mean())
    np.testing.assert_allclose(fourier_resize(big, 20).real, small, atol=1e-10)


def test_prepare_makes_a_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCDDPM_CACHE", str(tmp_path))
    archive = catalogue.Archive("p", "p.whl", "0" * 64)
    scans = [
        catalogue.Scan(f"p{k}", split, archive, "a.nii.gz", "", "w", "l") for k, split in enumerate(("train", "test"))
    ]
    monkeypatch.setitem(catalogue.DATASETS, "heads", scans)
    with pytest.raises(ValueError, match="is not here yet: mcddpm data get heads"):
        prepare("heads", "train", 48)
    head(catalogue.volume_path("heads", scans[0]), "RAS")
    path = prepare("heads", "train", 48)
    stamp = path.stat().st_mtime_ns
    assert prepare("heads", "train", 48) == path and path.stat().st_mtime_ns == stamp
    rows = json.loads(path.with_suffix(".json").read_text())["slices"]
    assert len(rows) == len(np.load(path)) and {row["person"] for row in rows} == {"p0"}
    with pytest.raises(ValueError, match="has no split 'validation'"):
        prepare("heads", "validation", 48)
    settings = from_dict(Config, {"data": {"train": "heads:train:48"}})
    slices = open_slices(settings, "heads:train:48", 1)
    batch = stream_of(settings, slices, augment=True).batch([0, 1, 2])
    assert batch.y_m.is_complex() and batch.y_m.shape == (3, 48, 48)
    with pytest.raises(ValueError, match="not of the form NAME:SPLIT:SIZE"):
        open_slices(settings, "heads:train", 1)


# --- simulation -----------------------------------------------------------------------------------------------------


def test_a_simulated_scan_has_phase_noise_and_no_hermitian_k_space() -> None:
    magnitude = torch.from_numpy(np.abs(drawn(1, 64, seed=0).images[0]))
    x = simulation.scan(magnitude, seed=5, snr=math.inf)
    assert torch.allclose(x.abs(), magnitude, atol=1e-6)
    y = Fourier()(x)[1:, 1:]
    assert (y - y.flip(0, 1).conj()).norm() > 0.3 * y.norm()
    noisy = simulation.scan(magnitude, seed=5, snr=20.0)
    foreground = magnitude[magnitude > 0.1 * magnitude.max()].mean()
    noise = torch.view_as_real(noisy - x)
    assert noise.std().item() == pytest.approx(foreground.item() / 20, rel=0.05)
    assert torch.equal(noisy, simulation.scan(magnitude, seed=5, snr=20.0))
    assert not torch.equal(noisy, simulation.scan(magnitude, seed=6, snr=20.0))
    with pytest.raises(ValueError, match="snr is 0"):
        simulation.scan(magnitude, seed=0, snr=0)


def test_the_phase_is_smooth() -> None:
    phase = simulation.smooth_phase((64, 64), seed=1)
    assert phase.diff(dim=0).abs().max() < 0.3 and phase.diff(dim=1).abs().max() < 0.3 and phase.std() > 0.05


def test_coil_maps_are_normalised_and_different() -> None:
    maps = simulation.coil_maps(5, (20, 24), seed=0)
    assert maps.shape == (5, 20, 24)
    assert torch.allclose(maps.abs().square().sum(0), torch.ones(20, 24), atol=1e-5)
    assert (maps[0] - maps[1]).abs().mean() > 0.1


def test_attenuation_of_known_tissues() -> None:
    mu = simulation.attenuation(torch.tensor([-2048.0, -1000.0, 0.0, 1000.0]))
    assert torch.allclose(mu, simulation.WATER * torch.tensor([0.0, 0.0, 1.0, 2.0]))


def test_augmentation_moves_but_does_not_invent() -> None:
    image = torch.zeros(40, 60)
    image[10:20, 15:30] = 1.0
    still = simulation.augment(image, 0, shift=0, turn=0, intensity=0)
    assert torch.allclose(still, image, atol=1e-4) or torch.allclose(still, image.flip(1), atol=1e-4)
    seen = [simulation.augment(image, seed) for seed in range(20)]
    areas = torch.stack([(one > 0.5).sum() for one in seen]).float()
    assert (areas / 150 - 1).abs().max() < 0.1, "turned and shifted, not stretched"
    assert all(one.min() >= 0 for one in seen)
    assert any(not torch.allclose(seen[0], one) for one in seen[1:])


def test_training_examples_are_augmented_and_validation_is_not() -> None:
    images = np.abs(drawn(2, 32, seed=0).images)
    settings = Config()
    slices = Slices(images, "two")
    trained, judged = (stream_of(settings, slices, augment=augment) for augment in (True, False))
    a, b = (trained.measure([0], [seed]) for seed in (1, 2))
    assert not torch.equal((a.y_m + a.y_c).abs(), (b.y_m + b.y_c).abs())
    c = judged.measure([0], [1])
    x = Fourier().pinv((c.y_m + c.y_c) / c.scale[:, None, None])[0].abs()
    assert (x - torch.from_numpy(images[0])).norm() < 0.2 * x.norm()
    assert torch.equal(trained.measure([0], [1]).y_m, a.y_m)
