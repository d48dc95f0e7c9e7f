"""Evaluation: tidy rows wherever it was stopped, tables that say what rows say, in the layout of the paper."""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import torch

from mcddpm import metrics, plots
from mcddpm.cli import main
from mcddpm.data import cases
from mcddpm.data.cases import Cases, cases_of, fitted, quality_of, target_of
from mcddpm.data.protocols import mask_seed
from mcddpm.evaluation import baselines, checks, methods, score_based, study, study_figures, tables
from mcddpm.evaluation.methods import Method
from mcddpm.evaluation.study import Evaluation
from mcddpm.models import authors
from mcddpm.models.card import build, card_of
from mcddpm.models.store import annotate, describe, load_model, replace_model, save_model
from mcddpm.models.unet import UNet
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement, measure
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system.settings import from_dict, load_as, to_dict
from mcddpm.training.settings import Config
from mcddpm.uncertainty import conformal, scores
from tests.test_reconstruct import TINY, tiny
from tests.test_scans import environment

METHODS = (
    Method("ZF", "zero_filled"),
    Method("One", "mc_ddpm", sampler="mean"),
    Method("Ours", "mc_ddpm", samples=2, steps=2),
)


def knee(path: Path, slices: int = 12, acquisition: str = "CORPD_FBK", seed: int = 0) -> None:
    """A drawn file in fastMRI's layout: 320 x 320, so small a number of slices that some are left."""
    rng = np.random.RandomState(seed)
    x = np.zeros((slices, 320, 320), np.complex64)
    for image in x:
        top, left = rng.randint(40, 100, 2)
        image[top : top + 150, left : left + 120] = rng.uniform(1, 2) * np.exp(1j * rng.uniform(0, 6))
    x += 0.02 * (rng.normal(size=(*x.shape, 2)) @ [1, 1j]).astype(np.complex64)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["kspace"] = Fourier()(torch.from_numpy(x)).numpy()
        file["reconstruction_rss"] = abs(x)
        file["reconstruction_esc"] = abs(x)
        file.attrs["acquisition"] = acquisition


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    folder = tmp_path_factory.mktemp("knees")
    knee(folder / "files" / "file1000001.h5")
    knee(folder / "files" / "file1000002.h5", seed=1)
    made = tiny({"network": {"channels": 8, "multipliers": [1, 2], "heads": 2, "patch": 8}}, shape=(320, 320))
    save_model(folder / "model", made.network.state_dict(), made.card)
    methods = tuple(
        Method(**{**vars(m), "model": str(folder / "model")}) if m.kind == "mc_ddpm" else m for m in METHODS
    )
    cases = Cases(source=str(folder / "files"), protocol="paper", acquisition="CORPD_FBK", label="PD")
    return Evaluation((cases,), methods)


@pytest.fixture(scope="module")
def done(asked: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluation")
    assert study.evaluate(asked, out) == out / "rows.csv"
    return out


def rows(path: Path) -> list[dict[str, str]]:
    with (path / "rows.csv").open() as file:
        return list(csv.DictReader(file))


def test_one_row_a_slice_and_method(done: Path) -> None:
    found = rows(done)
    assert len(found) == 2 * 2 * 2 * 3  # files, slices left of twelve, accelerations, methods
    assert {row["slice"] for row in found} == {"5", "6"} and {row["manifest"] for row in found} == {
        found[0]["manifest"]
    }
    ours = [row for row in found if row["method"] == "Ours"]
    assert {(row["samples"], row["calls"]) for row in ours} == {("2", "4")}
    zero = [row for row in found if row["method"] == "ZF"]
    assert {row["calls"] for row in zero} == {"0"}
    for row in found:
        assert int(row["measurement_seed"]) == mask_seed(Path(row["volume"]), int(row["slice"]))


def test_a_rows_numbers_are_the_metrics(done: Path, asked: Evaluation) -> None:
    case = cases_of(asked.cases[0])[0]
    m = case.make()
    truth = m.truth.abs() / m.scale
    image = Fourier().pinv(m.y_m).abs() / m.scale
    row = next(r for r in rows(done) if r["method"] == "ZF")
    for name, metric in metrics.METRICS.items():
        assert float(row[f"{name}_slice"]) == pytest.approx(float(metric(image, truth)), rel=1e-4)
    inside = truth > 0.1 * truth.max()
    error = float(((image - truth)[inside] / truth.max()).square().mean())
    assert float(row["psnr_foreground"]) == pytest.approx(-10 * math.log10(error), rel=1e-4)


class Stop(Exception):
    pass


def stop_at(n: int) -> Callable[[int, int], None]:
    def progress(count: int, _: int) -> None:
        if count == n:
            raise Stop

    return progress


def test_stopped_at_any_point_the_rows_are_the_same(asked: Evaluation, done: Path, tmp_path: Path, monkeypatch) -> None:
    for n in (1, 7):
        with pytest.raises(Stop):
            study.evaluate(asked, tmp_path, progress=stop_at(n))
        assert not (tmp_path / "rows.csv").exists()
    savez = np.savez

    def killed(path: Path, **arrays: np.ndarray) -> None:
        savez(path, **arrays)
        path.write_bytes(path.read_bytes()[:100])
        raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(np, "savez", killed)
        study.evaluate(asked, tmp_path)
    assert study.evaluate(asked, tmp_path, rank=0, world=2) is None  # half of the rest
    study.evaluate(asked, tmp_path, rank=1, world=2)
    same = [[{**row, "seconds": ""} for row in rows(folder)] for folder in (tmp_path, done)]
    assert same[0] == same[1]


def test_two_processes_write_the_rows_of_one(asked: Evaluation, tmp_path: Path) -> None:
    """To the last digit, with one thread in each: threads sum in another order, and a pixel may leave an interval."""
    entries = [("cases", to_dict(asked.cases[0])), *(("methods", to_dict(m)) for m in asked.methods)]
    text = [
        f"[[{key}]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in one.items() if v != {}) for key, one in entries
    ]
    (tmp_path / "e.toml").write_text("\n".join(text))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = []
    for name, launcher in (("alone", []), ("shared", torchrun)):
        command = [sys.executable, *launcher, "-m", "mcddpm", "evaluate", str(tmp_path / "e.toml")]
        command += ["--out", str(tmp_path / name), "--device", "cpu"]
        subprocess.run(command, check=True, env=environment(), capture_output=True)
        found.append([{**row, "seconds": ""} for row in rows(tmp_path / name)])
    assert len(found[0]) == 24 and found[0] == found[1]


def test_tables_say_what_rows_say(done: Path) -> None:
    made = {table.title.partition(",")[0]: table for table in tables.tables(done, "ZF", ours="Ours")}
    found = rows(done)
    psnr = {
        name: [float(r["psnr_slice"]) for r in found if r["method"] == name and float(r["acceleration"]) == 4]
        for name in ("One", "ZF")
    }
    student = 3.1824  # of three degrees of freedom
    half = student * np.std(psnr["One"], ddof=1) / math.sqrt(4)
    slices = made["All metrics on slices"]
    inside = ["PSNR, foreground", "SSIM, foreground"]
    assert list(slices.head) == ["", "", "method", "PSNR", "SSIM", "NMSE", "MSE", *inside, "slices", "calls", "seconds"]
    row = next(row for row in slices.rows if list(row[:3]) == ["PD", "4x", "One"])
    assert row[3].replace("*", "") == f"{np.mean(psnr['One']):.2f} ± {half:.2f}" and row[9:11] == ["4", "1"]
    gap = np.subtract(psnr["One"], psnr["ZF"])
    paired = [list(row) for row in made["Slice by slice"].rows if row[1] == "4x"]
    assert [row[2:4] for row in paired] == [["One", "ZF"], ["Ours", "ZF"], ["Ours", "One"]]
    assert paired[0][4] == f"{gap.mean():+.2f} ± {student * gap.std(ddof=1) / 2:.2f}"
    first = made["Table 1: volumes"]
    assert list(first.head) == ["", "", "PD ZF", "PD One", "PD Ours", "One - ZF", "Ours - ZF"]
    assert [row[1] for row in first.rows[:4]] == ["PSNR", "SSIM", "calls", "seconds"]
    assert list(first.rows[2][2:5]) == ["0", "1", "4"]
    value = [float(cell.replace("*", "")) for cell in first.rows[0][2:]]
    assert value[3] == pytest.approx(value[1] - value[0], abs=0.011)
    without = tables.tables(done, "ZF", ("One",))[0]
    assert list(without.head) == ["", "", "PD One", "One - ZF"] and without.rows[0][3] == first.rows[0][5]
    few = tables.tables(done, "ZF", ("ZF", "Ours"))[0]
    assert list(few.head) == ["", "", "PD ZF", "PD Ours", "Ours - ZF"] and few.rows[0][2:4] == first.rows[0][2:5:2]
    for column, best in ((3, max), (5, min), (6, min)):  # PSNR, NMSE, MSE
        cells = [row[column] for row in slices.rows if row[1] == "4x"]
        means = [float(cell.replace("*", "").split(" ")[0]) for cell in cells]
        assert cells[means.index(best(means))].startswith("**") and sum("**" in cell for cell in cells) == 1
    assert all("protocol paper" in table.title for table in made.values()), "no number without its protocol"
    assert "± over slices" in slices.title and "±" not in first.title + made["All metrics on volumes"].title


def saved(folder: Path, extra: dict) -> str:
    """A small network of some kind, with random weights."""
    network = {"channels": 8, "multipliers": [1, 2], "heads": 2, "patch": 8}
    card = card_of(from_dict(Config, TINY | {"network": network} | extra), (320, 320))
    model, g = build(card), torch.Generator().manual_seed(0)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1, generator=g)
    save_model(folder, model.network.state_dict(), card)
    return str(folder)


