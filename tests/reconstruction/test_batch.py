"""`mcddpm reconstruct` on files: killed at any moment, by any number of processes, the same files; what it refuses."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
import torch

from mcddpm.cli import main
from mcddpm.data import writers
from mcddpm.data.readers import open_volume
from mcddpm.models.store import save_model
from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.reconstruction import batch
from mcddpm.reconstruction.batch import reconstruct_scans
from mcddpm.reconstruction.inputs import Task, find
from tests.test_reconstruct import tiny

SIZE = 32
MASK = masks.random_columns(SIZE, acceleration=4, seed=0)


@pytest.fixture
def model(tmp_path: Path) -> str:
    made = tiny()
    save_model(tmp_path / "model", made.network.state_dict(), made.card)
    return str(tmp_path / "model")


def kspace(slices: int = 3, seed: int = 0) -> np.ndarray:
    """Blocks with a phase, as k-space (slices, H, W)."""
    rng = np.random.RandomState(seed)
    x = np.zeros((slices, SIZE, SIZE), np.complex64)
    for image in x:
        top, left = rng.randint(4, 12, 2)
        image[top : top + 16, left : left + 12] = rng.uniform(50, 100) * np.exp(1j * rng.uniform(0, 6))
    noise = rng.normal(size=(*x.shape, 2)) @ [1, 1j]
    return Fourier()(torch.from_numpy(x + noise.astype(np.complex64))).numpy()


def scan(path: Path, slices: int = 3, seed: int = 0, sampled: bool = True) -> Path:
    """A file in fastMRI's layout, under-sampled as measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    y = kspace(slices, seed)
    with h5py.File(path, "w") as file:
        file["kspace"] = y * MASK.numpy() if sampled else y
        if sampled:
            file["mask"] = MASK.numpy()
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every result, byte for byte."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and ".parts" not in p.parts
    }


def quick(model: str, **more: object) -> Task:
    return Task(**{"model": model, "samples": 2, "steps": 2, **more})  # type: ignore[arg-type]


