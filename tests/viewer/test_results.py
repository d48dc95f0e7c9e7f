"""What the page is told of results: right numbers over the wire, and nothing from outside the folder."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
from fastapi.testclient import TestClient

from mcddpm.physics.fourier import Fourier
from mcddpm.viewer.results import pack
from tests.scans import SIZE
from tests.viewer.shown import image

pytest_plugins = ["tests.viewer.fixtures"]
NAME = "results/full.h5"


def stored(folder: Path, *keys: str, slice: int = 1) -> list[np.ndarray]:
    with h5py.File(folder / NAME) as file:
        return [file[key][slice] for key in keys]


def test_results_are_listed_and_nothing_else(reader: TestClient) -> None:
    assert reader.get("/api/results").json() == [NAME]
    choices = reader.get("/api/choices").json()
    assert choices["inputs"] == ["broken.h5", "full.h5", "sub/part.h5"], "neither links out of the folder nor .parts"
    assert "random_columns" in choices["masks"] and "sparse_views" not in choices["masks"]


def test_layers_are_those_of_the_file(reader: TestClient, shown: Path) -> None:
    told = reader.get("/api/result", params={"name": NAME}).json()
    assert (told["slices"], told["height"], told["samples"]) == (3, SIZE, 5) and "error" in told["layers"]
    mean, std, truth, samples, mask = stored(shown, "mean", "std", "truth", "samples", "mask")
    expected = {"mean": mean, "std": std, "error": abs(mean - truth), "mask": mask.astype(float)}
    expected["sample"] = abs(samples[3])
    y = abs(Fourier()(torch.from_numpy(samples[3])).numpy())
    expected["kspace"] = np.log10(np.maximum(y, y.max() * 1e-6))
    for name, values in expected.items():
        asked = {"name": NAME, "layer": name, "slice": 1, "sample": 3}
        found = image(reader.get("/api/layer", params=asked))
        assert np.abs(found - values).max() <= np.ptp(values) / 65535, name


def test_bytes_are_two_a_pixel_and_bear_anything() -> None:
    for values in (np.zeros((2, 3)), np.full((2, 3), -7.5), np.array([[np.nan, np.inf], [1.0, 2.0]])):
        content, low, high = pack(values)
        assert len(content) == 2 * values.size and np.isfinite([low, high]).all()


def test_numbers_of_a_slice_and_a_box(reader: TestClient, shown: Path) -> None:
    found = reader.get("/api/numbers", params={"name": NAME, "slice": 1}).json()
    mean, truth, samples, mask = stored(shown, "mean", "truth", "samples", "mask")
    expected = 10 * np.log10(truth.max() ** 2 / ((mean - truth) ** 2).mean())
    assert found["psnr_mean"] == pytest.approx(expected, rel=1e-4)
    assert found["acceleration"] == pytest.approx(SIZE**2 / int(mask.sum()))
    place = {"top": 4, "left": 6, "height": 5, "width": 7}
    box = reader.get("/api/box", params={"name": NAME, "slice": 1, **place}).json()
    inside = np.s_[4:9, 6:13]
    assert box["mean"] == pytest.approx(mean[inside].mean(), rel=1e-5) and sum(box["histogram"]) == 35 == box["pixels"]
    averages = [abs(sample[inside]).mean() for sample in samples]
    assert box["std_of_average"] == pytest.approx(np.std(averages, ddof=1), rel=1e-4)


@pytest.mark.parametrize("format", ["h5", "nifti", "dicom"])
def test_downloads(reader: TestClient, shown: Path, format: str) -> None:
    answer = reader.get("/api/download", params={"name": NAME, "format": format})
    assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
    if format == "h5":
        assert answer.content == (shown / NAME).read_bytes()
        return
    names = zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
    wanted = {"nifti": ["full.json", "full.nii.gz", "full_std.nii.gz"], "dicom": ["full/mean-0001.dcm"]}[format]
    assert set(wanted) <= set(names)


OUTSIDE = [
    *("../secret.h5", "results/../../secret.h5", "/etc/passwd", "..%2Fsecret.h5", "%2e%2e/secret.h5", "..\\secret.h5"),
    *("link.h5", "results/full.h5/../../../secret.h5", "....//secret.h5", "results\0/full.h5", "~/secret.h5", "."),
    *("", "results", ".view/x.json", "results/.parts/run.json", "results/.parts/reconstruction.json"),
    *("file:///etc/passwd", "a" * 999, "notes.txt"),
]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("where", ["result", "layer", "numbers", "download", "input", "box"])
def test_nothing_outside_the_folder(reader: TestClient, shown: Path, name: str, where: str) -> None:
    more: dict[str, Any] = {"layer": "mean", "slice": 0, "top": 0, "left": 0, "height": 1, "width": 1}
    for text in (name, str(shown.parent / "secret.h5")):
        answer = reader.get(f"/api/{where}", params={"name": text, **more})
        assert answer.status_code in (404, 422) and answer.json()["detail"]
        assert str(shown.parent) not in answer.text.replace(text, ""), "where the folder lies is nobody's business"
    raw = name if name.isprintable() else "x"
    answer = reader.get(f"/api/{where}?name={raw}&layer=mean&slice=0&top=0&left=0&height=1&width=1")
    assert answer.status_code in (404, 422)
