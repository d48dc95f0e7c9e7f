"""Folders of mcddpm as it was when its modules were flat: they open with the same numbers, or are refused in one line.

All are made here by hand, as that package wrote them; the numbers are what it said to them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mcddpm.cli import main
from mcddpm.data.readers import open_volume
from mcddpm.evaluation import baselines
from mcddpm.evaluation.rows import PLACES, read_csv, write_csv
from mcddpm.models.store import load_model, read_card
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement, measure
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense
from mcddpm.reconstruction.sample import reconstruct
from mcddpm.simulation.wide import Wide
from mcddpm.system import files
from mcddpm.system.settings import differences, from_dict, to_dict
from mcddpm.training.settings import Config
from mcddpm.uncertainty.calibration import Origin, load_calibration
from tests import old_folders as old
from tests.scans import MASK, SIZE, kspace, scan

Said = Callable[..., str]


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Said:
    """Runs a command that must not do anything; returns the one line that it says."""

    def run(folder: Path, *arguments: object) -> str:
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        capfd.readouterr()
        assert main([str(argument) for argument in arguments]) == 2
        said = capfd.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1 and said.endswith("\n")
        assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return said

    return run


# --- models ---------------------------------------------------------------------------------------------------------


def image() -> Tensor:
    return Fourier().pinv(torch.from_numpy(kspace(1)[0]))


def measured(kind: str) -> Measurement:
    x, mask = image(), MASK
    A: Operator = Fourier()
    if kind == "sense":
        A = Sense(coil_maps(4, (SIZE, SIZE), 0))
    if kind == "radon":
        A, x, mask = Radon((SIZE, SIZE), 12), x.abs(), torch.arange(12) % 3 == 0
    return measure(torch.where(mask, A(x), 0), mask, A)


def operator(kind: str, **more: Any) -> dict[str, Any]:
    return old.CARD["operator"] | {"kind": kind} | more


SPECTRUM = {"std": [0.5, 0.2, 0.1, 0.05], "shape": [SIZE, SIZE]}
KINDS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "unet": ({}, (13.88849, 14.92084, 23.19473, 27.19157)),
    "cascade": (
        {"architecture": old.CASCADE, "spectrum": SPECTRUM, "measured_rms": [0.01, 0.9]},
        (5.565404, 11.19672, 20.79202, 28.1073),
    ),
    "eps": ({"parameterisation": "eps"}, (528.576, 249.927, 313.7354, 170.9429)),
    "sense": ({"operator": operator("sense")}, (3.00632, 5.23896, 22.305, 26.8977)),
    "radon": (
        {
            "operator": operator("radon", views=12),
            "architecture": old.UNET | {"in_channels": 2, "out_channels": 1},
            "gain": old.RADON_GAIN,
        },
        (15.2176, 11.0779, 25.6982, 21.0553),
    ),
}


def numbers(samples: Any) -> list[float]:
    shown = np.abs(np.asarray(samples))
    return [float(v) for v in (shown[0, 5, 7], shown[-1, 16, 3], shown.mean(), shown.std())]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_draws_the_samples_of_before(tmp_path: Path, kind: str) -> None:
    changes, expected = KINDS[kind]
    recon = reconstruct(
        load_model(old.model(tmp_path / "model", **changes)),  # type: ignore[arg-type]
        measured(kind if kind in ("sense", "radon") else "fourier"),
        samples=2,
        steps=3,
        sampler="heun",
        seed=3,
    )
    assert numbers(recon.samples) == pytest.approx(expected, rel=1e-3)


def test_a_supervised_model_makes_the_image_of_before(tmp_path: Path) -> None:
    alone = old.UNET | {"in_channels": 2, "time": False}
    folder = old.model(tmp_path / "model", kind="supervised", residual=True, architecture=alone)
    found = baselines.unet(load_model(folder), measured("fourier"))  # type: ignore[arg-type]
    assert numbers(found.samples) == pytest.approx((8.11168, 5.59405, 24.5981, 29.8966), rel=1e-3)


def test_a_prior_is_one_still(tmp_path: Path, refused: Said) -> None:
    folder = old.model(tmp_path / "model", conditional=False)
    assert not read_card(folder).conditional
    arguments = ("reconstruct", scan(tmp_path / "scan.h5", 1), "--out", tmp_path / "out", "--model", folder)
    assert "this model is a prior" in refused(tmp_path, *arguments)


def test_a_card_of_a_version_to_come_is_refused(tmp_path: Path, refused: Said) -> None:
    folder = old.model(tmp_path / "model")
    old.written(folder / "model.json", json.loads((folder / "model.json").read_text()) | {"format": 3})
    assert "has format 3, expected 1 or 2: it needs another mcddpm" in refused(tmp_path, "weights", "show", folder)


# --- calibrations, which stood in the card --------------------------------------------------------------------------


def command(folder: Path, out: Path, *more: object) -> list[str]:
    path = scan(out.parent / "one.h5", 1)
    plan = ("--samples", 2, "--steps", 2, "--device", "cpu")
    return [str(a) for a in ("reconstruct", path, "--out", out, "--model", folder, *plan, *more)]


def test_a_calibrated_model_gives_the_error_bars_of_before(tmp_path: Path) -> None:
    folder = old.model(tmp_path / "model")
    intervals, check = old.calibrated(folder)
    assert main(command(folder, tmp_path / "out", "--interval", 0.8, "--self-check")) == 0
    with h5py.File(tmp_path / "out" / "one.h5") as file:
        told = json.loads(file.attrs["provenance"])
        found = [float(file[key][:].mean()) for key in ("lower", "upper", "surprise")]
    assert found == pytest.approx((18.3127, 20.7888, 31.425), rel=1e-3)
    of_slice = told["self_check"]["slices"][0]
    assert of_slice["p"] == pytest.approx(3 / 7) and of_slice["score"] == pytest.approx(0.681348, rel=1e-3)
    for key, part, place in (("calibration", intervals, told), ("self_check", check, told["self_check"])):
        origin = Origin(old.FITTED["data"], old.FITTED["date"], files.fingerprint(part))
        assert place["calibration"] == vars(origin), key


def test_its_calibration_becomes_a_file_of_its_own(tmp_path: Path) -> None:
    """What is read of the card is what is read of the file that is written of it, which then comes first."""
    folder = old.model(tmp_path / "model")
    old.calibrated(folder)
    before = load_calibration(folder)
    after = load_calibration(before.save(folder))
    assert after == before == load_calibration(folder)
    shutil.copy(folder / "calibration.json", tmp_path / "kept.json")
    old.calibrated(folder, version=3)
    assert load_calibration(folder) == before


def test_a_calibration_of_a_version_before_that_is_refused(tmp_path: Path, refused: Said) -> None:
    folder = old.model(tmp_path / "model")
    old.calibrated(folder, version=3)
    said = refused(folder, *command(folder, tmp_path / "out", "--interval", 0.8))
    assert "model.json has version 3, not 4: run mcddpm calibrate anew" in said


# --- results and their folders --------------------------------------------------------------------------------------


def test_results_are_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arrays = old.result(tmp_path / "a.h5")
    volume = open_volume(tmp_path / "a.h5")
    for k in range(2):
        assert np.array_equal(volume[k], arrays["mean"][k])
        assert np.array_equal(volume.reference("std", k), arrays["std"][k])
    assert main(["data", "info", str(tmp_path / "a.h5")]) == 0
    assert "image, 2 slices of 32 x 32, std, zero_filled" in capfd.readouterr().out


def test_results_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
    from tests.viewer.shown import image as unpacked
    from tests.viewer.shown import served

    arrays = old.result(tmp_path / "a.h5")
    with served(tmp_path) as client:
        told = client.get("/api/result", params={"name": "a.h5"}).json()
        assert told["samples"] == 2 and told["provenance"]["task"] == old.TASK
        for layer in ("mean", "std", "zero_filled"):
            seen = unpacked(client.get("/api/layer", params={"name": "a.h5", "layer": layer, "slice": 1}))
            assert abs(seen - arrays[layer][1]).max() <= np.ptp(arrays[layer][1]) / 65535, layer


@pytest.mark.parametrize("finished", [True, False])
def test_a_reconstruction_that_was_begun_is_not_gone_on_with(tmp_path: Path, refused: Said, finished: bool) -> None:
    """Its slices have the names of ours, and may have been asked for otherwise."""
    parts = tmp_path / "out" / ".parts"
    old.written(parts / "run.json", {"task": old.TASK, "model_sha256": "ce5d", "made_by": "mcddpm 0.1.0"})
    old.written(parts / "one" / "input.json", {"sha256": files.sha256(scan(tmp_path / "one.h5", 1))})
    if finished:
        old.result(tmp_path / "out" / "one.h5")
    else:
        plane = np.zeros((SIZE, SIZE), np.float32)
        notes = np.array(json.dumps({"scale": 1.0, "calls": 2, "warnings": []}))
        images = {"mean": plane, "std": plane, "zero_filled": plane, "mask": plane > 0}
        np.savez(
            parts / "one" / "slice-00000.npz", samples=np.zeros((2, SIZE, SIZE), np.complex64), notes=notes, **images
        )
    said = refused(tmp_path / "out", *command(Path("default"), tmp_path / "out"))
    assert f"{tmp_path / 'out'} was begun by another version of mcddpm" in said and "choose another --out" in said


def test_a_job_of_the_page_that_waits_is_refused_in_a_line(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
    from tests.viewer.shown import finished, served

    scan(tmp_path / "one.h5", 1)
    ticket = {
        "name": "one.h5",
        "input": str(tmp_path / "one.h5"),
        "out": "view-20260102-101010-aaaaaa",
        "task": old.TASK,
    }
    ticket |= {"message": "", "slices": 0, "done": 0, "step": 0, "steps": 0, "seconds_left": None, "made": 1.0}
    for name, state, done in (("a" * 12, "running", ""), ("b" * 12, "done", "one.h5")):
        old.written(tmp_path / ".view" / f"{name}.json", ticket | {"id": name, "state": state, "result": done})
    with served(tmp_path) as client:
        told = finished(client, "a" * 12)
        assert told["state"] == "failed" and told["message"].endswith("another version of mcddpm: ask for it again")
        assert client.get(f"/api/jobs/{'b' * 12}").json()["result"] == "one.h5"


# --- runs -----------------------------------------------------------------------------------------------------------


def test_the_configuration_of_a_run_means_what_it_meant() -> None:
    """With every key that it had; those that came later change nothing."""
    came_later = {"model.noise": (None, False), "simulation.exact": (None, 0.2), "simulation.wide": (None, False)}
    came_later |= {"wide": (None, to_dict(Wide()))}
    assert differences(old.CONFIG, to_dict(from_dict(Config, old.CONFIG))) == came_later


def test_a_run_is_shown_and_exported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = old.run(tmp_path / "run")
    assert main(["weights", "show", str(folder)]) == 0
    assert '"step": 4' in capfd.readouterr().out
    assert main(["weights", "export", str(folder), "--out", str(tmp_path / "model")]) == 0
    before = load_file(folder / "checkpoints" / "step-00000004" / "model.safetensors")
    after = load_file(tmp_path / "model" / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    card = read_card(tmp_path / "model")
    assert (card.format, card.step, card.measured_rms) == (2, 4, (0.4, 0.6))
    assert card.validation == {"step": 4, "zero_filled": 27.9, "mean": 27.8}
    assert json.loads((tmp_path / "model" / "config.json").read_text())["data"]["train"]["name"] == "drawn"


# --- evaluations and calibrations -----------------------------------------------------------------------------------


def test_an_evaluation_that_was_begun_is_not_gone_on_with(tmp_path: Path, refused: Said) -> None:
    folder, toml = old.evaluation(tmp_path / "out")
    (folder / "rows.csv").write_text("label\r\n")
    for arguments in (("evaluate", toml, "--out", folder), ("figures", folder)):
        said = refused(folder, *arguments, "--device", "cpu")
        assert f"{folder / 'evaluation.json'} is of another version" in said and "choose another --out" in said
    assert main(["evaluate", str(toml), "--out", str(tmp_path / "other"), "--device", "cpu"]) == 0


def test_a_calibration_that_was_begun_is_not_gone_on_with(tmp_path: Path, refused: Said) -> None:
    """It was an evaluation, by its folder: nothing of it would be used, and hours of work done again unasked."""
    folder, _ = old.evaluation(tmp_path / "out")
    path = tmp_path / "calibrate.toml"
    path.write_text(
        f'model = "{old.model(tmp_path / "model")}"\nlevels = [0.5]\ncheck_every = 0\nsamples = 2\nsteps = 1\n'
    )
    path.write_text(path.read_text() + f'[cases]\nsource = "{tmp_path / "scans"}"\nprotocol = "fastmri"\n')
    path.write_text(path.read_text() + 'label = "drawn"\naccelerations = [4]\n')
    scan(tmp_path / "scans" / "two.h5", 3, sampled=False, seed=1)
    said = refused(folder, "calibrate", path, "--out", folder, "--device", "cpu")
    assert f"{folder / 'evaluation.json'} is of another version" in said and "choose another --out" in said
    assert main(["calibrate", str(path), "--out", str(tmp_path / "other"), "--device", "cpu"]) == 0


def test_rows_are_read_and_written_as_they_were(tmp_path: Path) -> None:
    """But for the truth, which was the scan as measured and did not stand there."""
    texts = {"label", "protocol", "volume", "method", "device", "weights", "calibration", "manifest"}
    counts = {"slice", "samples", "calls", "seed", "measurement_seed", "self_check_calls", "pixels_foreground"}
    values = {c: c if c in texts else str(k) if c in counts else str(k + 0.1) for k, c in enumerate(old.columns())}
    plain = {c: v if c in texts | counts or c.endswith("_slice") else "" for c, v in values.items()}
    plain |= {key: values[key] for key in ("acceleration", "psnr_foreground", "ssim_foreground", "seconds")}
    plain |= {"calibration": "", "pixels_foreground": "", "self_check_calls": ""}
    path = tmp_path / "rows.csv"
    path.write_text("\r\n".join(",".join(line) for line in (old.columns(), values.values(), plain.values())) + "\r\n")
    full, zero_filled = read_csv(path)
    assert list(PLACES) == [*old.columns(), "truth"] and full.truth == "measured"
    assert full.quality["ssim"] == float(values["ssim_slice"]) and full.slice == int(values["slice"])
    assert full.scores["whole"].crps == float(values["crps_whole"])
    assert full.adaptive["whole"].coverage[80] == float(values["adaptive_80_whole"])
    assert full.self_check is not None and full.self_check.p == float(values["self_check_p"])
    assert zero_filled.scores == {} and zero_filled.self_check is None and zero_filled.weight is None
    head, *lines = path.read_text().splitlines()
    again = write_csv(tmp_path / "again.csv", [full, zero_filled]).read_text().splitlines()
    assert again == [f"{head},truth", *(f"{line},measured" for line in lines)]
