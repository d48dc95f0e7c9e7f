"""Protocols against the authors' loader, what they refuse, and manifests that repeat a run."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mcddpm.data.protocols import manifest, mask_seed, measurement, read_manifest, repeat, write_manifest
from mcddpm.data.readers import open_volume
from mcddpm.physics.fourier import Fourier
from tests.data.files import COILS, SLICES, H, W, fastmri_file, kspace, write_fastmri
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


def test_coil_combination_of_a_real_operator(tmp_path: Path) -> None:
    """A fastMRI multi-coil file through protocol fastmri: measured entries are the file's, truth explains them."""
    data = kspace(COILS)
    path = write_fastmri(tmp_path / "a.h5", data)
    m = measurement(path, 1, protocol="fastmri", acceleration=2)
    y = torch.from_numpy(data[1])
    assert torch.allclose(m.y_m / m.scale, y * m.mask, atol=1e-4)
    assert m.truth.shape == (H, W) and m.operator(m.truth).shape == y.shape
    single = measurement(write_fastmri(tmp_path / "b.h5", kspace()), 0, protocol="fastmri", acceleration=2)
    assert torch.allclose(Fourier()(single.truth) * single.mask, single.y_m, atol=1e-5)
    assert single.operator.pinv(single.y_m).abs().max().item() == pytest.approx(1)


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
        (lambda p: measurement(p, 0, mask=torch.ones(7).bool()), r"mask has shape \(7,\)"),
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
