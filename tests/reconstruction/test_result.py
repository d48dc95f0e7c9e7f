"""A Reconstruction: its mean and std, how it shows itself, and that it can be kept."""

from __future__ import annotations

import base64
import json
import math
import re
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pydicom
import pytest
import torch
from torch import Tensor

from mcddpm.data.readers import open_volume
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system.progress import Notice, note

PLAN = DrawPlan(3, "heun", 2, seed=4)


def made(dtype: torch.dtype = torch.complex64, count: int = 3, **settings: object) -> Reconstruction:
    g = torch.Generator().manual_seed(0)
    samples = torch.randn(count, 12, 10, dtype=dtype, generator=g) + 3
    usual = {"scale": 0.5, "acceleration": 4.02, "plan": PLAN, "operator": "fourier"}
    return Reconstruction(samples, 3, **(usual | settings))  # type: ignore[arg-type]


def test_mean_and_std_are_of_magnitudes() -> None:
    recon = made()
    assert torch.equal(recon.mean, recon.samples.abs().mean(0)) and recon.mean.shape == (12, 10)
    assert torch.equal(recon.std, recon.samples.abs().std(0))


def test_those_of_ct_are_of_values() -> None:
    recon = made(torch.float32)
    recon = Reconstruction(recon.samples - 3, 3)
    assert (recon.samples < 0).any() and torch.equal(recon.mean, recon.samples.mean(0))
    assert torch.equal(recon.std, recon.samples.std(0))


def test_one_sample_has_no_std() -> None:
    recon = made(count=1)
    assert recon.std.isnan().all() and recon.std.shape == (12, 10) and not recon.mean.isnan().any()


class Doubled:
    """A calibration that stretches by two, and says so."""

    def stretch(self, recon, mean: Tensor, std: Tensor, level: float, surprise: float | None):
        assert torch.equal(mean, torch.as_tensor(recon.mean) * recon.scale), "in the units of the model"
        return torch.full_like(std, 2.0), (note(f"{level} {surprise}"),)


def test_an_interval_is_the_mean_and_so_many_stds() -> None:
    recon = made()
    lower, upper, notices = recon.interval(Doubled(), 0.8, 0.3)
    assert torch.allclose(upper, recon.mean + 2 * recon.std, rtol=1e-5)
    assert torch.allclose(lower, (recon.mean - 2 * recon.std).clamp(min=0), atol=1e-5) and (lower == 0).any()
    assert [str(notice) for notice in notices] == ["0.8 0.3"]
    ct = Reconstruction(made(torch.float32).samples - 3, 3, scale=0.5)
    assert (ct.interval(Doubled()).lower < 0).any(), "attenuation may be below zero"
    with pytest.raises(ValueError, match="there is 1 sample, which has no std: an interval takes 2 or more"):
        made(count=1).interval(Doubled())


def test_numpy_stays_numpy() -> None:
    recon = Reconstruction(made().samples.numpy(), 3)
    images = (recon.mean, recon.std, *recon.interval(Doubled())[:2])
    assert all(isinstance(image, np.ndarray) for image in images)


# --- to look at -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recon", "told"),
    [
        (made(), "Reconstruction(3 samples of 12 x 10 from 4.0x, 9 network calls)"),
        (
            made(count=1, acceleration=math.nan, notices=(Notice("a", "the matrix is odd"), note("and so on"))),
            "Reconstruction(1 sample of 12 x 10, 3 network calls; the matrix is odd; and so on)",
        ),
    ],
)
def test_it_says_in_one_line_what_it_is(recon: Reconstruction, told: str) -> None:
    assert repr(recon) == told


def test_it_is_shown_beside_its_std_and_a_sample() -> None:
    recon = made()
    figure = recon.plot()
    shown = {axis.get_title(): axis.images[0].get_array() for axis in figure.axes if axis.get_title()}
    assert list(shown) == ["mean of 3", "std", "one sample"]
    for name, image in (("mean of 3", recon.mean), ("std", recon.std), ("one sample", recon.samples[0].abs())):
        np.testing.assert_array_equal(shown[name], image.numpy())
    alone = [axis.get_title() for axis in made(count=1).plot().axes if axis.get_title()]
    assert alone == ["mean of 1", "one sample"]
    made(torch.float32).plot()


def test_a_notebook_shows_a_picture_and_the_line() -> None:
    recon = made(notices=(note("1 < 2"),))
    page = recon._repr_html_()
    assert "3 samples of 12 x 10" in page and "1 &lt; 2" in page and "1 < 2" not in page
    (source,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(source).startswith(b"\x89PNG\r\n")


# --- to keep --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.h5", "a.nii", "a.nii.gz", "series"])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_what_is_saved_is_read_again(tmp_path: Path, name: str, kind: str) -> None:
    recon = made() if kind == "torch" else Reconstruction(made().samples.numpy(), 3, plan=PLAN)
    recon.save(str(tmp_path / name) if kind == "numpy" else tmp_path / name)
    volume = open_volume(tmp_path / name)
    top = float(np.asarray(recon.mean).max())
    assert volume.shape == (1, 12, 10) and volume.kind == "image"
    np.testing.assert_allclose(volume[0], recon.mean, atol=1e-4 * top if name == "series" else 1e-6 * top)
    std = volume.reference("std", 0)
    if name.startswith("a.nii"):
        std = nibabel.load(tmp_path / name.replace("a.", "a_std.")).get_fdata()[:, :, 0].T
    np.testing.assert_allclose(std, recon.std, atol=1e-4 * top)
    with pytest.raises(ValueError, match="is there already"):
        recon.save(tmp_path / name)


def test_an_h5_holds_samples_and_where_they_come_from(tmp_path: Path) -> None:
    recon = made(notices=(note("the matrix is odd"),))
    recon.save(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["samples"][0], recon.samples.numpy())
        provenance = json.loads(file.attrs["provenance"])
    plan = {"samples": 3, "sampler": "heun", "steps": 2, "grid": None, "seed": 4}
    assert provenance["made_by"].startswith("mcddpm ") and provenance["plan"] == plan
    assert (provenance["calls"], provenance["scale"], provenance["warnings"]) == (3, [0.5], ["the matrix is odd"])


def test_one_sample_is_saved_without_a_std(tmp_path: Path) -> None:
    made(count=1).save(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        assert "std" not in file and file["samples"].shape == (1, 1, 12, 10)
    made(count=1).save(tmp_path / "a.nii.gz")
    assert not (tmp_path / "a_std.nii.gz").exists()


@pytest.mark.parametrize(("operator", "modality"), [("radon", "CT"), ("sense", "MR")])
def test_dicom_says_ct_of_ct(tmp_path: Path, operator: str, modality: str) -> None:
    made(torch.float32 if operator == "radon" else torch.complex64, operator=operator).save(tmp_path / "series")
    header = pydicom.dcmread(next((tmp_path / "series").iterdir()))
    assert header.Modality == modality


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a.png has an unknown ending; known: .h5, .nii, .nii.gz, or a folder"):
        made().save(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
