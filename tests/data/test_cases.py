"""Cases of a study: the same measurement for every method."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from mcddpm.data import cases
from mcddpm.data.cases import Cases, cases_of, fitted, manifest_of, quality_of, target_of
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import measure
from mcddpm.simulation.scans import noise_std
from tests.data.files import fastmri_file


def test_a_slice_with_nothing_in_it_is_refused_by_cases_too(tmp_path: Path) -> None:
    with h5py.File(fastmri_file(tmp_path / "file1000123.h5", 2), "r+") as file:
        file["kspace"][1] = 0
    first, empty = cases_of(Cases(str(tmp_path), "fastmri", accelerations=(4.0,)))
    assert first.make().y_m.any()
    with pytest.raises(ValueError, match="zero everywhere"):
        empty.make()


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Seven slices of a person, in two files: what any named data set is prepared as."""
    np.save(tmp_path / "s.npy", np.random.default_rng(0).random((7, 16, 16), np.float32))
    files = ["a-T1.nii"] * 4 + ["a-T2.nii"] * 3
    content = {"slices": [{"person": "a", "file": file, "slice": k} for k, file in enumerate(files)]}
    (tmp_path / "s.json").write_text(json.dumps(content))
    monkeypatch.setattr(cases, "prepare", lambda *asked: tmp_path / "s.npy")
    return tmp_path / "s.npy"


@pytest.mark.parametrize(
    ("name", "every", "expected"),
    [("T1", 2, [0, 2]), ("T2", 1, [4, 5, 6]), ("T2", 2, [4, 6]), ("", 3, [0, 3, 6])],
)
def test_files_of_a_data_set_are_chosen_by_name(stack: Path, name: str, every: int, expected: list[int]) -> None:
    found = cases_of(Cases("d:test:16", acquisition=name, every=every, accelerations=(2.0,)))
    assert [case.slice for case in found] == expected
    assert all(case.volume.endswith(f"{name}.nii") for case in found)


def test_a_name_that_no_file_has(stack: Path) -> None:
    with pytest.raises(ValueError, match=r"has 'FLAIR' in its name; they are: a-T1\.nii, a-T2\.nii"):
        cases_of(Cases("d:test:16", acquisition="FLAIR"))


def test_every_slice_has_a_seed_of_its_own(stack: Path) -> None:
    """And another with another seed of the study."""
    seeds = [case.seed for seed in (77, 78) for case in cases_of(Cases("d:test:16", seed=seed, accelerations=(4.0,)))]
    assert len(set(seeds)) == len(seeds) == 14
    both = cases_of(Cases("d:test:16"))
    assert [case.seed for case in both[:7]] == [case.seed for case in both[7:]], "the same at every acceleration"


def test_samples_of_each_case_have_a_seed_of_their_own(stack: Path) -> None:
    found = cases_of(Cases("d:test:16"))
    seeds = {case.draw_seed(seed) for case in found for seed in (0, 1)}
    assert len(seeds) == 2 * len(found) == 28 and cases_of(Cases("d:test:16"))[3].draw_seed(1) == found[3].draw_seed(1)


def test_the_manifest_is_of_all_that_was_measured_and_how(stack: Path, tmp_path: Path) -> None:
    def of(choice: Cases) -> str:
        return manifest_of(cases_of(choice))

    usual, mask = Cases("d:test:16"), tmp_path / "mask.npy"
    np.save(mask, np.arange(16) % 2 == 0)
    others = [{"snr": 10.0}, {"seed": 78}, {"family": "equispaced_columns"}, {"every": 2}, {"accelerations": (4.0,)}]
    others += [{"family": str(mask)}, {"truth": "clean"}]
    found = [of(usual), *(of(replace(usual, **other)) for other in others)]  # type: ignore[arg-type]
    np.save(mask, np.arange(16) % 2 == 1)
    found += [of(replace(usual, family=str(mask)))]
    np.save(stack, np.random.default_rng(1).random((7, 16, 16), np.float32))
    found += [of(usual)]
    assert len(set(found)) == len(found) == 10 and of(usual) == found[-1]
    assert manifest_of(reversed(cases_of(usual))) == found[-1], "in whatever order"


@pytest.mark.parametrize("snr", [5.0, 35.0])
def test_a_clean_truth_has_no_noise(stack: Path, snr: float) -> None:
    """The same measurement is compared with the slice itself, or with the full scan and its noise."""
    images = torch.from_numpy(np.load(stack))
    usual = Cases("d:test:16", accelerations=(2.0,), snr=snr)
    gaps, residuals = [], []
    for measured, clean in zip(cases_of(usual), cases_of(replace(usual, truth="clean")), strict=True):
        m, c = measured.make(), clean.make()
        assert torch.equal(m.y_m, c.y_m) and torch.equal(m.mask, c.mask) and m.scale == c.scale
        image = images[measured.slice]
        assert torch.allclose(target_of(c), image, atol=1e-5)
        for one in (m, c):
            std = noise_std(image, snr) * one.scale
            assert one.noise_from == "simulated" and float(one.noise) == pytest.approx(std, rel=1e-5)
        assert torch.allclose(m.operator(m.truth) * m.mask, m.y_m, atol=1e-5)
        gaps.append((m.truth - c.truth) / m.noise)
        residuals.append(((c.y_m - c.operator(c.truth)) / c.noise)[c.mask])
    for values in (gaps, residuals):  # of the full scan, in the image; and of what was measured
        parts = torch.view_as_real(torch.cat([value.flatten() for value in values]))
        assert parts.square().mean(0).tolist() == pytest.approx([1, 1], abs=0.15)


def test_without_noise_there_is_one_truth(stack: Path) -> None:
    usual = Cases("d:test:16", accelerations=(2.0,), snr=math.inf)
    m, c = (cases_of(choice)[0].make() for choice in (usual, replace(usual, truth="clean")))
    assert m.noise == c.noise == 0 and m.noise_from == c.noise_from == "none"
    assert torch.allclose(m.truth, c.truth, atol=1e-6)


def test_truths_that_cannot_be(tmp_path: Path) -> None:
    """Files hold no other truth than what was measured."""
    for protocol in ("paper", "fastmri"):
        with pytest.raises(ValueError, match=f"protocol {protocol} has no use for truth: it takes files as they were"):
            cases_of(Cases(str(tmp_path), protocol, truth="clean"))
    with pytest.raises(ValueError, match="cases of brain: truth is 'clear', expected one of: measured, clean"):
        cases_of(Cases(truth="clear"))  # type: ignore[arg-type]


def test_a_target_that_is_a_centre_crop() -> None:
    A, x = Fourier(), torch.zeros(20, 20, dtype=torch.complex64)
    x[6:14, 6:14] = 1.0
    m = measure(A(x), masks.random_columns(20, acceleration=2, seed=0), A, x, x.abs()[2:18, 3:17])
    assert fitted(x.abs(), target_of(m)).equal(x.abs()[2:18, 3:17])
    assert quality_of(x.abs(), m)["nmse"] == pytest.approx(0.0, abs=1e-9)


def test_a_scan_without_a_truth_is_compared_with_nothing() -> None:
    A, x = Fourier(), torch.ones(8, 8, dtype=torch.complex64)
    with pytest.raises(ValueError, match="a prospective scan has no truth to compare with"):
        target_of(measure(A(x), torch.arange(8) % 2 == 0, A))