def test_every_kind_of_method(asked: Evaluation, tmp_path: Path) -> None:
    """Each runs in the harness, is what its module makes, and costs what it says."""
    unet = saved(tmp_path / "unet", {"model": {"kind": "supervised"}})
    prior = saved(tmp_path / "prior", {"model": {"conditional": False}})
    models = dict.fromkeys(("unet", "unet_put_back"), unet) | dict.fromkeys(score_based.METHODS, prior)
    models["mc_ddpm"] = asked.methods[2].model
    given = {"total_variation": {"weight": 1e-3}, "mc_ddpm": {"steps": 2}}
    given |= {kind: {"samples": 2, "steps": 2} for kind in score_based.METHODS}
    every = [Method(k, k, models.get(k, ""), **given.get(k, {})) for k in methods.KINDS]
    case = cases_of(replace(asked.cases[0], accelerations=(4.0,), every=4))[0]
    m, seed = case.make(), study.seed_of_case(0, case)
    one = replace(asked, cases=(replace(asked.cases[0], accelerations=(4.0,), every=4),), methods=tuple(every))
    study.evaluate(one, tmp_path / "out")
    found = {row["method"]: row for row in rows(tmp_path / "out")}
    calls = {"zero_filled": 0, "total_variation": 0, "unet": 1, "unet_put_back": 1, "mc_ddpm": 2}
    calls |= {name: 2 * each for name, each in {"chung_ye": 4, "song": 4, "jalal": 5, "ddpm": 2}.items()}
    assert {name: int(row["calls"]) for name, row in found.items()} == calls
    supervised = load_model(unet)
    expected = {
        "total_variation": baselines.total_variation(m, 1e-3),
        "unet": baselines.unet(supervised, m),
        "unet_put_back": baselines.unet(supervised, m, put_back=True),
        **{
            name: call(load_model(prior), m, samples=2, steps=2, seed=seed)
            for name, call in score_based.METHODS.items()
        },
    }
    for name, recon in expected.items():
        assert float(found[name]["psnr_slice"]) == pytest.approx(quality_of(recon.mean, m)["psnr"], abs=1e-3), name
    assert len({row["psnr_slice"] for row in found.values()}) == len(found), "no two of them are the same"


@pytest.mark.parametrize("best", [methods.WEIGHTS[2], methods.WEIGHTS[-1]])
def test_the_weight_that_is_best_on_other_slices_is_taken(asked: Evaluation, tmp_path: Path, monkeypatch, best) -> None:
    """With a method in total variation's place whose best weight is known."""
    seen: list[float] = []

    def known(m: Measurement, weight: float) -> Reconstruction:
        seen.append(float(m.y_m.abs().sum()))
        return Reconstruction((m.truth / m.scale * (1 + 0.1 * abs(math.log(weight / best)) + 0.01))[None], 0)

    monkeypatch.setattr(baselines, "total_variation", known)
    knee(tmp_path / "tune" / "file1000009.h5", 14, seed=9)
    method = Method("TV", "total_variation", tune=str(tmp_path / "tune"))
    like = cases_of(replace(asked.cases[0], label="a/b"))[0]
    with monkeypatch.context() as patch, pytest.raises(Stop):  # half-way through the weights
        patch.setattr(methods, "quality_of", Mock(side_effect=[{"psnr": 99.0}] * 11 + [Stop]))
        methods.tuned(method, like, tmp_path)
    seen.clear()
    with pytest.warns(UserWarning, match="at the edge") if best == methods.WEIGHTS[-1] else nullcontext():
        assert methods.tuned(method, like, tmp_path).weight == best
    cases = cases_of(replace(asked.cases[0], source=str(tmp_path / "tune"), accelerations=(4.0,)))
    assert len(cases) == 4 and set(seen) == {float(case.make().y_m.abs().sum()) for case in cases}, "measured alike"
    monkeypatch.setattr(baselines, "total_variation", None)
    assert methods.tuned(method, like, tmp_path).weight == best, "found once"


