"""What is written is read again, by us and by other libraries, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest

from mcddpm.data.readers import open_volume
from mcddpm.data.writers import Result, write
from tests.data.files import AFFINE, PROVENANCE, result, stack


@pytest.mark.parametrize("name", ["a.h5", "a.nii", "a.nii.gz", "series"])
def test_results_come_back(tmp_path: Path, name: str) -> None:
    r = result()
    write(tmp_path / name, r)
    volume = open_volume(tmp_path / name)
    np.testing.assert_allclose(stack(volume), r.mean, atol=r.mean.max() * (1e-5 if name == "series" else 1e-6))
    np.testing.assert_allclose(volume.geometry.affine, AFFINE, atol=1e-5)
    if not name.startswith("a.nii"):  # there the std is a file of its own
        np.testing.assert_allclose(volume.reference("std", 1), r.std[1], atol=r.std.max() * 1e-5)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    with pytest.raises(ValueError, match="is there already"):
        write(tmp_path / ("series" if name == "series" else name), r)


def test_other_libraries_read_results(tmp_path: Path) -> None:
    r = result()
    write(tmp_path / "a.h5", r)
    with h5py.File(tmp_path / "a.h5") as file:
        assert json.loads(file.attrs["provenance"]) == PROVENANCE
        np.testing.assert_allclose(file["samples"][1], r.samples[1], rtol=1e-6)
        np.testing.assert_allclose(file["std"], r.std, rtol=1e-6)
    write(tmp_path / "b.nii.gz", r)
    image = nibabel.load(tmp_path / "b_std.nii.gz")
    np.testing.assert_allclose(image.affine, AFFINE, atol=1e-6)
    np.testing.assert_allclose(image.get_fdata(), r.std.transpose(2, 1, 0), rtol=1e-5)
    assert json.loads((tmp_path / "b.json").read_text()) == PROVENANCE


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    bad = result()
    object.__setattr__(bad, "provenance", {"x": object()})  # json cannot hold it
    for name in ("a.h5", "a.nii", "series"):
        with pytest.raises(TypeError):
            write(tmp_path / name, bad)
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "b.nii", result())
    (tmp_path / "b_std.nii").unlink()
    (tmp_path / "b.json").unlink()
    with pytest.raises(ValueError, match="is there already"):
        write(tmp_path / "b.nii", result())
    assert [p.name for p in tmp_path.iterdir()] == ["b.nii"]
    with pytest.raises(ValueError, match="mean and std have shapes"):
        Result(np.zeros((2, 3, 3)), np.zeros((2, 3, 4)), {})
    with pytest.raises(ValueError, match="unknown ending"):
        write(tmp_path / "a.png", result())