def test_a_file_in_a_file_out(tmp_path: Path, model: str) -> None:
    path = scan(tmp_path / "scan.h5")
    (result,) = reconstruct_scans([str(path)], tmp_path / "out", quick(model))
    assert result == tmp_path / "out" / "scan.h5"
    y = kspace()
    with h5py.File(result) as file:
        samples, mean, std = (file[key][:] for key in ("samples", "mean", "std"))
        assert samples.shape == (3, 2, SIZE, SIZE) and samples.dtype == np.complex64
        np.testing.assert_allclose(mean, abs(samples).mean(1), rtol=1e-5)
        np.testing.assert_allclose(std, abs(samples).std(1, ddof=1), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(file["zero_filled"][:], Fourier().pinv(torch.from_numpy(y) * MASK).abs(), atol=1e-3)
        assert (file["mask"][:] == MASK.numpy()).all() and "truth" not in file
        provenance = json.loads(file.attrs["provenance"])
    back = Fourier()(torch.from_numpy(samples))[..., MASK]
    assert (back - torch.from_numpy(y)[:, None][..., MASK]).abs().max() < 1e-5 * abs(y).max()  # measured data come back
    assert provenance["task"]["samples"] == 2 and provenance["calls"] == 2 and len(provenance["scale"]) == 3
    assert provenance["model"]["sha256"] == json.loads((Path(model) / "model.json").read_text())["sha256"]
    assert open_volume(result).reference("std", 0) is not None


def test_slices_have_noise_of_their_own(tmp_path: Path, model: str) -> None:
    y = np.repeat(kspace(1), 2, 0) * MASK.numpy()
    np.save(tmp_path / "a.npy", y)
    np.save(tmp_path / "b.npy", y)
    out = tmp_path / "out"
    reconstruct_scans([str(tmp_path / "*.npy")], out, quick(model, kind="kspace"))
    with h5py.File(out / "a.h5") as a, h5py.File(out / "b.h5") as b:
        drawn = [a["samples"][0], a["samples"][1], b["samples"][0]]
    assert not np.allclose(drawn[0], drawn[1]) and not np.allclose(drawn[0], drawn[2])


def test_folders_globs_and_formats(tmp_path: Path, model: str) -> None:
    scan(tmp_path / "in" / "one.h5", 1)
    scan(tmp_path / "in" / "deep" / "two.h5", 2, seed=1)
    task = quick(model, formats=("h5", "nifti", "dicom"))
    results = reconstruct_scans([str(tmp_path / "in")], tmp_path / "out", task)
    names = {str(p.relative_to(tmp_path / "out")) for p in results}
    assert names == {"one.h5", "one.nii.gz", "one", "deep/two.h5", "deep/two.nii.gz", "deep/two"}
    with h5py.File(tmp_path / "out" / "deep" / "two.h5") as file:
        mean = file["mean"][:]
    np.testing.assert_allclose(nibabel.load(tmp_path / "out" / "deep" / "two.nii.gz").get_fdata().T, mean, rtol=1e-5)
    dicom = open_volume(tmp_path / "out" / "deep" / "two")
    assert len(dicom) == 2 and dicom.reference("std", 1) is not None
    assert len(reconstruct_scans([str(tmp_path / "in" / "*.h5")], tmp_path / "glob", quick(model))) == 1


def test_every_dicom_series_of_a_folder_is_a_scan_beside_other_files(tmp_path: Path, model: str) -> None:
    image = np.abs(np.fft.ifft2(kspace(2))).astype(np.float32)
    for place in ("study/series 1", "study/series 2"):
        writers.write_dicom(tmp_path / "in" / place, writers.Result(image, None, {"version": "test"}))
    nibabel.save(nibabel.nifti1.Nifti1Image(image.T, np.eye(4)), tmp_path / "in" / "one.nii.gz")
    (tmp_path / "in" / "study" / "notes.txt").write_text("not a scan")
    task = quick(model, mask="random_columns")
    found = find([str(tmp_path / "in")], tmp_path / "out", task)
    assert {s.name: s.slices for s in found} == {"one": 2, "study/series 1": 2, "study/series 2": 2}
    (alone,) = find([str(tmp_path / "in" / "study" / "series 1")], tmp_path / "out", task)
    assert alone.name == "series 1"


def test_a_retrospective_study_keeps_the_truth(tmp_path: Path, model: str) -> None:
    path = scan(tmp_path / "full.h5", sampled=False)
    reconstruct_scans([str(path)], tmp_path / "out", quick(model, mask="random_columns", acceleration=4.0))
    reconstruct_scans([str(path)], tmp_path / "other", quick(model, mask="random_columns", acceleration=4.0, seed=1))
    with h5py.File(tmp_path / "out" / "full.h5") as file, h5py.File(tmp_path / "other" / "full.h5") as other:
        np.testing.assert_allclose(file["truth"][:], Fourier().pinv(torch.from_numpy(kspace())).abs(), atol=1e-3)
        assert (file["mask"][:] == other["mask"][:]).all()  # another seed: other samples of the same measurement
        assert not np.allclose(file["samples"][:], other["samples"][:])


def test_magnitude_images_get_a_phase_and_it_is_said(tmp_path: Path, model: str) -> None:
    image = abs(Fourier().pinv(torch.from_numpy(kspace(2)))).numpy()
    image[1] = 0  # nothing in this slice
    nibabel.save(
        nibabel.nifti1.Nifti1Image(image.transpose(2, 1, 0), np.diag([2.0, 2, 3, 1])), tmp_path / "head.nii.gz"
    )
    task = quick(model, mask="equispaced_columns", formats=("h5", "nifti"))
    reconstruct_scans([str(tmp_path / "head.nii.gz")], tmp_path / "out", task)
    with h5py.File(tmp_path / "out" / "head.h5") as file:
        assert json.loads(file.attrs["provenance"])["simulated_phase"] is True
        np.testing.assert_allclose(file["truth"][0], image[0], rtol=1e-4, atol=1e-2)
        assert np.angle(file["samples"][0]).std() > 0.1
        assert not file["mean"][1].any()
    np.testing.assert_allclose(nibabel.load(tmp_path / "out" / "head.nii.gz").affine, np.diag([2.0, 2, 3, 1]))


def test_mean_only_has_neither_std_nor_more_than_one_sample(tmp_path: Path, model: str) -> None:
    path = scan(tmp_path / "scan.h5", 1)
    arguments = [
        "reconstruct",
        str(path),
        "--out",
        str(tmp_path / "out"),
        "--model",
        model,
        "--mean-only",
        "--format",
        "h5,nifti",
    ]
    assert main(arguments) == 0
    with h5py.File(tmp_path / "out" / "scan.h5") as file:
        assert "std" not in file and file["samples"].shape == (1, 1, SIZE, SIZE)
        assert json.loads(file.attrs["provenance"])["calls"] == 1
    assert not (tmp_path / "out" / "scan_std.nii.gz").exists() and (tmp_path / "out" / "scan.nii.gz").exists()


# --- nothing is done twice, nothing is lost -------------------------------------------------------------------------


def test_what_is_done_is_not_done_again(tmp_path: Path, model: str, monkeypatch) -> None:
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"
    drawn, own = [], batch.reconstruct

    def counted(*arguments: object, **settings: object) -> object:
        if len(drawn) == 2:
            raise KeyboardInterrupt
        drawn.append(settings["seed"])
        return own(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(batch, "reconstruct", counted)
    with pytest.raises(KeyboardInterrupt):
        reconstruct_scans([str(path)], out, quick(model))
    assert len(drawn) == 2 and not (out / "scan.h5").exists()
    drawn.clear()
    reconstruct_scans([str(path)], out, quick(model))
    assert len(drawn) == 1 and (out / "scan.h5").exists()
    before = contents(out)
    drawn.clear()
    reconstruct_scans([str(path)], out, quick(model))
    assert drawn == [] and contents(out) == before
    assert not list((out / ".parts").rglob("*.npz"))
    monkeypatch.undo()
    reconstruct_scans([str(path)], tmp_path / "undisturbed", quick(model))
    assert contents(tmp_path / "undisturbed") == before


def command(path: Path, out: Path, model: str, launcher: list[str], *more: str) -> list[str]:
    flags = ["--model", model, "--samples", "2", "--steps", "2", "--format", "h5,nifti,dicom", *more]
    return [sys.executable, *launcher, "-m", "mcddpm", "reconstruct", str(path), "--out", str(out), *flags]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def present(folder: Path) -> set[str]:
    """What is there now. Unlike rglob, os.walk does not mind that folders come and go meanwhile."""
    return {str(Path(here) / name) for here, folders, files in os.walk(folder) for name in (*folders, *files)}


def test_killed_at_random_moments_the_files_are_the_same(tmp_path: Path, model: str) -> None:
    for k in range(2):
        scan(tmp_path / "in" / f"scan{k}.h5", 6, seed=k)
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    subprocess.run(command(tmp_path / "in", whole, model, []), check=True, env=environment(), capture_output=True)
    rng, kills = random.Random(0), 0
    while True:
        process = subprocess.Popen(
            command(tmp_path / "in", torn, model, []),
            env=environment(),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        before = present(torn)
        while process.poll() is None and present(torn) == before:
            time.sleep(0.002)  # importing torch is not worth killing
        try:
            process.wait(rng.uniform(0.0, 0.1) * 1.05**kills)  # longer and longer, for machines that are slow
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            assert kills < 60
            continue
        assert process.returncode == 0
        break
    assert kills >= 3
    assert contents(torn) == contents(whole)
    assert not list((torn / ".parts").rglob("*.npz"))


def test_two_processes_give_the_files_of_one(tmp_path: Path, model: str) -> None:
    for k in range(2):
        scan(tmp_path / "in" / f"scan{k}.h5", 5, seed=k)
    subprocess.run(
        command(tmp_path / "in", tmp_path / "one", model, []), check=True, env=environment(), capture_output=True
    )
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        command(tmp_path / "in", tmp_path / "two", model, torchrun), check=True, env=environment(), capture_output=True
    )
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_ranks_that_start_late_leave_no_slice_undone(tmp_path: Path, model: str) -> None:
    """One rank may be done with a scan before another looks: the share of each must not depend on that."""
    paths = [str(scan(tmp_path / f"scan{k}.h5", 1, seed=k)) for k in range(4)]
    out = tmp_path / "out"
    for rank in (0, 1):  # one after the other
        results = reconstruct_scans(paths, out, quick(model), rank=rank, world=2)
    assert len(results) == 4


def test_one_bad_scan_does_not_stop_two_processes(tmp_path: Path, model: str) -> None:
    bad = scan(tmp_path / "in" / "a.h5", 1)
    with h5py.File(bad, "r+") as file:
        file["kspace"][0, 0, 16] = np.nan
    for k in range(3):
        scan(tmp_path / "in" / f"b{k}.h5", 6, seed=k)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    out = tmp_path / "out"
    done = subprocess.run(command(tmp_path / "in", out, model, torchrun), env=environment(), capture_output=True)
    assert done.returncode != 0 and b"could not be reconstructed" in done.stderr
    assert {path.name for path in out.glob("*.h5")} == {"b0.h5", "b1.h5", "b2.h5"}


def test_a_torn_slice_does_not_count(tmp_path: Path, model: str) -> None:
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"
    reconstruct_scans([str(path)], tmp_path / "whole", quick(model))
    (out / ".parts" / "scan").mkdir(parents=True)
    (out / ".parts" / "scan" / ".77.slice-00001.npz").write_bytes(b"half")
    (out / ".parts" / "scan" / "slice-00002.npz").write_bytes(b"")  # a power cut after the rename
    reconstruct_scans([str(path)], out, quick(model))
    assert contents(out) == contents(tmp_path / "whole")


def test_a_line_that_was_lost_is_told_and_not_taken_for_measured(tmp_path: Path, model: str, capfd) -> None:
    """Zeros at the edges are a scanner's padding; between columns that hold something they are not."""
    path, lost = scan(tmp_path / "scan.h5", 2), int(MASK.nonzero().flatten()[3])
    with h5py.File(path, "r+") as file:
        file["kspace"][:, :, lost] = 0
        file["kspace"][:, :, : int(MASK.nonzero().flatten()[0]) + 1] = 0
    asked = ["--out", str(tmp_path / "out"), "--model", model, "--samples", "2", "--steps", "2", "--device", "cpu"]
    assert main(["reconstruct", str(path), *asked]) == 0
    told = " ".join(capfd.readouterr().err.split())
    expected = f"1 columns that the mask calls measured hold nothing (the first is {lost}): taken as not sampled"
    assert told.count(expected) == 1, "once a scan"
    with h5py.File(tmp_path / "out" / "scan.h5") as file:
        assert not file["mask"][0, 0, lost] and any(
            expected in one for one in json.loads(file.attrs["provenance"])["warnings"]
        )


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.h5"], "no file or folder none.h5"),
        (["*.dat"], "no file or folder *.dat"),
        (["text.h5"], "text.h5 cannot be read as HDF5"),
        (["head.nii.gz"], "head.nii.gz holds images and no k-space; for a retrospective study say how"),
        (["full.h5"], "full.h5 holds k-space, fully sampled"),
        (
            ["scan.h5", "--mask", "random_columns"],
            "scan.h5 was under-sampled 5.3x when it was measured; leave out --mask",
        ),
        (["full.h5", "--mask", "zebra"], "unknown mask 'zebra'; known: random_columns"),
        (["full.h5", "--mask", "none.npy"], "no mask file none.npy"),
        (["scan.h5", "--model", "zebra"], "no model 'zebra': neither a folder nor one of those shipped"),
        (["scan.h5", "--samples", "0"], "samples is 0, expected 1 or more"),
        (["scan.h5", "--steps", "0"], "steps is 0, expected 1 or more"),
        (["scan.h5", "--sampler", "zebra"], "unknown sampler 'zebra'"),
        (["scan.h5", "--format", "bmp"], "unknown format bmp; known: h5, nifti, dicom"),
        (["scan.h5", "--memory", "some"], "memory is 'some'"),
        (["scan.h5", "--grid", "zebra"], "unknown spacing 'zebra'"),
        (["scan.h5", "--device", "zebra"], "unknown device 'zebra'"),
        (["scan.h5", "other/scan.h5"], "would both be written as scan"),
        (["scan.h5", "--out", "text.h5"], "cannot write to the folder text.h5"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(
    tmp_path: Path, model: str, monkeypatch, capfd, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    scan(Path("scan.h5"))
    scan(Path("other/scan.h5"))
    scan(Path("full.h5"), sampled=False)
    Path("text.h5").write_text("not HDF5")
    nibabel.save(nibabel.nifti1.Nifti1Image(np.ones((4, 4, 2), np.float32), np.eye(4)), "head.nii.gz")
    flags = [] if "--model" in arguments else ["--model", model]
    flags += [] if "--out" in arguments else ["--out", "out"]
    assert main(["reconstruct", *arguments, *flags]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert message in said and "Traceback" not in said
    assert not [p for p in Path("out").rglob("*") if p.suffix in (".h5", ".gz", ".npz")]


def test_another_runs_folder_is_refused(tmp_path: Path, model: str, capfd) -> None:
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"
    reconstruct_scans([str(path)], out, quick(model))
    before = contents(out)
    flags = ["--out", str(out), "--model", model, "--steps", "2"]
    assert main(["reconstruct", str(path), *flags, "--samples", "3"]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "holds results of another run: task.samples was 2, is 3. Choose another --out" in said
    scan(path, seed=5)  # another scan under the same name
    assert main(["reconstruct", str(path), *flags, "--samples", "2"]) == 2
    assert "holds scan of another file than" in " ".join(capfd.readouterr().err.split())
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "scan.h5").write_text("mine")
    assert main(["reconstruct", str(path), "--out", str(tmp_path / "foreign"), "--model", model]) == 2
    assert (tmp_path / "foreign" / "scan.h5").read_text() == "mine"
    assert contents(out) == before


def test_one_bad_scan_does_not_stop_the_others(tmp_path: Path, model: str, capfd) -> None:
    good, bad = scan(tmp_path / "good.h5", 2), scan(tmp_path / "bad.h5", 2)
    with h5py.File(bad, "r+") as file:
        file["kspace"][1, 0, 16] = np.nan
    arguments = [
        "reconstruct",
        str(bad),
        str(good),
        "--out",
        str(tmp_path / "out"),
        "--model",
        model,
        "--samples",
        "2",
        "--steps",
        "1",
    ]
    assert main(arguments) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "1 of 2 scans could not be reconstructed" in said and "bad.h5, slice 1 holds NaN" in said
    assert (tmp_path / "out" / "good.h5").exists() and not (tmp_path / "out" / "bad.h5").exists()


def test_a_full_disk_is_one_line_and_nothing_half_written(tmp_path: Path, model: str, capfd, monkeypatch) -> None:
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"

    def full(file, **_: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(batch.np, "savez", full)
    assert main(["reconstruct", str(path), "--out", str(out), "--model", model, "--samples", "2", "--steps", "1"]) == 2
    said = capfd.readouterr().err
    assert "cannot be written: No space left on device" in said and "Traceback" not in said
    assert not list(out.rglob("*.npz")) and not (out / "scan.h5").exists()


def test_a_disk_that_fills_while_the_result_is_written(tmp_path: Path, model: str, capfd, monkeypatch) -> None:
    """h5py then says RuntimeError. The slices are kept: once there is room, the same command only writes."""
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"
    flags = ["--out", str(out), "--model", model, "--samples", "2", "--steps", "1"]

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("Can't decrement id ref count (No space left on device)")

    monkeypatch.setattr(h5py.File, "create_dataset", full)
    assert main(["reconstruct", str(path), *flags]) == 2
    said = capfd.readouterr().err
    assert "scan.h5 cannot be written" in said and "Traceback" not in said
    assert [p.name for p in out.iterdir()] == [".parts"]
    monkeypatch.undo()
    monkeypatch.setattr(batch, "reconstruct", None)  # not needed any more
    assert main(["reconstruct", str(path), *flags]) == 0 and (out / "scan.h5").exists()


def test_a_corrected_command_is_not_refused(tmp_path: Path, model: str) -> None:
    path = scan(tmp_path / "scan.h5", 1)
    flags = ["reconstruct", str(path), "--out", str(tmp_path / "out"), "--model", model, "--samples", "2"]
    for mistake in (
        ["--grid", "zebra"],
        ["--memory", "some"],
        ["--snr", "0"],
        ["--sampler", "ancestral", "--steps", "2000"],
    ):
        assert main([*flags, *mistake]) == 2
    assert main([*flags, "--steps", "1"]) == 0


def test_files_of_others_are_left_alone(tmp_path: Path, model: str) -> None:
    """A sidecar beside the result's name, the input itself in the output folder, results inside the input folder."""
    folder = tmp_path / "in"
    path = scan(folder / "scan.h5", 1)
    (folder / "scan.json").write_text("mine")
    with pytest.raises(ValueError, match=r"scan\.json is there already and not of a run of ours"):
        reconstruct_scans([str(path)], folder, quick(model, formats=("nifti",)))
    with pytest.raises(ValueError, match=r"scan\.h5 is there already and not of a run of ours"):
        reconstruct_scans([str(path)], folder, quick(model))
    assert (folder / "scan.json").read_text() == "mine"
    (folder / "._scan.h5").write_text("macOS leaves these")
    for _ in range(2):  # the second time, results are not taken for inputs
        assert reconstruct_scans([str(folder)], folder / "out", quick(model)) == [folder / "out" / "scan.h5"]


@pytest.mark.parametrize(
    ("names", "formats", "message"),
    [
        (("a.h5", "a_std.h5"), ("nifti",), "would both write"),
        (("p.h5", "p/x.h5"), ("dicom",), "would write a folder that results of"),
    ],
)
def test_results_that_would_collide_are_refused(tmp_path: Path, model: str, names, formats, message: str) -> None:
    for name in names:
        scan(tmp_path / "in" / name, 1)
    with pytest.raises(ValueError, match=message):
        reconstruct_scans([str(tmp_path / "in")], tmp_path / "out", quick(model, formats=formats))
    assert not (tmp_path / "out").exists()


def test_slices_sampled_differently_keep_all_that_was_measured(tmp_path: Path, model: str) -> None:
    """A zero-filled array without a mask: every slice as it was sampled, and an empty one in the middle."""
    y = kspace(5)
    sampled = np.stack([masks.random_columns(SIZE, acceleration=4, seed=k).numpy() for k in range(5)])
    y *= sampled[:, None]
    y[2] = 0
    np.save(tmp_path / "scan.npy", y)
    reconstruct_scans([str(tmp_path / "scan.npy")], tmp_path / "out", quick(model, kind="kspace"))
    with h5py.File(tmp_path / "out" / "scan.h5") as file:
        found, samples = file["mask"][:], file["samples"][:]
    for k in (0, 1, 3, 4):
        assert (found[k] == sampled[k]).all()
        back = Fourier()(torch.from_numpy(samples[k])).numpy()
        assert abs(back - y[k])[..., sampled[k]].max() < 1e-5 * abs(y[k]).max()
    assert not samples[2].any()


def test_several_coils_from_a_file(tmp_path: Path, model: str) -> None:
    maps = coil_maps(3, (SIZE, SIZE), 0).numpy()
    images = Fourier().pinv(torch.from_numpy(kspace(2))).numpy()
    y = Fourier()(torch.from_numpy(maps * images[:, None])).numpy() * MASK.numpy()
    with h5py.File(tmp_path / "coils.h5", "w") as file:
        file["kspace"], file["mask"] = y, MASK.numpy()
    reconstruct_scans([str(tmp_path / "coils.h5")], tmp_path / "out", quick(model))
    with h5py.File(tmp_path / "out" / "coils.h5") as file:
        assert file["samples"].shape == (2, 2, SIZE, SIZE)
        assert "by MRI with several coils, the model" in file.attrs["provenance"]


def test_a_ct_volume_is_refused(tmp_path: Path, model: str, capfd) -> None:
    values = np.random.RandomState(0).uniform(-1000, 1000, (SIZE, SIZE, 1)).astype(np.float32)
    nibabel.save(nibabel.nifti1.Nifti1Image(values, np.eye(4)), tmp_path / "ct.nii.gz")
    flags = ["--out", str(tmp_path / "out"), "--model", model, "--mask", "random_columns"]
    assert main(["reconstruct", str(tmp_path / "ct.nii.gz"), *flags]) == 2
    assert "it holds negative values, as CT does" in " ".join(capfd.readouterr().err.split())


def test_warnings_are_told_and_kept(tmp_path: Path, capfd) -> None:
    made = tiny(shape=(48, 48))
    save_model(tmp_path / "model", made.network.state_dict(), made.card)
    path = scan(tmp_path / "scan.h5", 2)
    flags = ["--out", str(tmp_path / "out"), "--model", str(tmp_path / "model"), "--samples", "2", "--steps", "1"]
    assert main(["reconstruct", str(path), *flags]) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "warning:" in said and "the matrix is 32 x 32, the model was trained on 48 x 48" in said
    with h5py.File(tmp_path / "out" / "scan.h5") as file:
        assert "the matrix is 32 x 32" in json.loads(file.attrs["provenance"])["warnings"][0]