@pytest.mark.parametrize("name", ["a/b", "a|b", ".hidden"])
def test_names_that_are_none(asked: Evaluation, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="its name is a folder's and a table's"):
        study.evaluate(replace(asked, methods=(Method(name, "zero_filled"),)), tmp_path)


def test_latex_has_no_bare_ampersands() -> None:
    tex = tables.Table("in % of all, protocol paper", ["", "", "Chung & Ye"], [["a_b", "4x", "50 % #1"]]).latex()
    assert r"Chung \& Ye" in tex and r"a\_b" in tex and r"50 \% \#1 \\" in tex
    assert r"\caption{in \% of all, protocol paper}" in tex, "no number without its protocol, in print too"


def test_a_score_based_methods_settings_reach_it_and_count(asked: Evaluation, tmp_path: Path) -> None:
    """They change the image; in a folder a name keeps its settings, those that are new since among them."""
    prior = saved(tmp_path / "prior", {"model": {"conditional": False}})
    out = tmp_path / "out"
    plain = Method("Song", "song", prior, steps=2)
    longer = replace(plain, name="longer", settings={"start": 0.5})
    one = replace(asked, cases=(replace(asked.cases[0], accelerations=(4.0,), every=4),))
    study.evaluate(replace(one, methods=(plain, longer)), out)
    found = {row["method"]: row["psnr_slice"] for row in rows(out)}
    assert found["Song"] != found["longer"]
    kept = json.loads((out / "evaluation.json").read_text())
    del kept["methods"]["Song"]["settings"]  # as a release that knew of none wrote it
    (out / "evaluation.json").write_text(json.dumps(kept))
    with pytest.raises(ValueError, match=r"methods\.Song\.settings\.start was None, is 0\.5"):
        study.evaluate(replace(one, methods=(replace(plain, settings={"start": 0.5}),)), out)
    study.evaluate(replace(one, methods=(plain,)), out)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"step": 0.1}, "method S has no setting 'step': it has start, snr"),
        ({"snr": -1.0}, "snr is -1.0, expected a value above 0"),
        ({"start": 0.005}, r"start is 0.005, expected over 0.01"),
    ],
)
def test_settings_that_are_none(asked: Evaluation, tmp_path: Path, settings: dict[str, float], told: str) -> None:
    method = Method("S", "song", "anything", settings=settings)
    with pytest.raises(ValueError, match=told):
        study.evaluate(replace(asked, methods=(method,)), tmp_path)


def test_the_one_of_ours_that_draws_most_samples_is_paired_with_all(asked: Evaluation, tmp_path: Path) -> None:
    ours = asked.methods[2]
    theirs = Method("Song", "song", "prior", samples=32)
    assert methods.ours([theirs, ours, replace(ours, name="Mean", sampler="mean", samples=64)]) == "Ours"
    assert methods.ours([theirs]) == "", "of a comparison of baselines, none"
    few = (asked.methods[0], replace(ours, name="Three", samples=3), ours)
    study.evaluate(replace(asked, cases=(replace(asked.cases[0], accelerations=(4.0,)),), methods=few), tmp_path)
    made = {table.title.partition(",")[0]: table for table in tables.tables(tmp_path, "ZF", ours=methods.ours(few))}
    pairs = [tuple(row[2:4]) for row in made["Slice by slice"].rows]
    assert pairs == [("Three", "ZF"), ("Three", "Ours"), ("Ours", "ZF")]


