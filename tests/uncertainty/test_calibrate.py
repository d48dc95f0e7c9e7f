"""`mcddpm calibrate` writes into a model's card what `mcddpm reconstruct` uses for intervals and the self-check."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pydicom
import pytest
import torch

import mcddpm
from mcddpm.cli import main
from mcddpm.data.cases import Case, Cases
from mcddpm.evaluation import methods, study
from mcddpm.models.store import annotate, describe, save_model
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction import batch
from mcddpm.reconstruction.inputs import Task
from mcddpm.uncertainty import calibrate, conformal, selfcheck
from mcddpm.uncertainty.calibrate import Plan
from tests.test_evaluate import knee
from tests.test_reconstruct import tiny
from tests.test_scans import MASK, SIZE, kspace, scan

LARGE = {"network": {"channels": 8, "multipliers": [1, 2], "heads": 2, "patch": 8}}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("calibration")
    made = tiny(LARGE, shape=(320, 320))
    save_model(folder / "model", made.network.state_dict(), made.card)
    for k in range(2):
        knee(folder / "files" / f"file100000{k}.h5", 14, seed=k)
    cases = Cases(str(folder / "files"), "paper", label="knees", accelerations=(4.0,))
    settings = {"samples": 3, "steps": 2, "bins": 2, "levels": (0.5, 0.8)}
    return Plan(str(folder / "model"), cases, **settings, check_every=2, check_folds=2, check_samples=2, check_steps=2)


@pytest.fixture(scope="module", autouse=True)
def few_slices() -> Iterator[None]:
    """Alarms by four slices would need this p-value."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selfcheck, "ALARM", 0.5)
        yield


