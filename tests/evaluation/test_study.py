"""An evaluation: the rows of every slice and method wherever it was stopped, in a folder that keeps its meaning."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from mcddpm import load_model, metrics
from mcddpm.cli import main
from mcddpm.data.cases import cases_of
from mcddpm.data.protocols import mask_seed
from mcddpm.evaluation.methods import Method
from mcddpm.evaluation.run import evaluate
from mcddpm.evaluation.study import Evaluation, Study, chosen, row_of
from mcddpm.models.store import read_card
from mcddpm.physics.fourier import Fourier
from mcddpm.reconstruction.sample import reconstruct
from mcddpm.system.processes import Share
from mcddpm.system.settings import load, to_dict
from mcddpm.system.workspace import Workspace
from tests.conftest import Told
from tests.evaluation.studies import METHODS, case_of, first, only, pieces, rows, untimed
from tests.knees import FILES, Stop, StopAt, knee, saved, torn

pytest_plugins = ["tests.evaluation.fixtures"]

# --- rows -----------------------------------------------------------------------------------------------------------


def test_one_row_a_slice_and_method(done: Path, asked: Evaluation) -> None:
    found = rows(done)
    assert len(found) == 2 * 2 * 2 * 3  # files, slices, accelerations, methods
    places = {(row.volume, row.slice, row.acceleration, row.method) for row in found}
    assert places == {(name, k, a, m.name) for name in FILES for k in (0, 1) for a in (4.0, 8.0) for m in METHODS}
    assert {row.label for row in found} == {"PD"} and {row.protocol for row in found} == {"fastmri"}
    assert len({row.manifest for row in found}) == 1 and {row.device for row in found} == {"cpu"}
    assert {row.calls for row in found if row.method == "ZF"} == {0}
    ours = [row for row in found if row.method == "Ours"]
    assert {(row.samples, row.calls) for row in ours} == {(2, 4)}
    assert {row.weights for row in ours} == {read_card(asked.methods[2].model).sha256[:16]}
    for row in found:
        assert row.measurement_seed == mask_seed(Path(row.volume), row.slice)
        assert row.scores.keys() == ({"foreground", "whole"} if row.method == "Ours" else set())


def test_a_rows_numbers_are_the_metrics(done: Path, asked: Evaluation) -> None:
    m = cases_of(asked.cases[0])[0].make()
    assert m.truth is not None
    truth, image = m.truth.abs() / m.scale, Fourier().pinv(m.y_m).abs() / m.scale
    row = next(row for row in rows(done) if row.method == "ZF")
    for name, metric in metrics.METRICS.items():
        assert row.quality[name] == pytest.approx(float(metric(image, truth)), rel=1e-4)
    inside = truth > 0.1 * truth.max()
    error = float(((image - truth)[inside] / truth.max()).square().mean())
    assert row.foreground["psnr"] == pytest.approx(-10 * math.log10(error), rel=1e-4)


def test_a_rows_samples_are_those_of_its_seed(done: Path, asked: Evaluation) -> None:
    case = case_of(asked, FILES[1], 1, 8.0)
    row = next(r for r in rows(done) if (r.volume, r.slice, *r.key[1:]) == (FILES[1], 1, "Ours", 8.0))
    recon = reconstruct(load_model(asked.methods[2].model), case.make(), samples=2, steps=2, seed=row.seed)  # type: ignore[arg-type]
    (piece,) = pieces(done, "Ours", lambda name: name == case.name)
    assert row.seed == case.draw_seed(0) != case.draw_seed(1)
    assert np.allclose(piece["mean"], recon.mean) and np.allclose(piece["std"], recon.std)


def test_quality_by_number_of_samples(done: Path) -> None:
    (piece,) = pieces(done, "Ours", lambda name: name == f"PD-{FILES[0]}-0001-8x")
    found, row = piece["by_count"], row_of(piece)
    assert piece["std"].shape == piece["mean"].shape == (48, 48) and (piece["std"] > 0).any()
    assert len(found) == 2 and found[1] == pytest.approx(row.quality["psnr"], abs=1e-4) and found[0] != found[1]


# --- wherever it was stopped ----------------------------------------------------------------------------------------


def test_stopped_at_any_point_the_rows_are_the_same(asked: Evaluation, done: Path, tmp_path: Path, monkeypatch) -> None:
    for n in (1, 7):
        with pytest.raises(Stop):
            evaluate(asked, tmp_path, progress=StopAt(n))
        assert not (tmp_path / "rows.csv").exists()
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Workspace, "keep", torn(Workspace.keep))
        evaluate(asked, tmp_path)
    assert evaluate(asked, tmp_path) == tmp_path / "rows.csv" and untimed(tmp_path) == untimed(done)


def test_two_processes_share_the_work(asked: Evaluation, done: Path, tmp_path: Path) -> None:
    """Every method alike, though there are as many methods as processes."""
    two = replace(asked, methods=(asked.methods[0], asked.methods[2]))
    assert evaluate(two, tmp_path, share=Share(0, 2)) is None and not (tmp_path / "rows.csv").exists()
    assert [len(pieces(tmp_path, method)) for method in ("ZF", "Ours")] == [4, 4]
    evaluate(two, tmp_path, share=Share(1, 2))
    assert untimed(tmp_path) == [row for row in untimed(done) if row.method != "One"]


def test_how_far_it_is(asked: Evaluation, tmp_path: Path, told: Told) -> None:
    evaluate(first(asked), tmp_path, progress=told)
    assert told.places == [(k, 3, "") for k in (1, 2, 3)] and not told.notices
    evaluate(first(asked), tmp_path, progress=told)
    assert len(told.places) == 3, "nothing is done twice"


# --- a folder keeps its meaning -------------------------------------------------------------------------------------


def test_methods_may_be_added_but_not_changed(asked: Evaluation, done: Path, tmp_path: Path) -> None:
    out, few = tmp_path / "out", replace(asked, methods=asked.methods[:1])
    evaluate(few, out)
    evaluate(asked, out)
    assert untimed(out) == untimed(done)
    evaluate(few, out)
    assert {row.method for row in rows(out)} == {"ZF"}
    other = shutil.copytree(asked.cases[0].source, tmp_path / "files")
    with h5py.File(other / FILES[0], "r+") as file:
        file["kspace"][0, 0, 0] += 1
    for changed, told in (
        (replace(asked, methods=(replace(asked.methods[2], steps=3),)), r"methods\.Ours\.steps was 2, is 3"),
        (only(few, *few.methods, acquisition=""), r"cases\.PD\.acquisition was 'CORPD_FBK', is "),
        (replace(few, seed=1), "seed was 0, is 1"),
        (only(few, *few.methods, source=str(other)), r"cases\.PD\.source was '.*; data\.PD file1000002.h5 was '"),
    ):
        with pytest.raises(ValueError, match=rf"{out} holds another evaluation: .*{told}.*Choose another --out"):
            evaluate(changed, out)
    evaluate(replace(few, methods=(replace(asked.methods[2], name="Three", steps=3),)), out)
    assert {row.method for row in rows(out)} == {"Three"}, "under another name"


def test_other_slices_are_the_same_evaluation(asked: Evaluation, done: Path, tmp_path: Path) -> None:
    out = shutil.copytree(done, tmp_path / "out")
    evaluate(only(asked, *asked.methods, every=2, accelerations=(8.0,)), out)
    kept = [row for row in untimed(done) if row.slice == 0 and row.acceleration == 8]
    assert [replace(row, manifest="") for row in untimed(out)] == [replace(row, manifest="") for row in kept]
    assert len(kept) == 6 and rows(out)[0].manifest != rows(done)[0].manifest


def test_another_kind_of_device_is_another_evaluation(asked: Evaluation, done: Path, tmp_path: Path) -> None:
    """A GPU draws other noise for the same seed: rows of both are not of one evaluation."""
    out, wanted = shutil.copytree(done, tmp_path / "out"), chosen(asked)
    for _ in range(2):
        with pytest.raises(ValueError, match="device was 'cpu', is 'cuda'"):
            Study(Workspace(out, "evaluation"), 0, "cuda:1").claim(asked, wanted)
        Study(Workspace(out, "evaluation"), 0, "cuda:1").claim(asked, wanted, any_device=True)  # to draw what is there


def test_other_weights_are_another_evaluation(asked: Evaluation, tmp_path: Path) -> None:
    model = shutil.copytree(asked.methods[1].model, tmp_path / "model")
    moved = only(asked, replace(asked.methods[1], model=str(model)), accelerations=(4.0,))
    evaluate(moved, tmp_path / "out")
    shutil.rmtree(model)
    saved(model, seed=5)
    with pytest.raises(ValueError, match=r"weights\..*model was '"):
        evaluate(moved, tmp_path / "out")


def test_a_folder_of_before_is_refused(asked: Evaluation, done: Path, tmp_path: Path) -> None:
    out = shutil.copytree(done, tmp_path / "out")
    (out / "evaluation.json").write_text(json.dumps({"seed": 0, "cases": {}, "methods": {}, "weights": {}}))
    with pytest.raises(ValueError, match=r"evaluation\.json is of another version .* choose another --out"):
        evaluate(asked, out)


# --- what is chosen -------------------------------------------------------------------------------------------------


def test_a_cases_methods_may_be_chosen_and_models_named_by_case(asked: Evaluation) -> None:
    named = replace(asked.methods[1], model="{label}-{acceleration}x")
    wanted = chosen(replace(asked, methods=(asked.methods[0], named)))
    assert {(case.acceleration, m.model) for case, m in wanted if m.model} == {(4, "PD-4x"), (8, "PD-8x")}
    few = only(asked, *asked.methods, methods=("ZF",))
    assert {method.name for _, method in chosen(few)} == {"ZF"}
    with pytest.raises(ValueError, match="cases ask for the methods ZG; known: ZF, One, Ours"):
        chosen(only(asked, *asked.methods, methods=("ZG",)))


def test_a_method_without_a_name_is_called_by_its_kind(asked: Evaluation) -> None:
    assert {m.name for _, m in chosen(only(asked, Method(kind="zero_filled")))} == {"zero_filled"}


def test_configurations_are_read_strictly(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[[methods]]\nname = "A"\nkindd = "x"\n')
    with pytest.raises(ValueError, match=r"unknown key methods\.kindd; did you mean kind"):
        load(Evaluation, tmp_path / "a.toml")


# --- what is told ---------------------------------------------------------------------------------------------------


def test_a_notice_is_told_once_a_method(asked: Evaluation, tmp_path: Path, told: Told) -> None:
    model = str(saved(tmp_path / "model", {"mask": {"accelerations": [20]}}))
    ours = [Method(name, "mc_ddpm", model, sampler="mean") for name in ("A", "B")]
    evaluate(only(asked, METHODS[0], *ours), tmp_path / "out", progress=told)
    assert [notice.line.partition(", the model")[0].rpartition(" ")[0] for notice in told.notices] == [
        f"warning: {name}, PD-{FILES[0]}-0000-4x: the scan is under-sampled" for name in ("A", "B")
    ]


def test_what_is_to_be_known_of_a_scan_is_told_once(asked: Evaluation, tmp_path: Path, told: Told) -> None:
    """Whatever the methods: a column was lost."""
    path = knee(tmp_path / "files" / FILES[0], 2)
    with h5py.File(path, "r+") as file:
        file["kspace"][:, :, 24] = 0
    evaluate(only(asked, *asked.methods, source=str(path.parent)), tmp_path / "out", progress=told)
    assert [notice.line for notice in told.notices if "columns" in notice.text] == [
        f"warning: PD-{FILES[0]}-0000-4x: 1 columns that the mask calls measured hold nothing (the first is 24): "
        "taken as not sampled"
    ]


def test_what_a_method_cannot_do_is_told_with_its_name(asked: Evaluation, tmp_path: Path) -> None:
    radon = {"operator": {"kind": "radon", "views": 12}}
    ours = Method("A", "mc_ddpm", str(saved(tmp_path / "ct", radon)), sampler="mean")
    with pytest.raises(ValueError, match=rf"A, PD-{FILES[0]}-0000-4x: this scan is measured by .*cannot be used"):
        evaluate(only(asked, ours), tmp_path / "out")


def toml(asked: Evaluation, path: Path) -> str:
    entries = [("cases", to_dict(asked.cases[0])), *(("methods", to_dict(m)) for m in asked.methods)]
    given = [(key, {k: v for k, v in one.items() if v != {}}) for key, one in entries]
    text = (f"[[{key}]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in one.items()) for key, one in given)
    path.write_text('reference = "ZF"\n' + "\n".join(text))
    return str(path)


def test_by_command(tmp_path: Path, asked: Evaluation, capfd) -> None:
    out = tmp_path / "out"
    given = ["evaluate", toml(only(asked, METHODS[0]), tmp_path / "a.toml"), "--out", str(out), "--device", "cpu"]
    assert main(given) == 0
    said = capfd.readouterr()
    assert "All metrics on volumes" in said.out and (out / "tables.tex").exists()
    assert f"written: {out / 'rows.csv'}, {out / 'tables.md'}" in " ".join(said.err.split())
    assert main([*given, "--set", "seed=1"]) == 2
    assert "holds another evaluation: seed was 0, is 1" in capfd.readouterr().err