def test_ranks_are_called_uneven_where_they_can_be(done: Path, tmp_path: Path) -> None:
    """Of 18 samples no slice's p is below 0.05: that none is uneven would be no merit."""
    for samples, told in ((18, "-"), (20, "1 of 4")):
        found = [row for row in rows(done) if row["method"] == "Ours" and row["acceleration"] == "4.0"]
        for k, row in enumerate(found):
            row |= {"samples": str(samples), "rank_p_foreground": "0.04" if k == 2 else "0.06"}
        with (tmp_path / "rows.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, study.COLUMNS)
            writer.writeheader()
            writer.writerows(found)
        results = tables.Results(tmp_path)
        assert [row[-3] for row in tables.spread_table(results, results.runs(), "foreground").rows] == [told]


def test_pooled_is_over_all_pixels(done: Path) -> None:
    """Spread, law and coverage of the table are those of one long image, which holds the slices' foregrounds."""
    made = {table.title.partition(",")[0]: table for table in tables.tables(done)}
    errors, stds, held = [], [], []
    for path in sorted((done / "parts" / "Ours").glob("*-8x.npz")):
        with np.load(path) as part:
            mean, std, target = (part[key].astype(float) for key in ("mean", "std", "target"))
        inside = (2 * mean + target) / 3 > 0.1 * ((2 * mean + target) / 3).max()
        errors.append((mean - target)[inside])
        stds.append(std[inside])
        student = 6.3138 * math.sqrt(1 + 1 / 2)
        held.append(100 * (abs(errors[-1]) <= student * stds[-1]).mean())
    error, std = np.concatenate(errors), np.concatenate(stds)
    row = next(
        list(row)
        for row in made["What intervals hold of the foreground"].rows
        if list(row[1:4]) == ["8x", "Ours", "90 %"]
    )
    pooled = 100 * (abs(error) <= 6.3138 * math.sqrt(1.5) * std).mean()
    assert float(row[4].split()[0]) == pytest.approx(pooled, abs=0.06) and row[6:8] == ["-", "-"] and row[8] == "4"
    assert float(row[5].split()[0]) == pytest.approx(min(held), abs=0.06)
    assert "(file100000" in row[5], "and whose it is"
    title = "Is std as large as the error (then spread and law are 1), foreground"
    table = next(table for table in tables.tables(done) if table.title.startswith(title))
    row = [cell.split(" ± ")[0] for cell in next(row for row in table.rows if row[1] == "8x")]
    variance, squared = (std**2).mean(), (error**2).mean()
    assert float(row[3]) == pytest.approx(math.sqrt(1.5 * variance / squared), abs=0.006)
    assert float(row[4]) == pytest.approx((squared + 0.5 * variance) / (2 * variance), rel=0.01)
    own = [r for r in rows(done) if (r["method"], float(r["acceleration"])) == ("Ours", 8)]
    slices = {k: np.array([float(r[f"{k}_foreground"]) for r in own]) for k in ("crps", "squared_error", "width_90")}
    relative = np.mean(slices["crps"] / np.sqrt(slices["squared_error"]))
    assert float(row[7]) == pytest.approx(relative, abs=0.006)
    wide = np.mean(slices["width_90"] / np.sqrt(slices["squared_error"]))
    assert float(row[8]) == pytest.approx(wide, abs=0.006)
    assert row[9] == "-", "two samples' ranks cannot be called uneven"
    assert row[10] == "4", "calls stand beside every number"


def test_intervals_are_over_people_or_blocks(done: Path) -> None:
    values = np.array([1.0, 2.0, 3.0, 7.0, 8.0, 9.0])
    people = ["a", "a", "a", "b", "b", "b"]
    assert tables.interval(values, people) == pytest.approx(
        12.7062 * np.std([2.0, 8.0], ddof=1) / math.sqrt(2), rel=1e-4
    )
    assert tables.interval(values) == pytest.approx(2.5706 * values.std(ddof=1) / math.sqrt(6), rel=1e-4)
    results = tables.Results(done)
    key = ("PD", "One", 4.0)
    assert results.grouping(key)[0] == "slices" and len(set(results.groups(key))) == 4, (
        "two people are too few, and their slices are all there is"
    )
    for k, row in enumerate(results.of(key)):
        row["volume"], row["slice"] = "one", str(12 * k)
    assert [group.split()[1] for group in results.groups(key)] == ["0", "0", "1", "2"]
    assert results.grouping(key)[0] == "blocks of 18 slices"
    for row, name in zip(results.of(key), "abca", strict=True):
        row["volume"] = name
    assert results.grouping(key) == ("volumes", ["a", "b", "c", "a"])


def test_a_cases_methods_may_be_chosen_and_models_named_by_case(asked: Evaluation) -> None:
    named = replace(asked.methods[1], model="{label}-{acceleration}x")
    wanted = study.chosen(replace(asked, methods=(asked.methods[0], named)))
    assert {(case.acceleration, m.model) for case, m in wanted if m.model} == {(4, "PD-4x"), (8, "PD-8x")}
    few = replace(asked, cases=(replace(asked.cases[0], methods=("ZF",)),))
    assert {method.name for _, method in study.chosen(few)} == {"ZF"}


def test_methods_may_be_added_but_not_changed(asked: Evaluation, done: Path, tmp_path: Path) -> None:
    first = replace(asked, methods=asked.methods[:1])
    study.evaluate(first, tmp_path)
    study.evaluate(asked, tmp_path)
    same = [[{**row, "seconds": ""} for row in rows(folder)] for folder in (tmp_path, done)]
    assert same[0] == same[1]
    study.evaluate(first, tmp_path)
    assert {row["method"] for row in rows(tmp_path)} == {"ZF"}
    with pytest.raises(ValueError, match=r"methods\.Ours\.steps was 2, is 3"):
        study.evaluate(replace(asked, methods=(replace(asked.methods[2], steps=3),)), tmp_path)
    with pytest.raises(ValueError, match=r"cases\.PD\.acquisition was 'CORPD_FBK', is ''"):
        study.evaluate(replace(first, cases=(replace(asked.cases[0], acquisition=""),)), tmp_path)


def test_another_kind_of_device_is_another_evaluation(asked: Evaluation, done: Path, tmp_path: Path) -> None:
    """A GPU draws other noise for the same seed: rows of both are not of one evaluation."""
    assert {row["device"] for row in rows(done)} == {"cpu"}
    shutil.copytree(done, tmp_path / "out")
    with pytest.raises(ValueError, match="device was 'cpu', is 'cuda'"):
        study.claim(tmp_path / "out", asked, study.chosen(asked), "cuda:1")
    study.claim(tmp_path / "out", asked, study.chosen(asked))  # to draw what is there, anywhere
    with pytest.raises(ValueError, match="device was 'cpu', is 'cuda'"):
        study.claim(tmp_path / "out", asked, study.chosen(asked), "cuda:1")


def test_the_manifest_is_of_all_that_was_measured_and_how(asked: Evaluation, tmp_path: Path, monkeypatch) -> None:
    def of(choice: Cases) -> str:
        return study.manifest_of(study.chosen(replace(asked, cases=(choice,), methods=METHODS[:1])))

    np.save(tmp_path / "s.npy", np.random.default_rng(0).random((7, 16, 16), np.float32))
    content = {"slices": [{"person": "a", "file": "a.nii", "slice": k} for k in range(7)]}
    (tmp_path / "s.json").write_text(json.dumps(content))
    monkeypatch.setattr(cases, "prepare", lambda *asked: tmp_path / "s.npy")
    usual = Cases("d:test:16")
    np.save(tmp_path / "mask.npy", np.arange(16) % 2 == 0)
    others = [{"snr": 10.0}, {"seed": 78}, {"family": "equispaced_columns"}, {"every": 2}, {"accelerations": (4.0,)}]
    others += [{"family": str(tmp_path / "mask.npy")}]
    found = [of(usual), *(of(replace(usual, **other)) for other in others)]
    np.save(tmp_path / "mask.npy", np.arange(16) % 2 == 1)
    found += [of(replace(usual, **others[-1]))]
    np.save(tmp_path / "s.npy", np.random.default_rng(1).random((7, 16, 16), np.float32))
    found += [of(usual)]
    assert len(set(found)) == len(found) == 9 and of(usual) == found[-1]
    seeds = {choice.seed: [case.seed for case in cases_of(choice)] for choice in (usual, replace(usual, seed=78))}
    assert len({*seeds[77], *seeds[78]}) == 14, "every slice its own, and another with another seed"


def test_other_weights_are_another_evaluation(asked: Evaluation, done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "out")
    shutil.copytree(asked.methods[1].model, tmp_path / "model")
    moved = replace(asked, methods=(replace(asked.methods[1], model=str(tmp_path / "model")),))
    path = tmp_path / "out" / "evaluation.json"
    path.write_text(path.read_text().replace(asked.methods[1].model, str(tmp_path / "model")))
    study.evaluate(moved, tmp_path / "out")
    made = tiny({"network": {"channels": 8, "multipliers": [1, 2], "heads": 2, "patch": 8}}, shape=(320, 320), seed=5)
    replace_model(tmp_path / "model", made.network.state_dict(), made.card)
    with pytest.raises(ValueError, match=r"weights\..*model was '"):
        study.evaluate(moved, tmp_path / "out")


def test_quality_by_number_of_samples(done: Path) -> None:
    with np.load(done / "parts" / "Ours" / "PD-file1000001.h5-0005-8x.npz") as part:
        found, row = part["by_count"], json.loads(str(part["row"]))
        assert part["std"].shape == part["mean"].shape == (320, 320) and (part["std"] > 0).any()
    assert len(found) == 2 and found[1] == pytest.approx(row["psnr_slice"], abs=1e-4) and found[0] != found[1]


def test_volume_metrics_are_of_whole_volumes(done: Path) -> None:
    results = tables.Results(done)
    images = []
    for index in (5, 6):
        with np.load(done / "parts" / "One" / f"PD-file1000001.h5-{index:04d}-8x.npz") as part:
            images.append((part["mean"], part["target"]))
    mean, target = (torch.from_numpy(np.stack(stack)) for stack in zip(*images, strict=True))
    found = results.volumes(("PD", "One", 8.0), "psnr")
    assert len(found) == 2 and found[0] == pytest.approx(float(metrics.psnr(mean, target, volume=True)))


def test_the_papers_layout_in_both_languages(done: Path) -> None:
    path = tables.write_tables(done, "ZF")
    text, tex = path.read_text(), (done / "tables.tex").read_text()
    assert "| 4x | PSNR |" in text and "| 8x | SSIM |" in text and "One - ZF" in text and "**" in text
    assert r"\begin{tabular}" in tex and r"\textbf{" in tex and r"$\pm$" in tex and "**" not in tex


def test_by_command(tmp_path: Path, asked: Evaluation, capfd) -> None:
    text = f"""
reference = "ZF"
[[cases]]
source = "{asked.cases[0].source}"
protocol = "paper"
label = "PD"
accelerations = [4]
[[methods]]
name = "ZF"
kind = "zero_filled"
"""
    (tmp_path / "asked.toml").write_text(text)
    out = tmp_path / "out"
    assert main(["evaluate", str(tmp_path / "asked.toml"), "--out", str(out)]) == 0
    assert "All metrics on volumes" in capfd.readouterr().out and (out / "tables.tex").exists()
    changed = ["--set", "seed=1"]
    assert main(["evaluate", str(tmp_path / "asked.toml"), "--out", str(out), *changed]) == 2
    assert "holds another evaluation: seed was 0, is 1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ()}, "the methods are none"),
        ({"methods": (METHODS[0], METHODS[0])}, "expected different names"),
        ({"methods": (Method("A", "magic"),)}, "unknown method 'magic'; known: zero_filled"),
        ({"methods": (Method("A", "unet"),)}, "method A needs a model"),
        ({"methods": (Method("A", "total_variation"),)}, "method A needs a weight, or `tune`"),
        ({"methods": (Method("A", "zero_filled", samples=0),)}, "method A: samples is 0, expected 1 or more"),
        (
            {"methods": (Method("A", "zero_filled", samples=20),)},
            "zero_filled has no use for samples; it takes nothing",
        ),
        ({"methods": (Method("A", "unet", "unet", steps=9),)}, "unet has no use for steps; it takes model"),
        (
            {"methods": (Method("A", "song", "prior", weight=1.0),)},
            "song has no use for weight; it takes model, samples",
        ),
        (
            {"methods": (Method("A", "mc_ddpm", "default", sampler="ddmi"),)},
            "method A: unknown sampler 'ddmi'; known: ",
        ),
        (
            {"methods": (Method("A", "mc_ddpm", "knee-{labl}"),)},
            r"cannot be filled in \('labl'\); known: {label}, {acc",
        ),
        (
            {"methods": (METHODS[0], Method("A", "jalal", "default"))},
            r"A \(jalal\) takes a prior model; default is a diff",
        ),
        (
            {"methods": (METHODS[0], Method("A", "unet", "prior"))},
            r"A \(unet\) takes a supervised model; prior is a prior",
        ),
        ({"methods": (METHODS[0], Method("A", "mc_ddpm", "prior"))}, r"takes a diffusion model; prior is a prior one"),
        ({"reference": "U-net"}, "reference names U-net; the methods are: ZF, One, Ours"),
        ({"shown": ("Ours", "Theirs")}, "shown names Theirs; the methods are: ZF, One, Ours"),
        ({"cases": (Cases(source="nowhere", protocol="paper"),)}, "no .h5 files in nowhere"),
        ({"cases": (Cases(source="brain"),)}, "is not of the form NAME:SPLIT:SIZE"),
        ({"cases": (Cases(protocol="papr"),)}, "cases of brain: unknown protocol 'papr'; known: simulated, paper"),
        ({"cases": (Cases(every=0),)}, "every is 0, expected 1 or more"),
        ({"cases": (Cases(accelerations=()),)}, r"accelerations are \[\], expected some of 1 or more"),
        ({"cases": (Cases(family="colums"),)}, "unknown family 'colums'; known: random_columns"),
        ({"cases": (Cases(snr=0.0),)}, "snr is 0.0, expected a value above 0"),
        ({"cases": (Cases(protocol="paper", snr=20.0),)}, "protocol paper has no use for snr"),
        ({"methods": (Method("A", "total_variation", weight=-1.0),)}, "weight is -1.0, expected a value above 0"),
        ({"methods": (Method("A", "total_variation", weight=1.0, tune="b"),)}, "to find it on; not both"),
        (
            {"methods": (Method("A", "mc_ddpm", "default", sampler="mean", samples=5),)},
            "sampler mean is one call and one image; samples is 5 and steps 0, expected 1 of each",
        ),
    ],
)
def test_mistakes(tmp_path: Path, asked: Evaluation, change: dict, message: str) -> None:
    values = {"cases": asked.cases, "methods": asked.methods} | change
    with pytest.raises(ValueError, match=message):
        study.evaluate(Evaluation(**values), tmp_path / "out")
    assert not (tmp_path / "out").exists(), "before anything is done"


