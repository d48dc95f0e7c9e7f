"""calibration.json: written, found beside the weights, in a folder or in a card of before; never another model's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mcddpm import load_model
from mcddpm.models.store import ASSETS, read_card
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.reconstruction.sample import reconstruct
from mcddpm.system.files import fingerprint
from mcddpm.uncertainty.calibration import Calibration, load_calibration, of_weights
from tests.problems import tiny
from tests.scans import MASK, SIZE, kspace
from tests.uncertainty.made_up import calibrated_model, calibration, factors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return calibrated_model(tmp_path / "model")


def content(folder: Path) -> dict:
    return json.loads((folder / "calibration.json").read_text())


def same(one: Calibration, two: Calibration) -> bool:
    return (one.intervals, one.self_check) == (two.intervals, two.self_check)


# --- where it is found ----------------------------------------------------------------------------------------------


def test_what_is_written_is_found_again_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    sha256 = read_card(folder).sha256
    known = calibration(sha256)
    shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("model.*"))
    known.save(tmp_path / "c.json")
    places = (load_model(folder), folder, str(folder), tmp_path / "bare", tmp_path / "c.json")
    found = [load_calibration(place) for place in places]  # type: ignore[arg-type]
    assert all(same(one, known) and one == found[0] for one in found)
    written = content(folder)
    assert found[0].fingerprint == fingerprint([written["intervals"], written["self_check"]])
    for origin, part in ((found[0].interval_origin, "intervals"), (found[0].self_check_origin, "self_check")):
        assert origin is not None and (origin.data, origin.date) == ("drawn", "2026-01-01")
        assert origin.sha256 == fingerprint(written[part])
    assert found[0].interval_origin != found[0].self_check_origin


def test_without_self_checks(tmp_path: Path) -> None:
    replace(calibration(), self_check=None).save(tmp_path)
    found = load_calibration(tmp_path)
    assert found.self_check is None and found.self_check_origin is None
    assert found.fingerprint == fingerprint([content(tmp_path)["intervals"], None])
    with pytest.raises(ValueError, match="knows nothing of self-checks: calibrate with check_every = 1"):
        _ = found.checked


@pytest.mark.parametrize(
    ("intervals", "self_check", "expected"), [("", "fourier", "fourier"), ("sense", "fourier", "sense"), ("", "", "")]
)
def test_how_its_scans_were_measured(intervals: str, self_check: str, expected: str) -> None:
    """What was calibrated before intervals knew it says it in the self-check."""
    known = calibration()
    check = replace(known.checked, operator=self_check) if self_check else None  # type: ignore[arg-type]
    changed = replace(known, intervals=replace(known.intervals, operator=intervals), self_check=check)  # type: ignore[arg-type]
    assert changed.operator == expected


def test_a_model_without_one(model_folder: Path, tmp_path: Path) -> None:
    for place in (load_model(model_folder), model_folder, "prior", tmp_path):
        with pytest.raises(ValueError, match=r"holds no calibration.json, and std alone .* run mcddpm calibrate"):
            load_calibration(place)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"holds no calibration.json"):
        load_calibration(tmp_path / "c.json")
    with pytest.raises(ValueError, match="was not loaded from a folder, so it has no calibration: pass one"):
        load_calibration(tiny())
    with pytest.raises(ValueError, match="no model 'nowhere'"):
        load_calibration("nowhere")


def test_it_is_read_anew_when_its_file_is_new(folder: Path) -> None:
    assert load_calibration(folder) is load_calibration(folder)
    known = load_calibration(folder)
    replace(known, self_check=None).save(folder)
    assert load_calibration(folder).self_check is None


def test_that_of_a_run_is_its_newest_checkpoints(folder: Path, tmp_path: Path) -> None:
    newest = tmp_path / "run" / "checkpoints" / "step-00000001"
    shutil.copytree(folder, newest)
    for end in (".safetensors", ".json"):
        shutil.copy(newest / f"model{end}", newest / f"training{end}")
    (newest / "training.json").write_text(json.dumps({"sha256": read_card(folder).sha256}))
    assert load_calibration(tmp_path / "run") == load_calibration(folder)
    shutil.move(newest / "calibration.json", tmp_path / "run")
    with pytest.raises(ValueError, match=r"holds no calibration.json"):  # the next checkpoint has other weights
        load_calibration(tmp_path / "run")


# --- whose it is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["intervals", "self_check"])
def test_never_of_another_model(folder: Path, part: str) -> None:
    known = content(folder)
    known[part]["model"] = "ab" * 32
    (folder / "calibration.json").write_text(json.dumps(known))
    told = rf"fitted on other weights \(sha256 abababababab, these are {read_card(folder).sha256[:12]}\): run mcddpm"
    for place in (load_model(folder), folder, str(folder)):
        with pytest.raises(ValueError, match=told):
            load_calibration(place)  # type: ignore[arg-type]


def test_weights_are_told_apart() -> None:
    known = calibration("abc")
    assert of_weights(known, "abc") is known
    assert of_weights(replace(known, self_check=None), "abc").self_check is None
    with pytest.raises(ValueError, match=r"sha256 abc, these are def"):
        of_weights(known, "def")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda known: known["intervals"].update(version=3), r"has version 3, not \d+: run mcddpm calibrate anew"),
        (lambda known: known["self_check"].update(version=3), r"has version 3, not \d+: run mcddpm calibrate anew"),
        (lambda known: known["self_check"].pop("version"), "has version of before there were any"),
        (lambda known: known.update(format=2), "is not a calibration of ours: it has another format"),
        (lambda known: known.pop("intervals"), r"calibration.json: intervals is None, expected a section of keys"),
        (lambda known: known["intervals"].update(colour=1), r"unknown key .*calibration.json: intervals.colour"),
        (lambda known: known["self_check"].update(operator="x"), "operator is 'x', expected one of: fourier"),
    ],
)
def test_what_is_none_is_refused(folder: Path, change: Callable[[dict], object], message: str) -> None:
    known = content(folder)
    change(known)
    (folder / "calibration.json").write_text(json.dumps(known))
    with pytest.raises(ValueError, match=message):
        load_calibration(folder)


@pytest.mark.parametrize("text", ["{", "[]", "no JSON", ""])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(ValueError, match=r"calibration.json is not a calibration of ours"):
        load_calibration(tmp_path)


# --- cards of before ------------------------------------------------------------------------------------------------


def as_before(folder: Path) -> Path:
    """A model folder as it was written when its card carried the calibration."""
    card, known = json.loads((folder / "model.json").read_text()), content(folder)
    (folder / "calibration.json").unlink()
    carried = {"calibration": known["intervals"], "self_check": known["self_check"]}
    (folder / "model.json").write_text(json.dumps(card | carried | {"format": 1}, indent=1))
    return folder


def test_a_card_that_carries_its_calibration_still_opens(folder: Path, tmp_path: Path) -> None:
    known = load_calibration(folder)
    old = as_before(shutil.copytree(folder, tmp_path / "old"))
    assert load_calibration(old) == load_calibration(load_model(old)) == known, "the same fingerprint, too"
    m = Measurement.from_kspace(kspace(1)[0], MASK)
    ends = [
        reconstruct(load_model(place), m, samples=3, steps=2).interval(load_calibration(place), 0.9, 0.5)  # type: ignore[arg-type]
        for place in (folder, old)
    ]
    assert np.array_equal(ends[0].upper, ends[1].upper) and np.array_equal(ends[0].lower, ends[1].lower)
    replace(known, self_check=None).save(old)
    assert load_calibration(old).self_check is None, "a file beside the weights goes before"


def test_the_shipped_model_as_it_was_before(tmp_path: Path) -> None:
    """Fingerprints that rows and results of before carry."""
    shutil.copytree(ASSETS / "default", tmp_path / "old")
    old, new = load_calibration(as_before(tmp_path / "old")), load_calibration("default")
    assert old == new and new.fingerprint == "cc4b62b5609f3eb7"
    assert new.interval_origin is not None and new.interval_origin.sha256 == "2f3ebcdbda91bf72"


def test_a_card_of_before_is_held_to_the_same(folder: Path, model_folder: Path, tmp_path: Path) -> None:
    old = as_before(folder)
    shutil.copytree(model_folder, tmp_path / "none")
    card = json.loads((tmp_path / "none" / "model.json").read_text())
    (tmp_path / "none" / "model.json").write_text(json.dumps(card | {"format": 1}))
    with pytest.raises(ValueError, match=r"holds no calibration.json"):
        load_calibration(tmp_path / "none")
    for change, message in (
        (lambda card: card["calibration"].update(version=1), "model.json has version 1, not 4"),
        (lambda card: card["calibration"].update(version=4, model="ab" * 32), "fitted on other weights"),
    ):
        card = json.loads((old / "model.json").read_text())
        change(card)
        (old / "model.json").write_text(json.dumps(card))
        with pytest.raises(ValueError, match=message):
            load_calibration(old)


def test_the_shipped_model_is_calibrated() -> None:
    known = load_calibration("default")
    accelerations = [[t.acceleration for t in part] for part in (known.checked.usual, known.intervals.adaptive)]
    assert accelerations == [[4.0, 8.0]] * 2 and [t.acceleration for t in known.intervals.tables] == [4.0, 8.0]
    assert {"overall", "detail", "centre_energy", "middle_point"} <= set(known.checked.usual[0].statistics)
    assert known.operator == "fourier" and known.intervals.model == read_card("default").sha256


# --- what it does to a reconstruction -------------------------------------------------------------------------------


def drawn(samples: int = 3, acceleration: float = 4.0, **changes: object) -> Reconstruction:
    m = Measurement.from_kspace(kspace(1)[0] * MASK.numpy(), MASK)
    recon = reconstruct(tiny(), m, samples=samples, steps=2)
    return replace(recon, acceleration=acceleration, **changes)  # type: ignore[arg-type]


def test_intervals_by_hand() -> None:
    recon, known = drawn(), calibration()
    lower, upper, notices = recon.interval(known, 0.9)
    assert isinstance(lower, np.ndarray) and lower.shape == recon.mean.shape and notices == ()
    factor = factors(recon.mean, recon.std)
    assert len(np.unique(factor)) == 3
    assert np.allclose(recon.interval(known, 0.9, surprise=1.5)[1], recon.mean + 2**1.5 * factor * recon.std, rtol=1e-5)
    assert np.allclose(upper, recon.mean + factor * recon.std, rtol=1e-5)
    assert np.allclose(lower, np.maximum(recon.mean - factor * recon.std, 0), rtol=1e-4, atol=1e-3)
    between = recon.mean + 0.75 * factor * recon.std
    assert np.allclose(recon.interval(known, 0.7)[1], between, rtol=1e-5), "between two levels, linear"


def test_fewer_or_more_samples_than_it_was_fitted_with() -> None:
    other = drawn(4)
    _, upper, (notice,) = other.interval(calibration(), 0.9)
    assert notice.kind == "interval plan"
    assert "fitted for 3 samples of dpmpp_2m_sde in 2 steps; these are 4 samples of dpmpp_2m_sde in 2" in str(notice)
    shorter = 2.3534 * (5 / 4) ** 0.5 / (2.9200 * (4 / 3) ** 0.5)  # Student's, of 3 and of 2 degrees of freedom
    assert np.allclose(upper, other.mean + shorter * factors(other.mean, other.std) * other.std, rtol=1e-4)
    assert [n.kind for n in drawn(plan=None).interval(calibration(), 0.9).notices] == ["interval plan"]
    seeded = replace(drawn(), plan=replace(drawn().plan, seed=7))  # type: ignore[type-var]
    assert seeded.interval(calibration(), 0.9).notices == (), "another seed is no other plan"


def test_a_surprise_by_coils_changes_no_interval() -> None:
    maps = coil_maps(3, (SIZE, SIZE), 0)
    y = Fourier()(maps * Fourier().pinv(torch.from_numpy(kspace(1)[0])))
    recon = reconstruct(tiny(), Measurement.from_kspace(y, MASK), samples=3, steps=2)
    recon = replace(recon, acceleration=4.0)
    why = "intervals were fitted on scans by MRI with one coil, this one is by MRI with several coils"
    followed, alone = (recon.interval(calibration(), 0.9, surprise) for surprise in (2.0, None))
    assert [str(n) for n in followed.notices] == [f"{why}: they do not follow the self-check"]
    assert [str(n) for n in alone.notices] == [why] and alone.notices[0].kind == "interval operator"
    assert torch.equal(followed.lower, alone.lower) and torch.equal(followed.upper, alone.upper)


def test_intervals_know_how_their_scans_were_measured_without_a_self_check() -> None:
    known = calibration()
    known = replace(known, intervals=replace(known.intervals, operator="sense"), self_check=None)
    (notice,) = drawn().interval(known, 0.9).notices
    assert str(notice).endswith("fitted on scans by MRI with several coils, this one is by MRI with one coil")


def test_all_that_is_to_be_known_is_told_at_once() -> None:
    known = calibration()
    known = replace(known, intervals=replace(known.intervals, adaptive=()))
    kinds = [notice.kind for notice in drawn(4, acceleration=16.0).interval(known, 0.9, 1.0).notices]
    assert kinds == ["interval plan", "interval self-check", "interval acceleration"]


def test_one_sample_has_no_interval() -> None:
    with pytest.raises(ValueError, match="an interval takes 2 or more"):
        drawn(1).interval(calibration(), 0.9)


def test_intervals_of_another_models_samples_are_refused(tmp_path: Path) -> None:
    """In Python too: samples know the weights that they were drawn with."""
    model, other = (load_model(calibrated_model(tmp_path / str(seed), seed)) for seed in (0, 1))
    recon = reconstruct(model, Measurement.from_kspace(kspace(1)[0] * MASK.numpy()), samples=3, steps=2)
    assert recon.interval(load_calibration(model), 0.9).upper.shape == (SIZE, SIZE)
    with pytest.raises(ValueError, match="fitted on other weights"):
        recon.interval(load_calibration(other), 0.9)
