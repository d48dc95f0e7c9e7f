"""Killed at any moment, shared by any number of processes, on a full disk: the same files, and nothing done twice."""

from __future__ import annotations

import os
import random
import re
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from mcddpm.cli import main
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import load_model
from mcddpm.reconstruction import batch
from mcddpm.reconstruction.batch import reconstruct_scans
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.system.processes import Share
from tests.processes import command, start
from tests.scans import contents, quick, scan
from tests.torchrun import session


@pytest.fixture(scope="module")
def model(model_folder: Path) -> Denoiser:
    found = load_model(model_folder)
    assert isinstance(found, Denoiser)
    return found


def pieces(out: Path) -> list[str]:
    return sorted(path.name for path in (out / ".parts").rglob("*.npz"))


class Interrupted(BaseException):
    """As Ctrl-C is, for nobody to handle."""


# --- interrupted ----------------------------------------------------------------------------------------------------


def test_what_is_done_is_not_done_again(
    tmp_path: Path, model: Denoiser, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, task = str(scan(tmp_path / "scan.h5")), tmp_path / "out", quick(model_folder)
    drawn: list[int] = []
    own = batch.reconstruct

    def counted(model: Denoiser, measurement: object, plan: DrawPlan, **settings: object) -> object:
        if len(drawn) == 2:
            raise Interrupted
        drawn.append(plan.seed)
        return own(model, measurement, plan, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(batch, "reconstruct", counted)
    with pytest.raises(Interrupted):
        reconstruct_scans([path], out, task, model)
    assert len(drawn) == 2 and not (out / "scan.h5").exists()
    drawn.clear()
    reconstruct_scans([path], out, task, model)
    assert len(drawn) == 1 and (out / "scan.h5").exists()
    before = contents(out)
    drawn.clear()
    reconstruct_scans([path], out, task, model)
    assert drawn == [] and contents(out) == before and pieces(out) == []
    monkeypatch.undo()
    reconstruct_scans([path], tmp_path / "undisturbed", task, model)
    assert contents(tmp_path / "undisturbed") == before


def present(folder: Path) -> set[str]:
    """What is there now. Unlike rglob, os.walk does not mind that folders come and go meanwhile."""
    return {str(Path(here) / name) for here, folders, files in os.walk(folder) for name in (*folders, *files)}


def test_killed_at_random_moments_the_files_are_the_same(tmp_path: Path, model_folder: Path) -> None:
    for k in range(2):
        scan(tmp_path / "in" / f"scan{k}.h5", 6, seed=k)
    flags = ["--model", str(model_folder), "--samples", "2", "--steps", "2", "--format", "h5,nifti,dicom"]
    asked = ["reconstruct", str(tmp_path / "in"), *flags, "--device", "cpu", "--out"]
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert main([*asked, str(whole)]) == 0
    rng, kills = random.Random(0), 0
    while True:
        before = present(torn)
        process = start(command, *asked, str(torn))
        while process.exitcode is None and present(torn) == before:
            time.sleep(0.001)  # before it has begun, there is nothing to lose
        process.join(rng.uniform(0.0, 0.04) * 1.08**kills)  # longer and longer, for machines that are slow
        if process.exitcode is None:
            process.kill()
            process.join()
            kills += 1
            assert kills < 60
            continue
        assert process.exitcode == 0
        break
    assert kills >= 3
    assert contents(torn) == contents(whole)
    assert pieces(torn) == [] and pieces(whole) == []


def test_a_torn_slice_does_not_count(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    path, out = str(scan(tmp_path / "scan.h5")), tmp_path / "out"
    reconstruct_scans([path], tmp_path / "whole", quick(model_folder), model)
    (out / ".parts" / "scan").mkdir(parents=True)
    (out / ".parts" / "scan" / ".77.slice-00001.npz").write_bytes(b"half")
    (out / ".parts" / "scan" / "slice-00002.npz").write_bytes(b"")  # a power cut after the rename
    reconstruct_scans([path], out, quick(model_folder), model)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_run_killed_between_its_nifti_files_goes_on(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    """The mean is written last; what lies beside it without it is not whole, and not another's."""
    path, out, task = str(scan(tmp_path / "scan.h5")), tmp_path / "out", quick(model_folder, formats=("nifti",))
    reconstruct_scans([path], tmp_path / "whole", task, model)
    reconstruct_scans([path], out, task, model, share=Share(0, 2))  # some of its slices
    for name in ("scan_std.nii.gz", "scan.json"):
        (out / name).write_bytes(b"half")
    reconstruct_scans([path], out, task, model)
    assert contents(out) == contents(tmp_path / "whole")


# --- shared ---------------------------------------------------------------------------------------------------------


def test_two_processes_give_the_files_of_one(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shared = session(tmp_path_factory)
    assert [shared.ended("reconstruction", rank)["code"] for rank in (0, 1)] == [0, 0]
    assert main(shared.arguments("reconstruction", tmp_path / "one")) == 0
    one = contents(tmp_path / "one")
    assert len(one) == 2 * (1 + 3 + 10) and contents(shared.out("reconstruction")) == one


def test_ranks_that_start_late_leave_no_slice_undone(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    """One rank may be done with a scan before another looks: the share of each must not depend on that."""
    paths = [str(scan(tmp_path / f"scan{k}.h5", 1, seed=k)) for k in range(4)]
    for rank in (0, 1):  # one after the other
        results = reconstruct_scans(paths, tmp_path / "out", quick(model_folder), model, share=Share(rank, 2))
    assert len(results) == 4


def test_one_bad_scan_does_not_stop_two_processes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """torchrun ends all processes when one of them ends with an error: it has to wait for the others' scans."""
    shared = session(tmp_path_factory)
    ended = shared.ended("one bad scan", 0)
    assert ended["code"] == 2 and shared.code != 0
    assert "1 of 4 scans could not be reconstructed" in ended["said"] and "a.h5, slice 0 holds NaN" in ended["said"]
    good = [name for k in range(3) for name in (f"b{k}", f"b{k}.h5", f"b{k}.json", f"b{k}.nii.gz", f"b{k}_std.nii.gz")]
    assert ended["results"] == good, "all that the other process had to do was there when this one ended"


# --- another run's folder -------------------------------------------------------------------------------------------


def test_another_runs_folder_is_refused(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"
    reconstruct_scans([str(path)], out, quick(model_folder), model)
    before = contents(out)
    with pytest.raises(ValueError, match=r"another reconstruction: task\.samples was 2, is 3\. Choose another --out"):
        reconstruct_scans([str(path)], out, quick(model_folder, samples=3), model)
    scan(path, seed=5)  # another scan under the same name
    with pytest.raises(
        ValueError, match=f"holds scan of another file than {re.escape(str(path))}. Choose another --out"
    ):
        reconstruct_scans([str(path)], out, quick(model_folder), model)
    assert contents(out) == before


def test_another_models_folder_is_refused(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    path, out = str(scan(tmp_path / "scan.h5", 1)), tmp_path / "out"
    reconstruct_scans([path], out, quick(model_folder), model)
    other = load_model(model_folder)
    other.card = replace(other.card, sha256="another")
    with pytest.raises(ValueError, match=r"another reconstruction: model_sha256 was .*, is 'another'"):
        reconstruct_scans([path], out, quick(model_folder), other)


def test_more_scans_may_join(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    out, paths = tmp_path / "out", [str(scan(tmp_path / name, 1)) for name in ("a.h5", "b.h5")]
    assert reconstruct_scans(paths[:1], out, quick(model_folder), model) == [out / "a.h5"]
    assert reconstruct_scans(paths, out, quick(model_folder), model) == [out / "a.h5", out / "b.h5"]
    assert reconstruct_scans(paths[1:], out, quick(model_folder), model) == [out / "b.h5"]


def test_files_of_others_are_left_alone(tmp_path: Path, model: Denoiser, model_folder: Path) -> None:
    """A sidecar beside the result's name, the input itself in the output folder, results inside the input folder."""
    folder = tmp_path / "in"
    path = str(scan(folder / "scan.h5", 1))
    (folder / "scan.json").write_text("mine")
    with pytest.raises(ValueError, match=r"scan\.json is there already and not of a run of ours"):
        reconstruct_scans([path], folder, quick(model_folder, formats=("nifti",)), model)
    with pytest.raises(ValueError, match=r"scan\.h5 is there already and not of a run of ours"):
        reconstruct_scans([path], folder, quick(model_folder), model)
    assert (folder / "scan.json").read_text() == "mine"
    (folder / "._scan.h5").write_text("macOS leaves these")
    for _ in range(2):  # the second time, results are not taken for inputs
        results = reconstruct_scans([str(folder)], folder / "out", quick(model_folder), model)
        assert results == [folder / "out" / "scan.h5"]


def as_of_before(out: Path) -> None:
    """A folder as `mcddpm reconstruct` left it when its modules were flat: other notes, the same slices."""
    parts = out / ".parts"
    (parts / "reconstruction.json").rename(parts / "run.json")
    for folder in parts.iterdir():
        if folder.is_dir():
            (folder / "input.json").write_text('{"sha256": "0"}\n')
            (folder / "bars.json").unlink(missing_ok=True)


@pytest.mark.parametrize("finished", [True, False])
def test_folders_of_the_flat_package_are_refused_in_a_line(
    tmp_path: Path, model: Denoiser, model_folder: Path, finished: bool
) -> None:
    """Above all, slices that were drawn by another command are not taken for those of this one."""
    path, out = str(scan(tmp_path / "scan.h5")), tmp_path / "out"
    share = Share() if finished else Share(0, 2)
    reconstruct_scans([path], out, quick(model_folder), model, share=share)
    as_of_before(out)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    told = f"{out} was begun by another version of mcddpm, and cannot be gone on with: choose another --out"
    with pytest.raises(ValueError, match=re.escape(told)):
        reconstruct_scans([path], out, quick(model_folder, seed=1), model)
    assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}


# --- full disks -----------------------------------------------------------------------------------------------------


def test_a_full_disk_is_one_line_and_nothing_half_written(
    tmp_path: Path, model_folder: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = scan(tmp_path / "scan.h5"), tmp_path / "out"

    def full(file, **_: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    flags = ["--out", str(out), "--model", str(model_folder), "--samples", "2", "--steps", "1"]
    assert main(["reconstruct", str(path), *flags]) == 2
    said = capfd.readouterr().err
    assert "cannot be written: No space left on device" in said and "Traceback" not in said
    assert pieces(out) == [] and not (out / "scan.h5").exists()


def test_a_disk_that_fills_while_the_result_is_written(
    tmp_path: Path, model: Denoiser, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """h5py then says RuntimeError. The slices are kept: once there is room, the same command only writes."""
    path, out, task = str(scan(tmp_path / "scan.h5")), tmp_path / "out", quick(model_folder)

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("Can't decrement id ref count (No space left on device)")

    monkeypatch.setattr(h5py.File, "create_dataset", full)
    with pytest.raises(OSError, match=r"scan.h5 cannot be written: .*No space left"):
        reconstruct_scans([path], out, task, model)
    assert [p.name for p in out.iterdir()] == [".parts"] and len(pieces(out)) == 3
    monkeypatch.undo()
    monkeypatch.setattr(batch, "reconstruct", None)  # not needed any more
    assert reconstruct_scans([path], out, task, model) == [out / "scan.h5"] and (out / "scan.h5").exists()