def test_files_of_a_data_set_are_chosen_by_name(tmp_path: Path, monkeypatch) -> None:
    np.save(tmp_path / "s.npy", np.random.default_rng(0).random((7, 16, 16), np.float32))
    files = ["a-T1.nii"] * 4 + ["a-T2.nii"] * 3
    content = {"slices": [{"person": "a", "file": file, "slice": k} for k, file in enumerate(files)]}
    (tmp_path / "s.json").write_text(json.dumps(content))
    monkeypatch.setattr(cases, "prepare", lambda *asked: tmp_path / "s.npy")
    for name, every, expected in (("T1", 2, [0, 2]), ("T2", 1, [4, 5, 6]), ("T2", 2, [4, 6]), ("", 3, [0, 3, 6])):
        found = cases_of(Cases("d:test:16", acquisition=name, every=every, accelerations=(2.0,)))
        assert [case.slice for case in found] == expected and all(
            case.volume.endswith(f"{name}.nii") for case in found if name
        )
    with pytest.raises(ValueError, match=r"has 'FLAIR' in its name; they are: a-T1\.nii, a-T2\.nii"):
        cases_of(Cases("d:test:16", acquisition="FLAIR"))


def test_a_target_that_is_a_centre_crop() -> None:
    A, x = Fourier(), torch.zeros(20, 20, dtype=torch.complex64)
    x[6:14, 6:14] = 1.0
    m = measure(A(x), masks.random_columns(20, acceleration=2, seed=0), A, x, x.abs()[2:18, 3:17])
    assert fitted(x.abs(), target_of(m)).equal(x.abs()[2:18, 3:17])
    assert quality_of(x.abs(), m)["nmse"] == pytest.approx(0.0, abs=1e-9)


