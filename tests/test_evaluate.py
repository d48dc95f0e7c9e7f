"""Evaluation: tidy rows wherever it was stopped, tables that say what rows say, in the layout of the paper."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from mcddpm import checkpoint, cli, config, evaluate, masks, metrics, tables
from mcddpm.datasets import measure
from mcddpm.evaluate import Cases, Evaluation, Method
from mcddpm.operators import Fourier
from tests.test_reconstruct import tiny

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
def study(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    folder = tmp_path_factory.mktemp("knees")
    knee(folder / "files" / "file1000001.h5")
    knee(folder / "files" / "file1000002.h5", seed=1)
    made = tiny({"network": {"channels": 8, "multipliers": [1, 2], "heads": 2, "patch": 8}}, shape=(320, 320))
    checkpoint.save_model(folder / "model", made.network.state_dict(), made.card)
    methods = tuple(
        Method(**{**vars(m), "model": str(folder / "model")}) if m.kind == "mc_ddpm" else m for m in METHODS
    )
    cases = Cases(source=str(folder / "files"), protocol="paper", acquisition="CORPD_FBK", label="PD")
    return Evaluation((cases,), methods, reference="ZF")


@pytest.fixture(scope="module")
def done(study: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluation")
    assert evaluate.evaluate(study, out) == out / "rows.csv"
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


def test_a_rows_numbers_are_the_metrics(done: Path, study: Evaluation) -> None:
    case = evaluate.cases_of(study.cases[0])[0]
    m = case.make()
    truth = m.truth.abs() / m.scale
    image = Fourier().pinv(m.y_m).abs() / m.scale
    row = next(r for r in rows(done) if r["method"] == "ZF")
    for name, metric in metrics.METRICS.items():
        assert float(row[name]) == pytest.approx(float(metric(image, truth)), rel=1e-4)


def test_stopped_at_any_point_the_rows_are_the_same(study: Evaluation, done: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop_at(n: int):
        def progress(count: int, _: int) -> None:
            if count == n:
                raise Stop

        return progress

    for n in (1, 7):
        with pytest.raises(Stop):
            evaluate.evaluate(study, tmp_path, progress=stop_at(n))
        assert not (tmp_path / "rows.csv").exists()
    assert evaluate.evaluate(study, tmp_path, rank=0, world=2) is None  # half of the rest
    evaluate.evaluate(study, tmp_path, rank=1, world=2)
    same = [[{**row, "seconds": ""} for row in rows(folder)] for folder in (tmp_path, done)]
    assert same[0] == same[1]


def test_tables_say_what_rows_say(done: Path) -> None:
    made = {table.title: table for table in tables.tables(done, "ZF")}
    found = rows(done)
    slices = made["All metrics on slices"]
    assert list(slices.head) == ["", "", "PD ZF", "PD One", "PD Ours"]
    values = [float(r["psnr"]) for r in found if r["method"] == "One" and float(r["acceleration"]) == 4]
    half = 1.96 * np.std(values, ddof=1) / math.sqrt(4)
    cell = next(row for row in slices.rows if row[:2] == ["4x", "PSNR"])[3]
    assert cell.replace("*", "") == f"{np.mean(values):.2f} ± {half:.2f}"
    base = [float(r["psnr"]) for r in found if r["method"] == "ZF" and float(r["acceleration"]) == 4]
    paired = made["Slice by slice against ZF"]
    gap = np.subtract(values, base)
    assert paired.rows[0][2] == f"{gap.mean():+.2f} ± {1.96 * gap.std(ddof=1) / 2:.2f}"
    assert [row[2] for row in made["Cost of a slice"].rows] == ["0", "1", "4"]


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


def test_by_command(tmp_path: Path, study: Evaluation, capfd) -> None:
    text = f"""
reference = "ZF"
[[cases]]
source = "{study.cases[0].source}"
protocol = "paper"
label = "PD"
accelerations = [4]
[[methods]]
name = "ZF"
kind = "zero_filled"
"""
    (tmp_path / "study.toml").write_text(text)
    out = tmp_path / "out"
    assert cli.main(["evaluate", str(tmp_path / "study.toml"), "--out", str(out)]) == 0
    assert "All metrics on volumes" in capfd.readouterr().out and (out / "tables.tex").exists()
    changed = ["--set", "seed=1"]
    assert cli.main(["evaluate", str(tmp_path / "study.toml"), "--out", str(out), *changed]) == 2
    assert "holds another evaluation: seed was 0, is 1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ()}, "the methods are none"),
        ({"methods": (METHODS[0], METHODS[0])}, "expected different names"),
        ({"methods": (Method("A", "magic"),)}, "unknown method 'magic'; known: zero_filled"),
        ({"methods": (Method("A", "unet"),)}, "method A needs a model"),
        ({"cases": (Cases(source="nowhere", protocol="paper"),)}, "no .h5 files in nowhere"),
        ({"cases": (Cases(source="brain"),)}, "is not of the form NAME:SPLIT:SIZE"),
    ],
)
def test_mistakes(tmp_path: Path, study: Evaluation, change: dict, message: str) -> None:
    values = {"cases": study.cases, "methods": study.methods} | change
    with pytest.raises(ValueError, match=message):
        evaluate.evaluate(Evaluation(**values), tmp_path)


def test_a_target_that_is_a_centre_crop() -> None:
    A, x = Fourier(), torch.zeros(20, 20, dtype=torch.complex64)
    x[6:14, 6:14] = 1.0
    m = measure(A(x), masks.random_columns(20, acceleration=2, seed=0), A, x, x.abs()[2:18, 3:17])
    assert evaluate.fitted(x.abs(), evaluate.target_of(m)).equal(x.abs()[2:18, 3:17])
    assert evaluate.quality_of(x.abs(), m)["nmse"] == pytest.approx(0.0, abs=1e-9)


def test_configurations_are_read_strictly(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[[methods]]\nname = "A"\nkindd = "x"\n')
    with pytest.raises(ValueError, match=r"unknown key methods\.kindd; did you mean kind"):
        config.load_as(Evaluation, tmp_path / "a.toml")