@pytest.fixture(scope="module")
def calibrated(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> dict:
    found = calibrate.calibrate(plan, tmp_path_factory.mktemp("out"))
    assert found is not None
    return found


def test_factors_are_those_of_the_reconstructions(plan: Plan, calibrated: dict, tmp_path: Path) -> None:
    sha256 = describe(plan.model)[0]["sha256"]
    known = conformal.of_card(calibrated | {"sha256": sha256})
    assert known is not None and known.levels == (0.5, 0.8) and known.how == "3 samples of dpmpp_2m_sde in 2 steps"
    study.evaluate(plan.evaluation, tmp_path)
    slices = []
    for case, method in study.chosen(plan.evaluation):
        with np.load(study.part_of(tmp_path, case, method)) as part:
            scale = 1 / float(Fourier().pinv(case.make().y_m / case.make().scale).abs().max())
            images = (torch.from_numpy(part[key]) * scale for key in ("mean", "std", "target"))
            slices.append(conformal.Slice(*images))
    assert len(slices) == 8
    expected = conformal.fit(slices, 4.0, (0.5, 0.8), bins=2)
    assert torch.allclose(torch.tensor(known.tables[0].factors), torch.tensor(expected.factors), rtol=1e-3)


def test_every_acceleration_has_its_own(plan: Plan, calibrated: dict, tmp_path: Path) -> None:
    """With 8x beside it, what was found at 4x stays what it was, and 8x is what it is alone."""
    chosen = [dataclasses.replace(plan.cases, accelerations=a) for a in ((4.0, 8.0), (4.0,), (8.0,))]
    both, four, eight = (
        calibrate.calibrate(dataclasses.replace(plan, cases=cases, check_every=1), tmp_path) for cases in chosen
    )
    assert both is not None and four is not None and eight is not None
    for key, what in (("calibration", "tables"), ("calibration", "adaptive"), ("self_check", "usual")):
        assert len(both[key][what]) == 2 and both[key][what] == [*four[key][what], *eight[key][what]]
    assert [table["slices"] for table in both["calibration"]["tables"]] == [8, 8]
    assert four["calibration"]["tables"] == calibrated["calibration"]["tables"], "whichever slices are self-checked"
    for what in ("tables", "adaptive"):
        assert eight["calibration"][what][0]["factors"] != four["calibration"][what][0]["factors"]


@pytest.mark.parametrize("known_by", ["content", "name"])
def test_people_it_was_trained_on_are_refused(plan: Plan, tmp_path: Path, monkeypatch, known_by: str) -> None:
    model = methods.model_of(plan.model, "cpu")
    if known_by == "content":
        monkeypatch.setitem(model.card, "data_sha256", study.chosen(plan.evaluation)[0][0].data)
    else:
        monkeypatch.setattr(calibrate, "_trained_on", lambda card, source: source == plan.cases.source)
    with pytest.raises(ValueError, match="is what the model was trained on"):
        calibrate.calibrate(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("source", "seen"), [("brain:train:64", True), ("brain:validation:64", False)])
def test_a_split_it_was_trained_on_is_refused_at_any_size(source: str, seen: bool) -> None:
    card = describe("default")[0]
    assert card["data"]["train"] == "brain:train:192" and calibrate._trained_on(card, source) == seen
    assert not calibrate._trained_on(card | {"data": {"train": ""}}, "")


@pytest.mark.filterwarnings("ignore:the scan is by MRI with one coil")
def test_the_self_check_knows_how_its_scans_were_measured(plan: Plan, tmp_path: Path) -> None:
    """Not what the model is for: a model for coils may be calibrated on scans of one."""
    made = tiny(LARGE, shape=(320, 320))
    card = made.card | {"operator": made.card["operator"] | {"kind": "sense"}}
    save_model(tmp_path / "model", made.network.state_dict(), card)
    found = calibrate.calibrate(dataclasses.replace(plan, model=str(tmp_path / "model")), tmp_path / "out")
    assert found is not None and found["self_check"]["operator"] == found["calibration"]["operator"] == "fourier"


def test_scans_measured_in_several_ways_are_not_calibrated_together() -> None:
    y = torch.from_numpy(kspace(1)[0])
    made = [Measurement.from_kspace(data, MASK) for data in (y, torch.stack([y, 2 * y]), y[None])]
    one, several, one_with_an_axis = (
        Case("", "fastmri", str(k), 0, 4.0, "", 0, Cases(), lambda m=m: m) for k, m in enumerate(made)
    )
    with pytest.raises(
        ValueError, match="by MRI with one coil and by MRI with several coils: calibrate on those of one"
    ):
        calibrate._operator([one, several])
    assert calibrate._operator([one, one_with_an_axis]) == "fourier"


def test_what_is_usual_is_found_on_every_other_slice(plan: Plan, calibrated: dict) -> None:
    sha256 = describe(plan.model)[0]["sha256"]
    known = selfcheck.of_card(calibrated | {"sha256": sha256})
    assert (known.folds, known.samples, known.steps, known.operator) == (2, 2, 2, "fourier")
    assert [len(v) for v in known.usual[0].statistics.values()] == 15 * [4]
    assert calibrated["calibration"]["adaptive"] == [], "which takes a self-check of every slice"


def test_intervals_follow_the_self_check_where_every_slice_had_one(plan: Plan, tmp_path: Path, monkeypatch) -> None:
    sha256 = describe(plan.model)[0]["sha256"]
    found = calibrate.calibrate(dataclasses.replace(plan, check_every=1), tmp_path)
    assert found is not None
    known = conformal.of_card(found | {"sha256": sha256})
    usual = found["self_check"]["usual"][0]["statistics"]["overall"]
    slices = []
    for (case, method), surprise in zip(study.chosen(plan.evaluation), usual, strict=True):
        with np.load(study.part_of(tmp_path, case, method)) as part:
            images = (torch.from_numpy(part[key] * part["scale"]) for key in ("mean", "std", "target"))
            slices.append(conformal.Slice(*images, surprise))
    expected = conformal.fit(slices, 4.0, (0.5, 0.8), bins=2, adaptive=True)
    assert len(slices) == 8 and known.adaptive == (expected,), "each slice has its own surprise"
    monkeypatch.setattr(study, "run", None)
    without = calibrate.calibrate(dataclasses.replace(plan, check_every=0), tmp_path)
    assert without == {"calibration": found["calibration"] | {"adaptive": []}, "self_check": None}, (
        "whatever lies there"
    )


def test_a_second_run_does_nothing_twice(plan: Plan, calibrated: dict, tmp_path: Path, monkeypatch) -> None:
    first = calibrate.calibrate(plan, tmp_path)
    monkeypatch.setattr(study, "run", None)
    monkeypatch.setattr(selfcheck, "surprise", None)
    again = calibrate.calibrate(plan, tmp_path)
    assert first == again == calibrated


def test_two_processes(plan: Plan, calibrated: dict, tmp_path: Path) -> None:
    assert calibrate.calibrate(plan, tmp_path, rank=0, world=2) is None
    assert calibrate.calibrate(plan, tmp_path, rank=1, world=2) == calibrated, "the last one writes what all have done"


def test_by_command_into_the_card(plan: Plan, tmp_path: Path, capfd) -> None:
    text = f"""
model = "{plan.model}"
samples = 3
steps = 2
levels = [0.5, 0.8]
check_every = 0
[cases]
source = "{plan.cases.source}"
protocol = "paper"
accelerations = [4]
"""
    (tmp_path / "c.toml").write_text(text)
    out = ["--out", str(tmp_path / "out"), "--device", "cpu"]
    before = describe(plan.model)[0]
    assert main(["calibrate", str(tmp_path / "c.toml"), *out]) == 0
    assert capfd.readouterr().out.strip() == str(Path(plan.model) / "model.json")
    after = describe(plan.model)[0]
    assert after["calibration"]["levels"] == [0.5, 0.8] and "self_check" not in after
    assert {k: v for k, v in after.items() if k != "calibration"} == before
    annotate(plan.model, {"self_check": {"of": "an earlier calibration"}})
    assert main(["calibrate", str(tmp_path / "c.toml"), *out]) == 0
    assert describe(plan.model)[0] == after, "without a self-check it keeps none of before"
    capfd.readouterr()
    assert main(["calibrate", str(tmp_path / "c.toml"), *out, "--set", "levels=[0.9]"]) == 2
    assert "a level of 0.9 takes 12 calibration slices, there are 8" in " ".join(capfd.readouterr().err.split())
    assert main(["calibrate", str(tmp_path / "c.toml"), *out, "--set", "check_every=4"]) == 2
    assert "takes 3 slices at each acceleration, there are 2" in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize(
    "wrong", [{"samples": 1}, {"sampler": "mean"}, {"check_samples": 1}, {"bins": 0}, {"check_folds": 1}]
)
def test_what_cannot_be_calibrated_is_refused_before_any_work(plan: Plan, tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(ValueError, match="expected"):
        calibrate.calibrate(dataclasses.replace(plan, **wrong), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_slices_with_too_few_lines_are_left_out(plan: Plan, calibrated: dict, tmp_path: Path, monkeypatch) -> None:
    found, seen = selfcheck.surprise, []

    def not_all(*given, **settings):
        seen.append(1)
        if len(seen) in few:
            raise selfcheck.Unchecked
        return found(*given, **settings)

    monkeypatch.setattr(selfcheck, "surprise", not_all)
    few: tuple[int, ...] = (2,)
    told = calibrate.calibrate(plan, tmp_path / "a")
    assert told is not None and len(told["self_check"]["usual"][0]["statistics"]["line"]) == 3
    seen.clear()
    with pytest.warns(UserWarning, match="1 slices have too few lines for a self-check: intervals will not follow it"):
        every = calibrate.calibrate(dataclasses.replace(plan, check_every=1), tmp_path / "c")
    assert every is not None and every["calibration"]["adaptive"] == []
    few = (1, 2, 3, 4)
    seen.clear()
    with pytest.raises(ValueError, match="of 4 slices at 4x only 0 have lines enough"):
        calibrate.calibrate(plan, tmp_path / "b")


def test_a_run_that_still_changes_is_not_annotated(tmp_path: Path) -> None:
    made = tiny()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds no whole checkpoint yet"):
        annotate(tmp_path / "run", {})
    save_model(tmp_path / "model", made.network.state_dict(), made.card)
    assert annotate(tmp_path / "model", {"note": 1}).name == "model.json"
    assert describe(tmp_path / "model")[0]["note"] == 1


# --- reconstruct ----------------------------------------------------------------------------------------------------


def made_up(tmp_path: Path) -> str:
    """A small model whose calibration was made up: 1.5 times std at 50 % and 3 times at 90 % where std is below its
    median, ten times as much above, and half as much in the background; after a self-check, as much again for every
    unit of surprise."""
    made = tiny()
    save_model(tmp_path / "model", made.network.state_dict(), made.card)
    sha256 = describe(tmp_path / "model")[0]["sha256"]
    common = {"version": conformal.VERSION, "model": sha256, "data": "drawn", "date": "2026-01-01"}
    common |= {"steps": 2, "samples": 3}
    factors = {"acceleration": 4.0, "slices": 18, "factors": [[1.5, 15.0, 0.75], [3.0, 30.0, 1.5]]}
    known = common | {"sampler": "dpmpp_2m_sde", "levels": [0.5, 0.9], "tables": [factors]}
    known["adaptive"] = [factors | {"slope": 2 * np.log(2), "usual": 0.0, "lowest": -9.0}]
    usual = {name: [float(k) for k in range(-20, 21)] for name in ("overall", "line", "point")}
    check = common | {
        "operator": "fourier",
        "sampler": "dpmpp_2m_sde",
        "folds": 2,
        "usual": [{"acceleration": 4.0, "statistics": usual}],
    }
    annotate(tmp_path / "model", {"calibration": known, "self_check": check})
    return str(tmp_path / "model")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return made_up(tmp_path)


QUICK = ["--samples", "3", "--steps", "2", "--device", "cpu"]


def factors(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """At 90 %, pixel by pixel."""
    inside = mean > 0.1 * mean.max()
    return np.where(inside, np.where(std <= np.median(std[inside]), 3.0, 30.0), 1.5)


def test_interval_in_python(model: str) -> None:
    m = Measurement.from_kspace(kspace(1)[0] * MASK.numpy(), MASK)
    recon = mcddpm.reconstruct(mcddpm.load_model(model), m, samples=3, steps=2)
    lower, upper = recon.interval(0.9)
    assert isinstance(lower, np.ndarray) and lower.shape == recon.mean.shape
    factor = factors(recon.mean, recon.std)
    assert len(np.unique(factor)) == 3
    assert np.allclose(recon.interval(0.9, surprise=1.5)[1], recon.mean + 2**1.5 * factor * recon.std, rtol=1e-5)
    assert np.allclose(upper, recon.mean + factor * recon.std, rtol=1e-5)
    assert np.allclose(lower, np.maximum(recon.mean - factor * recon.std, 0), rtol=1e-4, atol=1e-3)
    between = recon.mean + 0.75 * factor * recon.std
    assert np.allclose(recon.interval(0.7)[1], between, rtol=1e-5), "between two levels, linear"
    other = mcddpm.reconstruct(mcddpm.load_model(model), m, samples=4, steps=2)
    with pytest.warns(UserWarning, match="fitted for 3 samples of dpmpp_2m_sde in 2 steps; these are 4 samples"):
        upper = other.interval(0.9)[1]
    shorter = 2.3534 * (5 / 4) ** 0.5 / (2.9200 * (4 / 3) ** 0.5)  # Student's, of 3 and of 2 degrees of freedom
    assert np.allclose(upper, other.mean + shorter * factors(other.mean, other.std) * other.std, rtol=1e-4)
    one = mcddpm.reconstruct(mcddpm.load_model(model), m, samples=1, steps=2)
    with pytest.raises(ValueError, match="an interval takes 2 or more"):
        one.interval(0.9)
    bare = mcddpm.reconstruct(tiny(), m, samples=2, steps=2)
    with pytest.raises(ValueError, match="carries no calibration"):
        bare.interval(0.9)


@pytest.mark.filterwarnings("ignore:the scan is by MRI with several coils")
def test_a_surprise_by_coils_changes_no_interval_in_python(model: str) -> None:
    maps = coil_maps(3, (SIZE, SIZE), 0)
    y = Fourier()(maps * Fourier().pinv(torch.from_numpy(kspace(1)[0])))
    recon = mcddpm.reconstruct(mcddpm.load_model(model), Measurement.from_kspace(y, MASK), samples=3, steps=2)
    why = "fitted on scans by MRI with one coil, this one is by MRI with several coils"
    with pytest.warns(UserWarning, match=f"{why}: they do not follow the self-check"):
        followed = recon.interval(0.9, surprise=2.0)
    with pytest.warns(UserWarning, match=f"{why}$"):
        alone = recon.interval(0.9)
    assert all(torch.equal(a, b) for a, b in zip(followed, alone, strict=True))


def test_intervals_know_how_their_scans_were_measured_without_a_self_check(model: str) -> None:
    calibration = describe(model)[0]["calibration"] | {"operator": "sense"}
    annotate(model, {"calibration": calibration, "self_check": None})
    m = Measurement.from_kspace(torch.from_numpy(kspace(1)[0]), MASK)
    recon = mcddpm.reconstruct(mcddpm.load_model(model), m, samples=3, steps=2)
    with pytest.warns(
        UserWarning, match="fitted on scans by MRI with several coils, this one is by MRI with one coil$"
    ):
        recon.interval(0.9)


def test_interval_and_self_check_by_command(model: str, tmp_path: Path, capfd) -> None:
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"
    asked = ["--model", model, "--interval", "0.9", "--self-check", "--format", "h5,nifti,dicom", *QUICK]
    assert main(["reconstruct", str(path), "--out", str(out), *asked]) == 0
    told = capfd.readouterr().err
    for what in ("intervals were", "the self-check was"):
        assert f"{what} fitted on drawn (2026-01-01): for scans like those" in " ".join(told.split())
    assert "self-check of scan: p = " in told and "extra network calls)" in told and "self-check: 0 of 1 scans" in told
    with h5py.File(out / "scan.h5") as file:
        images = {key: file[key][:] for key in ("mean", "std", "lower", "upper", "surprise")}
        provenance = json.loads(file.attrs["provenance"])
    check = provenance["self_check"]
    for mean, std, upper, one in zip(images["mean"], images["std"], images["upper"], check["slices"], strict=True):
        assert np.allclose(upper, mean + 2 ** one["overall"] * factors(mean, std) * std, rtol=1e-4)
    for used in (provenance["calibration"], check["calibration"]):
        assert (used["data"], used["date"], len(used["sha256"])) == ("drawn", "2026-01-01", 16)
    assert images["surprise"].shape == (3, SIZE, SIZE) and (images["surprise"] > 0).any()
    assert check["calls"] == 3 * 2 * 3 * 2 and [one["slice"] for one in check["slices"]] == [0, 1, 2]
    assert check["p"] == selfcheck.of_scan([one["p"] for one in check["slices"]])
    upper = nibabel.load(out / "scan_upper.nii.gz")
    assert np.allclose(upper.get_fdata().T, images["upper"], rtol=1e-5)
    assert upper.header["descrip"].item() == f"mcddpm {mcddpm.__version__}".encode()
    assert (out / "scan_lower.nii.gz").exists() and len(list((out / "scan").glob("lower-*.dcm"))) == 3


def command(model: str, folder: Path, *more: str) -> list[str]:
    return ["reconstruct", str(scan(folder / "scan.h5")), "--out", str(folder / "out"), "--model", model, *QUICK, *more]


def changed(model: str, change: Callable[[dict], None]) -> None:
    card = json.loads((Path(model) / "model.json").read_text())
    change(card)
    (Path(model) / "model.json").write_text(json.dumps(card))


def never_usual(card: dict) -> None:
    known = card["self_check"]["usual"][0]["statistics"]
    for name in known:
        known[name] = [-50 + 0.01 * k for k in range(41)]


def test_a_folder_is_of_one_calibration(model: str, tmp_path: Path, capfd) -> None:
    asked = command(model, tmp_path, "--interval", "0.9")
    assert main(asked) == 0
    changed(model, lambda card: card["calibration"].update(levels=[0.4, 0.9]))
    assert main(asked) == 2
    assert "holds results of another run: calibration.sha256 was" in " ".join(capfd.readouterr().err.split())


def test_a_process_that_is_done_first_does_not_call_all_scans_understood(model: str, tmp_path: Path, capfd) -> None:
    """Under torchrun: the first process drew its slices of the scan, the other has not."""
    path, task = scan(tmp_path / "scan.h5"), Task(model=model, samples=3, steps=2, self_check=True)

    class Heard(batch.Quiet):
        def say(self, text: str) -> None:
            told.append(text)

    told: list[str] = []
    for rank, last in ((0, "0 of 0 scans are not understood by the model; 1 more are not finished"), (1, "of 1 scans")):
        batch.reconstruct_scans([str(path)], tmp_path / "out", task, rank=rank, world=2, report=Heard())
        assert last in told[-1]
    assert "not finished" not in told[-1]


def test_one_unusual_slice_is_told_and_marked(model: str, tmp_path: Path, capfd, monkeypatch) -> None:
    found = selfcheck.surprise
    seen: list[int] = []

    def one_of_them(*given, **settings):
        seen.append(1)
        told = found(*given, **settings)
        return dataclasses.replace(told, statistics=dict.fromkeys(told.statistics, 99.0 if len(seen) == 2 else 0.0))

    monkeypatch.setattr(selfcheck, "ALARM", 0.05)
    monkeypatch.setattr(selfcheck, "surprise", one_of_them)
    out = tmp_path / "out"
    assert main(command(model, tmp_path, "--self-check", "--format", "h5,dicom")) == 0
    told = " ".join(capfd.readouterr().err.split())
    assert "; unusual slices: 1 (among those of calibration, some 0.2)" in told and "slices (" not in told
    assert "self-check: 0 of 1 scans are not understood by the model; unusual slices in scan (1)" in told
    with h5py.File(out / "scan.h5") as file:
        check = json.loads(file.attrs["provenance"])["self_check"]
    assert not check["flagged"] and [one["flagged"] for one in check["slices"]] == [False, True, False]
    comments = [pydicom.dcmread(path).ImageComments for path in sorted((out / "scan").glob("mean-*.dcm"))]
    assert ["an unusual slice, p = 0.0" in comment for comment in comments] == [False, True, False]


def test_slices_that_were_not_checked_are_not_called_calm(model: str, tmp_path: Path, capfd, monkeypatch) -> None:
    found, seen = selfcheck.surprise, list[int]()

    def not_the_second(*given, **settings):
        seen.append(1)
        if len(seen) == 2:
            raise selfcheck.Unchecked("2 lines")
        return found(*given, **settings)

    monkeypatch.setattr(selfcheck, "surprise", not_the_second)
    out = tmp_path / "out"
    assert main(command(model, tmp_path, "--self-check", "--format", "h5,dicom")) == 0
    assert ", on 2 of 3 slices" in " ".join(capfd.readouterr().err.split())
    with h5py.File(out / "scan.h5") as file:
        surprise, check = file["surprise"][:], json.loads(file.attrs["provenance"])["self_check"]
    assert [bool(np.isnan(image).all()) for image in surprise] == [False, True, False]
    assert (check["checked"], check["of"]) == (2, 3) and [one["slice"] for one in check["slices"]] == [0, 2]
    assert check["score"] == pytest.approx(np.mean([one["score"] for one in check["slices"]]))
    comments = [pydicom.dcmread(path).ImageComments for path in sorted((out / "scan").glob("mean-*.dcm"))]
    assert ["; not self-checked" in comment for comment in comments] == [False, True, False]


def test_an_empty_slice_is_neither_checked_nor_missed(model: str, tmp_path: Path, capfd) -> None:
    asked, out = command(model, tmp_path, "--self-check", "--format", "h5,dicom"), tmp_path / "out"
    with h5py.File(tmp_path / "scan.h5", "r+") as file:
        file["kspace"][1] = 0
    assert main(asked) == 0 and "slices" not in capfd.readouterr().err.partition("extra network calls)")[2][:20]
    with h5py.File(out / "scan.h5") as file:
        check = json.loads(file.attrs["provenance"])["self_check"]
    assert (check["checked"], check["of"], check["empty"]) == (2, 2, [1])
    comments = [pydicom.dcmread(path).ImageComments for path in sorted((out / "scan").glob("mean-*.dcm"))]
    assert len(comments) == 3 and not any("not self-checked" in comment for comment in comments)


def test_intervals_of_coils_do_not_follow_what_is_usual_for_one(model: str, tmp_path: Path, capfd) -> None:
    maps = coil_maps(3, (SIZE, SIZE), 0)
    y = Fourier()(maps * Fourier().pinv(torch.from_numpy(kspace(1)))[:, None]).numpy() * MASK.numpy()
    with h5py.File(tmp_path / "coils.h5", "w") as file:
        file["kspace"], file["mask"] = y, MASK.numpy()
    asked = ["--out", str(tmp_path / "out"), "--model", model, *QUICK, "--interval", "0.9", "--self-check"]
    assert main(["reconstruct", str(tmp_path / "coils.h5"), *asked]) == 0
    told = " ".join(capfd.readouterr().err.split())
    why = "what is usual is known of scans by MRI with one coil, this one is by MRI with several coils"
    assert f"not self-checked: {why}" in told and "not checked (the log says why): coils" in told
    with h5py.File(tmp_path / "out" / "coils.h5") as file:
        mean, std, upper = (file[key][0] for key in ("mean", "std", "upper"))
        provenance = json.loads(file.attrs["provenance"])
        assert "surprise" not in file
    check = provenance["self_check"]
    assert (check["p"], check["flagged"], check["calls"]) == (None, False, 0) and any(
        why in text for text in provenance["warnings"]
    )
    assert np.allclose(upper, mean + factors(mean, std) * std, rtol=1e-4)


def test_a_scan_is_checked_in_one_call(model: str) -> None:
    loaded, m = mcddpm.load_model(model), Measurement.from_kspace(torch.from_numpy(kspace(1)[0]), MASK)
    known = selfcheck.of_card(loaded.card)
    found = selfcheck.check(loaded, m, seed=5)
    same = selfcheck.surprise(loaded, m, **known.how._asdict(), seed=5)
    usual = known.at(4.0)
    assert found.surprise.statistics == same.statistics and found.overall == same.statistics["overall"]
    told = usual.p_value(same.statistics), usual.score(same.statistics), usual.reason(same.statistics)
    assert (found.p, found.score, found.reason) == told
    coils = Measurement.from_kspace(Fourier()(coil_maps(3, (SIZE, SIZE), 0) * Fourier().pinv(m.y_m)), MASK)
    with pytest.raises(selfcheck.Unchecked, match="scans by MRI with one coil, this one is by MRI with several coils"):
        selfcheck.check(loaded, coils)


def test_a_scan_that_cannot_be_checked_is_not_called_understood(model: str, tmp_path: Path, capfd) -> None:
    changed(model, lambda card: card["self_check"].update(folds=30))
    asked, out = command(model, tmp_path, "--self-check"), tmp_path / "out"
    assert main(asked) == 0
    told = " ".join(capfd.readouterr().err.split())
    assert "scan could not be self-checked" in told and "not checked (the log says why): scan" in told
    assert "too few to hide in 30 turns" in told and "p = " not in told
    with h5py.File(out / "scan.h5") as file:
        assert json.loads(file.attrs["provenance"])["self_check"]["p"] is None


def test_what_was_found_is_there_before_the_result(model: str, tmp_path: Path, capfd, monkeypatch) -> None:
    """Killed after a file was written and before the next: the run that goes on still knows that it is flagged."""
    changed(model, never_usual)
    asked, out = command(model, tmp_path, "--self-check"), tmp_path / "out"

    def then_killed(path: Path, result: object) -> None:
        write(path, result)
        raise KeyboardInterrupt

    write = batch.WRITERS["h5"]
    monkeypatch.setitem(batch.WRITERS, "h5", then_killed)
    assert main(asked) != 0 and (out / "scan.h5").exists()
    monkeypatch.setitem(batch.WRITERS, "h5", write)
    assert main(asked) == 0 and "1 of 1 scans are not understood" in " ".join(capfd.readouterr().err.split())


def test_a_scan_that_is_not_understood_is_flagged(model: str, tmp_path: Path, capfd) -> None:
    changed(model, never_usual)
    asked, out = command(model, tmp_path, "--self-check", "--format", "h5,dicom"), tmp_path / "out"
    assert main(asked) == 0
    told = " ".join(capfd.readouterr().err.split())
    assert "the model does not understand this scan (most often by " in told and "1 of 1 scans are not" in told
    assert main(asked) == 0 and "1 of 1 scans are not understood" in " ".join(capfd.readouterr().err.split())
    with h5py.File(out / "scan.h5") as file:
        found = json.loads(file.attrs["provenance"])["self_check"]
    assert found["flagged"] is True and {one["reason"] for one in found["slices"]} <= {"overall", "line", "point"}
    comment = pydicom.dcmread(next((out / "scan").glob("std-*.dcm"))).ImageComments
    assert "does not understand this scan" in comment


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--interval", "1.2"], "the level is 1.2, expected a value between 0 and 1"),
        (["--interval", "0.95"], "a level of 0.95 takes 26 calibration slices, this model was calibrated on 18"),
        (["--interval", "0.9", "--samples", "1"], "--interval takes 2 samples or more"),
        (["--interval", "0.9", "--mean-only"], "--interval takes 2 samples or more"),
    ],
)
def test_intervals_that_are_refused(model: str, tmp_path: Path, capfd, more: list[str], message: str) -> None:
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"
    assert main(["reconstruct", str(path), "--out", str(out), "--model", model, *QUICK, *more]) == 2
    assert message in " ".join(capfd.readouterr().err.split()) and not out.exists()


@pytest.mark.parametrize("what", ["--interval=0.9", "--self-check"])
def test_another_models_calibration_is_refused(model: str, tmp_path: Path, capfd, what: str) -> None:
    card = json.loads((Path(model) / "model.json").read_text())
    other = tiny(seed=3)
    save_model(tmp_path / "other", other.network.state_dict(), other.card)
    asked = ["reconstruct", str(scan(tmp_path / "scan.h5")), "--out", str(tmp_path / "out"), *QUICK, what]
    assert main([*asked, "--model", str(tmp_path / "other")]) == 2
    assert "run mcddpm calibrate" in " ".join(capfd.readouterr().err.split())
    annotate(tmp_path / "other", {key: card[key] for key in ("calibration", "self_check")})
    assert main([*asked, "--model", str(tmp_path / "other")]) == 2
    assert "other weights" in capfd.readouterr().err and not (tmp_path / "out").exists()