def test_configurations_are_read_strictly(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[[methods]]\nname = "A"\nkindd = "x"\n')
    with pytest.raises(ValueError, match=r"unknown key methods\.kindd; did you mean kind"):
        load_as(Evaluation, tmp_path / "a.toml")


def noting(draw, drawn: dict):
    """A function that draws, and notes what."""

    def call(path: Path, *rest: object, **more: object) -> None:
        drawn[path.name] = rest
        draw(path, *rest, **more)

    return call


def test_figures_of_an_evaluation(done: Path, asked: Evaluation, tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(study_figures, "FEW_STEPS", (1, 2))
    monkeypatch.setattr(study_figures, "COUNT", 6)
    drawn = {}
    for name in ("panels", "plots"):
        monkeypatch.setattr(plots, name, noting(getattr(plots, name), drawn))
    out = tmp_path / "run"
    shutil.copytree(done, out)
    assert main(["figures", str(out), "--slice", "6", "--device", "cpu"]) == 0
    names = [f"{name}-PD.png" for name in ("reconstruction", "samples", "steps", "count", "doubt", "calibration")]
    assert capfd.readouterr().out.split() == [str(out / "figures" / name) for name in names]
    assert all((out / "figures" / name).stat().st_size > 10_000 for name in names)
    images, insets, errors = drawn[names[0]][0][:3]
    assert [p.title.split("\n")[0] for p in images] == ["truth, 4x", "ZF", "One", "Ours", "std, 0 to 0.2"]
    box = images[0].box
    top, left, height, width = box
    expected = abs(images[2].image - images[0].image)[top : top + height, left : left + width]
    assert all(p.box == box for p in images) and np.array_equal(errors[2].image, expected)
    assert np.array_equal(insets[1].image, images[1].image[top : top + height, left : left + width])
    line = drawn[names[1]][0][0]
    assert len(line) == 4 + 5 and "sample 5" in line[-1].title
    place = ("file1000002.h5", 6, 4.0)
    case = next(c for c in cases_of(asked.cases[0]) if (c.volume, c.slice, c.acceleration) == place)
    with np.load(done / "parts" / "Ours" / f"{case.name}.npz") as part:
        std = part["std"] * part["scale"]
    assert np.allclose(images[-1].image, std) and (images[-1].vmin, images[-1].vmax) == (0, 0.2)
    assert np.allclose(line[2].image, std) and (line[2].vmin, line[2].vmax) == (0, 1), "the paper's ranges"
    steps, count = (drawn[name][0][0][0].lines["4x"] for name in names[2:4])
    assert [x for x, _ in steps] == [1, 2] and [x for x, _ in count] == [1, 2, 3, 4, 5, 6]
    of_all = [float(r["psnr_slice"]) for r in rows(done) if (r["method"], r["acceleration"]) == ("Ours", "4.0")]
    assert len(of_all) == 4 and steps[1][1] == pytest.approx(np.mean(of_all)), "the same seeds, so the same means"
    assert count[1][1] == pytest.approx(np.mean(of_all), abs=1e-3)
    assert [panel.title for panel in drawn[names[4]][0][0]] == ["mean, 4x", "|error| of the mean", "std"]
    _, error, doubt = (panel.image for panel in drawn[names[4]][0][0])
    with np.load(done / "parts" / "Ours" / f"{case.name}.npz") as part:
        assert np.allclose(error, abs(part["mean"] - part["target"])) and np.allclose(doubt, part["std"])
    (reliable, per_slice, ranks), (skill, sparse, off) = drawn[names[5]][0]
    near = next(y for x, y in reliable.lines["8x"] if x == 0.9)
    assert next(y for x, y in off.lines["8x"] if x == 0.9) == pytest.approx(100 * (near - 0.9))
    held, stds, errors, counts = [], [], [], 0
    for path in sorted((done / "parts" / "Ours").glob("*-8x.npz")):
        with np.load(path) as part:
            mean, std, target = (part[key].astype(float) for key in ("mean", "std", "target"))
            scale, counts = float(part["scale"]), counts + part["ranks"][0]
        inside = (2 * mean + target) / 3 > 0.1 * ((2 * mean + target) / 3).max()
        stds.append(scale * std[inside])
        errors.append(scale * (mean - target)[inside])
        student = 6.3138 * math.sqrt(1 + 1 / 2)  # of two samples: one degree of freedom, 90 %
        held.append((abs(mean - target) <= student * std)[inside])
    assert near == pytest.approx(np.concatenate(held).mean(), abs=1e-4) and len(per_slice.lines["8x"]) == len(held) == 4
    std, error = (torch.from_numpy(np.concatenate(values))[None] for values in (stds, errors))
    predicted, met = scores.spread_skill(math.sqrt(1 + 1 / 2) * std, error)
    assert np.allclose(skill.lines["8x"], np.column_stack([predicted, met]), rtol=1e-3)
    left_out, curve, best = scores.sparsification(std, error)
    assert np.allclose(sparse.lines["8x, by std"], np.column_stack([left_out, curve]), rtol=1e-3)
    assert np.allclose(sparse.lines["8x, by error: the best"], np.column_stack([left_out, best]), rtol=1e-3)
    eight = next(line for name, line in ranks.lines.items() if name.startswith("8x, p = "))
    assert np.allclose([y for _, y in eight], counts / counts.sum())
    made = {path: path.stat().st_mtime_ns for path in (out / "parts").rglob("*.npz")}
    assert main(["figures", str(out), "--slice", "6"]) == 0
    assert made == {path: path.stat().st_mtime_ns for path in (out / "parts").rglob("*.npz")}, "not made twice"


def test_a_calibrated_model_shows_what_its_intervals_hold(asked: Evaluation, tmp_path: Path, monkeypatch) -> None:
    """Factors that hold everything where std is small, and nothing where it is large or in the background; up to 90 %:
    in rows, tables and figures."""
    shutil.copytree(asked.methods[2].model, tmp_path / "model")
    sha256 = describe(tmp_path / "model")[0]["sha256"]
    factors = {"slices": 8, "factors": [[1e6, 0.0, 0.0]] * 3}
    known = {
        "version": conformal.VERSION,
        "model": sha256,
        "data": "",
        "date": "",
        "sampler": "dpmpp_2m_sde",
        "steps": 2,
        "samples": 2,
    }
    known |= {"levels": [0.5, 0.8, 0.9], "tables": [{"acceleration": a} | factors for a in (4.0, 8.0)]}
    known_of = {name: [0.1 * k for k in range(8)] for name in ("overall", "line", "point")}
    usual = {"acceleration": 4.0, "statistics": known_of}
    check = known | {"operator": "fourier", "folds": 2, "usual": [usual, usual | {"acceleration": 8.0}]}
    check = {key: check[key] for key in check if key not in ("levels", "tables")}
    half = {"slices": 8, "factors": [[0.0, 1e6, 1e6]] * 3, "slope": 1.0, "usual": 0.0}
    known |= {"adaptive": [{"acceleration": a} | half for a in (4.0, 8.0)]}
    annotate(tmp_path / "model", {"calibration": known, "self_check": check})
    ours = replace(asked.methods[2], model=str(tmp_path / "model"), self_check=True)
    more = replace(ours, name="More", samples=3, self_check=False)
    study.evaluate(replace(asked, methods=(ours, more)), tmp_path / "out")
    found = rows(tmp_path / "out")
    for row in (row for row in found if row["method"] == "Ours"):
        case = f"PD-{row['volume']}-{int(row['slice']):04d}-{float(row['acceleration']):g}x"
        with np.load(tmp_path / "out" / "parts" / "Ours" / f"{case}.npz") as part:
            mean, std, target = (part[key].astype(float) for key in ("mean", "std", "target"))
        inside = (2 * mean + target) / 3 > 0.1 * ((2 * mean + target) / 3).max()
        head = mean > 0.1 * mean.max()
        small = (std <= np.median(std[head])) & head
        assert 0.1 < small[inside].mean() < 0.9
        assert float(row["conformal_80_foreground"]) == pytest.approx(small[inside].mean(), abs=1e-3)
        assert float(row["adaptive_80_foreground"]) == pytest.approx(1 - small[inside].mean(), abs=1e-3)
        assert 1 / 9 <= float(row["self_check_p"]) <= 1 and math.isfinite(float(row["self_check_overall"]))
        widths = [2e6 * np.where(part, std, 0)[inside].mean() for part in (small, ~small)]
        assert float(row["conformal_width_90_foreground"]) == pytest.approx(widths[0], rel=1e-3)
        adapted = math.exp(float(row["self_check_overall"]) / 2) if float(row["self_check_overall"]) > 0 else 1.0
        assert float(row["adaptive_width_90_foreground"]) == pytest.approx(adapted * widths[1], rel=1e-3)
    assert {row["conformal_95_foreground"] for row in found} == {""}, "a level that was not fitted"
    checked, stopped = replace(asked, methods=(ours,)), tmp_path / "stopped"
    for n in (5, 3, 2):  # among the parts, between parts and self-checks, among the self-checks
        with pytest.raises(Stop):
            study.evaluate(checked, stopped, progress=stop_at(n))
        assert not (stopped / "rows.csv").exists()
    study.evaluate(checked, stopped)
    timed = dict.fromkeys(("seconds", "self_check_seconds"), "")
    alone = [{**row, **timed} for row in found if row["method"] == "Ours"]
    assert [{**row, **timed} for row in rows(stopped)] == alone
    calls = str(check["folds"] * check["samples"] * check["steps"])
    assert {row["self_check_calls"] for row in alone} == {calls}
    card = describe(tmp_path / "model")[0]
    which = conformal.fingerprint([card["calibration"], card["self_check"]])
    assert {(row["method"], row["calibration"]) for row in found} == {("Ours", which), ("More", "")}
    shutil.copytree(tmp_path / "model", tmp_path / "sense")
    annotate(tmp_path / "sense", {"self_check": check | {"operator": "sense"}})
    case, for_coils = study.chosen(replace(asked, methods=(replace(ours, model=str(tmp_path / "sense")),)))[0]
    study.check_case(case, for_coils, 0, tmp_path / "coils", "cpu")
    (unchecked,) = (tmp_path / "coils").rglob("*.json")
    assert checks.read(unchecked) is None, "what is usual for several coils is not for one"
    annotate(tmp_path / "sense", {"self_check": check})
    assert not study.check_of(tmp_path / "coils", case, for_coils).exists(), "calibrated for one, it is checked anew"
    older = describe(tmp_path / "model")[0]["calibration"] | {"version": 1}
    shutil.copytree(tmp_path / "model", tmp_path / "older")
    annotate(tmp_path / "older", {"calibration": older})
    assert study.calibration_of(ours) and not study.calibration_of(replace(ours, model=str(tmp_path / "older")))
    assert {row["conformal_80_whole"] for row in found if row["method"] == "More"} == {""}, "fitted for two samples"
    table = next(t for t in tables.tables(tmp_path / "out") if t.title.startswith("What intervals hold"))
    calibrated = {row[3]: row[6] for row in table.rows if row[1:3] == ["4x", "Ours"]}
    four = [row for row in found if row["method"] == "Ours" and float(row["acceleration"]) == 4]
    pixels = [float(row["pixels_foreground"]) for row in four]
    expected = 100 * np.average([float(row["conformal_80_foreground"]) for row in four], weights=pixels)
    assert calibrated["80 %"].split(" ")[0] == f"{expected:.1f}" and calibrated["95 %"] == "-"
    assert table.head[8] == "with self-check holds, %"
    spread = next(t for t in tables.tables(tmp_path / "out") if t.title.startswith("Is std as large"))
    told = {row[2]: row[8] for row in spread.rows if row[1] == "4x"}
    kinds = ("", "conformal_", "adaptive_")
    wide = [
        np.mean([float(row[f"{k}width_90_foreground"]) / float(row["squared_error_foreground"]) ** 0.5 for row in four])
        for k in kinds
    ]
    assert told["Ours"] == ", ".join(f"{w:.2f}" for w in wide) and told["More"].count(",") == 0
    checked = next(row[8] for row in table.rows if row[1:4] == ["4x", "Ours", "80 %"])
    assert float(checked.split(" ")[0]) == pytest.approx(100 - expected, abs=0.11)
    monkeypatch.setattr(study_figures, "FEW_STEPS", (1,))
    monkeypatch.setattr(study_figures, "COUNT", 2)
    drawn: dict = {}
    monkeypatch.setattr(plots, "plots", noting(plots.plots, drawn))
    study.evaluate(replace(asked, methods=(ours,)), tmp_path / "out")
    study_figures.draw(tmp_path / "out")
    (first, second) = drawn["calibration-PD.png"][0]
    lines, off = first[0].lines, second[2].lines
    assert dict(lines["4x, calibrated"])[0.8] == pytest.approx(expected / 100, abs=1e-4)
    assert dict(off["4x, calibrated"])[0.8] == pytest.approx(expected - 80, abs=1e-2)
    assert "4x, with self-check" in lines
    annotate(tmp_path / "model", {"calibration": {k: v for k, v in known.items() if k != "adaptive"}})
    with pytest.warns(UserWarning, match="intervals do not follow the self-check"):
        study_figures.draw(tmp_path / "out")
    assert "4x, with self-check" not in drawn["calibration-PD.png"][0][0][0].lines, "plain factors are not called so"
    assert dict(lines["4x, with self-check"])[0.8] == pytest.approx(1 - expected / 100, abs=1e-3)


def test_the_papers_sampler_is_shown_at_its_own_numbers_of_steps() -> None:
    ours = Method("a", "mc_ddpm", sampler="ancestral")
    assert study_figures.steps_of(ours)[-1] == 1000 and 250 in study_figures.steps_of(ours)
    assert study_figures.steps_of(replace(ours, sampler="ddim"))[0] == 1


def test_figures_of_what_is_not_there(done: Path, tmp_path: Path, capfd) -> None:
    assert main(["figures", str(tmp_path)]) == 2
    assert "holds no finished evaluation" in capfd.readouterr().err
    assert main(["figures", str(done), "--slice", "40"]) == 2
    assert "PD has no slice 40; it has 5, 6" in capfd.readouterr().err


def test_the_box_is_where_the_edges_are() -> None:
    truth = np.zeros((64, 64))
    truth[40:50, 8:18] = 1.0
    top, left, height, width = study_figures.box_of(truth)
    assert (height, width) == (16, 16) and top <= 39 and top + 16 >= 51 and left <= 7 and left + 16 >= 19


def of_the_authors(file: Path, timed: bool, seed: int = 0) -> tuple[Path, Path]:
    """A small network as the authors' program would save it, and its settings."""
    settings = {"image_size": 320, "model_channels": 32, "learn_sigma": False, "num_res_blocks": 1, "dropout": 0}
    settings |= {"attention_resolutions": "20", "channel_mult": "1,1,1,1,1", "num_heads": 4, "resblock_updown": True}
    settings |= {"use_scale_shift_norm": timed, "use_new_attention_order": False}
    names = {"time.": "time_embed.", "down.": "input_blocks.", "middle.": "middle_block.", "up.": "output_blocks."}
    names |= {"out_norm.": "out.0.", "out_conv.": "out.2."}
    inner = {".norm1.": ".in_layers.0.", ".conv1.": ".in_layers.2.", ".embed.": ".emb_layers.1.", ".out.": ".proj_out."}
    inner |= {".norm2.": ".out_layers.0.", ".conv2.": ".out_layers.3.", ".skip.": ".skip_connection."}
    network = UNet(
        4 if timed else 2,
        2,
        channels=32,
        multipliers=(1, 1, 1, 1, 1),
        blocks=1,
        attention=(16,),
        heads=4,
        patch=1,
        scale_shift=timed,
        groups=32,
        time=timed,
    )
    g, weights = torch.Generator().manual_seed(seed), {}
    for key, value in network.state_dict().items():
        start = next(name for name in names if key.startswith(name))
        theirs = names[start] + key.removeprefix(start)
        for ours, name in inner.items() if start in ("down.", "middle.", "up.") else ():
            theirs = theirs.replace(ours, name)
        value = value + 0.03 * torch.randn(value.shape, generator=g)
        weights[theirs] = value[..., None] if ".qkv.weight" in theirs or ".proj_out.weight" in theirs else value
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(weights, file)
    file.with_suffix(".json").write_text(json.dumps(settings))
    return file, file.with_suffix(".json")


def test_both_knees_and_the_averaged_gain(tmp_path: Path, monkeypatch) -> None:
    """The paper's Table 1: PD, PDFS, and what is gained over the U-Net on average of both."""
    for label, acquisition, seed in (("PD", "CORPD_FBK", 0), ("PDFS", "CORPDFS_FBK", 1)):
        for kind, timed in (("", True), ("-unet", False)):
            theirs = of_the_authors(tmp_path / "theirs" / f"{label}{kind}.pt", timed)
            authors.import_authors(*theirs, tmp_path / f"knee-{label}-4x{kind}")
        knee(tmp_path / "singlecoil_val" / f"file100000{seed}.h5", 12, acquisition, seed=seed)
    monkeypatch.chdir(tmp_path)
    quick = ["--set", "methods.2.samples=2", "--set", "methods.2.steps=2"]
    quick += ["--set", "cases.0.accelerations=[4]", "--set", "cases.1.accelerations=[4]"]
    path = Path(__file__).resolve().parents[1] / "configs" / "knee.toml"
    assert main(["evaluate", str(path), "--out", "out", "--device", "cpu", *quick]) == 0
    table = tables.tables(tmp_path / "out", "U-Net")[0]
    names = [f"{label} {method}" for label in ("PD", "PDFS") for method in ("ZF", "U-Net", "MC-DDPM")]
    assert list(table.head) == ["", "", *names, "ZF - U-Net", "MC-DDPM - U-Net"]
    value = dict(zip(table.head[2:], (float(cell.replace("*", "")) for cell in table.rows[0][2:]), strict=True))
    gains = [value[f"{label} MC-DDPM"] - value[f"{label} U-Net"] for label in ("PD", "PDFS")]
    assert value["MC-DDPM - U-Net"] == pytest.approx(np.mean(gains), abs=0.011)


@pytest.mark.parametrize(("name", "acquisition"), [("pd", "CORPD_FBK"), ("pdfs", "CORPDFS_FBK")])
def test_the_knee_configurations(name: str, acquisition: str, tmp_path: Path, monkeypatch) -> None:
    """From drawn files in fastMRI's layout to the paper's table, with small networks imported from the authors'."""
    label = name.upper()
    for acceleration, seed in ((4, 0), (8, 1)):  # the authors have a network for each
        for kind, timed in (("", True), ("-unet", False)):
            theirs = of_the_authors(tmp_path / "theirs" / f"{acceleration}{kind}.pt", timed, seed)
            authors.import_authors(*theirs, tmp_path / f"knee-{label}-{acceleration}x{kind}")
    knee(tmp_path / "singlecoil_val" / "file1000001.h5", 12, acquisition)
    knee(tmp_path / "singlecoil_val" / "file1000002.h5", 11, acquisition, seed=1)
    knee(tmp_path / "singlecoil_val" / "file1000003.h5", 12, "of another kind", seed=2)
    monkeypatch.chdir(tmp_path)
    quick = ["--set", "methods.2.samples=2", "--set", "methods.2.steps=2"]
    path = Path(__file__).resolve().parents[1] / "configs" / f"knee-{name}.toml"
    assert main(["evaluate", str(path), "--out", "out", "--device", "cpu", *quick]) == 0
    found = rows(tmp_path / "out")
    assert len(found) == (2 + 1) * 2 * 3 and {row["protocol"] for row in found} == {"paper"}
    assert all(math.isfinite(float(row["psnr_slice"])) for row in found)
    for method, kind in (("U-Net", "-unet"), ("MC-DDPM", "")):
        used = {row["acceleration"]: row["weights"] for row in found if row["method"] == method}
        own = {f"{a}.0": study.short_hash(f"knee-{label}-{a}x{kind}") for a in (4, 8)}
        assert used == own and len(set(own.values())) == 2
    text = (tmp_path / "out" / "tables.md").read_text()
    assert f"|  |  | {label} ZF | {label} U-Net | {label} MC-DDPM | ZF - U-Net | MC-DDPM - U-Net |" in text
    for line in ("| 4x | PSNR |", "| 4x | SSIM |", "| 8x | PSNR |", "| 8x | SSIM |"):
        assert line in text
