"""Files that cannot be used: one line each, that says what was found and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
from pydicom.dataset import FileDataset
from pydicom.uid import generate_uid

from mcddpm.cli import main
from mcddpm.data.readers import open_volume
from mcddpm.data.volume import summary
from tests.data.files import SLICES, H, W, counts, kspace, write_dicom, write_fastmri, write_ismrmrd, write_nifti


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def with_value(data: np.ndarray, value: complex) -> np.ndarray:
    data = data.copy()
    data[1, 2, 3] = value
    return data


def zero_slice(data: np.ndarray) -> np.ndarray:
    data = data.copy()
    data[1] = 0
    return data


def saved(path: Path, data: np.ndarray, **keys: object) -> Path:
    np.save(path, data, **keys)
    return path


def turned(index: int, header: FileDataset) -> None:
    if index == 1:
        header.ImageOrientationPatient = [1, 0, 0, 0, 0, 1]


def other_shape(index: int, header: FileDataset) -> None:
    if index == 1:
        header.Rows, header.PixelData = H - 1, bytes(2 * (H - 1) * W)


def other_series(index: int, header: FileDataset) -> None:
    if index == 1:
        header.SeriesInstanceUID = generate_uid()


def same_place(index: int, header: FileDataset) -> None:
    if index == 1:
        header.ImagePositionPatient = [10, 20, 0]


def more() -> np.ndarray:
    return np.concatenate([counts(), counts()])


def without(folder: Path) -> Path:
    (folder / "003.dcm").unlink()
    return folder


def cut_in(folder: Path, name: str) -> Path:
    (folder / name).write_bytes((folder / name).read_bytes()[:300])
    return folder


def npz(path: Path) -> Path:
    np.savez(path, kspace=kspace())
    return path


def scramble(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    path.write_bytes(bytes(data))
    return path


def group(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file.create_group("kspace")
    return path


def doubled(path: Path) -> Path:
    with h5py.File(path, "r+") as file:
        lines = file["dataset/data"][:]
        del file["dataset/data"]
        file["dataset/data"] = np.concatenate([lines, lines[-1:]])
    return path


def analyze(path: Path, plane: bytes = b"\x00") -> Path:
    image = nibabel.analyze.AnalyzeImage(counts().astype("f4").transpose(2, 1, 0), np.eye(4))
    image.header["orient"] = plane
    nibabel.save(image, path)
    return path


def half(path: Path) -> Path:
    path.with_suffix(".img").unlink()
    return path


def foreign(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["something"] = [1]
    return path


KSPACE = {"kind": "kspace"}


Case = tuple[Callable[[Path], Path], dict[str, object], str]
BAD: dict[str, Case] = {
    "no such file": (lambda p: p / "none.h5", {}, "no file or folder"),
    "truncated h5": (lambda p: cut(write_fastmri(p / "a.h5", kspace())), {}, "cannot be read as HDF5"),
    "wrong keys": (lambda p: foreign(p / "a.h5"), {}, "holds something; expected"),
    "integer k-space": (lambda p: write_fastmri(p / "a.h5", np.ones((2, 4, 4), int)), {}, "expected complex numbers"),
    "NaN": (lambda p: write_fastmri(p / "a.h5", with_value(kspace(), np.nan)), {}, "slice 1 holds NaN or infinite"),
    "infinite": (
        lambda p: write_fastmri(p / "a.h5", with_value(kspace(), np.inf)),
        {},
        "slice 1 holds NaN or infinite",
    ),
    "zero size": (lambda p: write_fastmri(p / "a.h5", kspace()[:0]), {}, "it is empty"),
    "zero slice": (lambda p: write_fastmri(p / "a.h5", zero_slice(kspace())), {}, "slice 1 is zero everywhere"),
    "five axes": (
        lambda p: write_fastmri(p / "a.h5", kspace(2)[None]),
        {},
        "expected (slices, [coils,] height, width)",
    ),
    "mask of another width": (
        lambda p: write_fastmri(p / "a.h5", kspace(), mask=np.ones(W + 1)),
        {},
        f"mask has {W + 1} columns, kspace has {W}",
    ),
    "missing lines": (lambda p: write_ismrmrd(p / "a.h5", kspace(), skip=((1, 4),)), {}, "the scan is incomplete"),
    "spiral": (lambda p: write_ismrmrd(p / "a.h5", kspace(), trajectory="spiral"), {}, "has a spiral trajectory"),
    "mixed orientations": (lambda p: write_dicom(p / "d", counts(), turned), {}, "has mixed orientations"),
    "mixed shapes": (lambda p: write_dicom(p / "d", counts(), other_shape), {}, "has mixed shapes"),
    "two in one place": (lambda p: write_dicom(p / "d", counts(), same_place), {}, "1 slices in the place of others"),
    "a slice missing": (lambda p: without(write_dicom(p / "d", more())), {}, "one is missing"),
    "a slice cut short": (lambda p: cut_in(write_dicom(p / "d", counts()), "002.dcm"), {}, "002.dcm"),
    "truncated npz": (lambda p: cut(npz(p / "a.npz")), KSPACE, "cannot be read as an array"),
    "npz named npy": (
        lambda p: npz(p / "a.npz").rename(p / "a.npy"),
        KSPACE,
        "is an archive under the name of an array",
    ),
    "corrupt nii.gz": (lambda p: scramble(write_nifti(p / "a.nii.gz", counts().astype("f4"))), {}, "cannot be read"),
    "kspace is a group": (lambda p: group(p / "a.h5"), {}, "kspace is a group"),
    "references of another length": (
        lambda p: write_fastmri(p / "a.h5", kspace(), reconstruction_rss=np.ones((SLICES - 1, H, W), "f4")),
        {},
        "mixed shapes",
    ),
    "a line twice": (lambda p: doubled(write_ismrmrd(p / "a.h5", kspace())), {}, "1 lines more than once"),
    "two series": (lambda p: write_dicom(p / "d", counts(), other_series), {}, "holds 2 series, expected one"),
    "no DICOM": (lambda p: p, {}, "holds no DICOM images"),
    "a text as DICOM": (lambda p: saved(p / "x.npy", counts()).rename(p / "x.dcm"), {}, "cannot be read as DICOM"),
    "pickle in npy": (
        lambda p: saved(p / "a.npy", np.array([{}]), allow_pickle=True),
        KSPACE,
        "cannot be read as an array",
    ),
    "bare array": (lambda p: saved(p / "a.npy", kspace()), {}, "state kind=kspace or kind=image"),
    "real k-space": (lambda p: saved(p / "a.npy", counts()), KSPACE, "expected complex"),
    "unstated coils": (
        lambda p: saved(p / "a.npy", kspace(2)),
        KSPACE,
        "state which of the axes 0, 1, 2, 3 holds coils",
    ),
    "no such axis": (lambda p: saved(p / "a.npy", kspace(2)), {**KSPACE, "coil_axis": 7}, "has no coil axis 7"),
    "complex NIfTI": (lambda p: write_nifti(p / "a.nii", kspace()), {}, "state kind=kspace or kind=image"),
    "truncated NIfTI": (lambda p: cut(write_nifti(p / "a.nii.gz", counts().astype("f4"))), {}, "cannot be read"),
    "no NIfTI": (lambda p: saved(p / "a.npy", counts()).rename(p / "a.nii"), {}, "cannot be read as NIfTI"),
    "no MGZ": (lambda p: saved(p / "a.npy", counts()).rename(p / "a.mgz"), {}, "cannot be read as NIfTI"),
    "half an Analyze pair": (lambda p: half(analyze(p / "a.hdr")), {}, "cannot be read"),
    "Analyze of another plane": (lambda p: analyze(p / "a.hdr", b"\x01"), {}, "axial and sagittal are known"),
    "two Analyze pairs": (lambda p: analyze(analyze(p / "a.hdr").with_name("b.hdr")).parent, {}, "expected one"),
    "no NRRD": (lambda p: saved(p / "a.npy", counts()).rename(p / "a.nrrd"), {}, "cannot be read as NRRD"),
    "unknown ending": (lambda p: saved(p / "a.npy", counts()).rename(p / "a.xyz"), {}, "has an unknown ending"),
    "images for k-space": (lambda p: write_dicom(p / "d", counts()), KSPACE, "holds image, but kind='kspace'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_get_one_line(tmp_path: Path, case: str) -> None:
    make, stated, message = BAD[case]
    path = make(tmp_path)
    with pytest.raises(ValueError) as error:
        summary(open_volume(path, **stated))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("case", "flags"), [("NaN", ()), ("no such axis", ("--kind", "kspace", "--coil-axis", "7")), ("no NRRD", ())]
)
def test_the_command_says_that_line_and_exits_with_code_two(tmp_path: Path, capfd, case: str, flags: tuple) -> None:
    make, _, message = BAD[case]
    assert main(["data", "info", str(make(tmp_path)), *flags]) == 2
    said = capfd.readouterr().err
    assert message in said and "Traceback" not in said and said.count("\n") == 1


def test_a_name_that_is_no_file_may_have_been_meant_for_a_data_set(tmp_path: Path, capfd) -> None:
    assert main(["data", "info", str(tmp_path / "none.h5")]) == 2
    said = capfd.readouterr().err
    assert "is neither a data set" in said and "Traceback" not in said and said.count("\n") == 1
