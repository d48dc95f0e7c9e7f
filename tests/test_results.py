"""docs/results.md and README.md say what was measured: tables made of docs/brain-4x8x.csv, the rows that
`mcddpm evaluate configs/brain-4x8x.toml` wrote, stand there as they are printed."""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import lesions, selfcheck
from mcddpm.data import catalogue
from mcddpm.data.cases import quality_of
from mcddpm.evaluation import study, tables
from mcddpm.evaluation.methods import reconstructor
from mcddpm.evaluation.rows import COLUMNS
from mcddpm.evaluation.study import Evaluation
from mcddpm.models.store import read_card
from mcddpm.system.settings import load_as
from mcddpm.uncertainty import conformal
from mcddpm.uncertainty.scores import LEVELS

ROOT = Path(__file__).parents[1]
OURS = "MC-DDPM, mean of 20"
MISSED = {("foreground", 8.0, 0.5): 2.3}  # points; what docs/results.md says of it
SCORE_BASED = ("Chung & Ye", "Song et al.", "Jalal et al.", "DDPM, replaced")
CALLS = {  # a sample
    **dict.fromkeys(("zero_filled", "total_variation"), lambda method: 0),
    **dict.fromkeys(("unet", "unet_put_back"), lambda method: 1),
    **dict.fromkeys(("mc_ddpm", "ddpm"), lambda method: method.steps),
    **dict.fromkeys(("chung_ye", "song"), lambda method: 2 * method.steps),
    "jalal": lambda method: 2 * method.steps + 1,
}


def read(folder: Path, name: str) -> tables.Results:
    shutil.copy(ROOT / "docs" / f"{name}.csv", folder / "rows.csv")
    return tables.Results(folder)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tables.Results:
    return read(tmp_path_factory.mktemp("results"), "brain-4x8x")


@pytest.fixture(scope="module")
def asked() -> Evaluation:
    return load_as(Evaluation, ROOT / "configs" / "brain-4x8x.toml")


def test_rows_are_of_the_configuration(results: tables.Results, asked: Evaluation) -> None:
    assert results.methods == [method.name for method in asked.methods]
    assert tuple(results.rows[0]) == COLUMNS and len({row["manifest"] for row in results.rows}) == 1
    slices = {tuple(row["slice"] for row in results.of(key)) for key in results.runs()}
    assert len(slices) == 1 and len(results.runs()) == 2 * len(asked.methods), "the same slices for each"
    assert {int(slice) % asked.cases[0].every for slice in slices.pop()} == {0}
    card = read_card("default")
    for method in asked.methods:
        weights = study.short_hash(method.model) if method.model else ""
        for row in (row for row in results.rows if row["method"] == method.name):
            assert (int(row["samples"]), row["weights"]) == (method.samples, weights), "the shipped models of now"
            assert int(row["calls"]) == method.samples * CALLS[method.kind](method)
            calibrated = (
                conformal.fingerprint([card["calibration"], card["self_check"]]) if row["method"] == OURS else ""
            )
            assert row["calibration"] == calibrated, "the shipped model's calibration of now"


@pytest.mark.parametrize(
    "name",
    [
        *("zero-filled", "total variation", "U-Net", "U-Net, put back"),
        *("MC-DDPM, one call", "MC-DDPM, one sample", "MC-DDPM, mean of 5", "MC-DDPM, mean of 20"),
    ],
)
@pytest.mark.parametrize("acceleration", [4.0, 8.0])
def test_a_row_is_what_the_shipped_weights_give(
    results: tables.Results, asked: Evaluation, name: str, acceleration: float
) -> None:
    """On one slice of the test person; not the score-based methods, which take half a minute each."""
    scans = [scan for scan in catalogue.scans("brain") if scan.split == "test"]
    if not all(catalogue.volume_path("brain", scan).exists() for scan in scans):
        pytest.skip("the test person's scan is not here: mcddpm data get brain")
    found = [(c, m) for c, m in study.chosen(asked) if m.name == name and c.acceleration == acceleration]
    case, method = found[len(found) // 2]
    row = next(row for row in results.of(("brain", name, acceleration)) if int(row["slice"]) == case.slice)
    m, seed = case.make(), study.seed_of_case(asked.seed, case)
    recon = reconstructor(replace(method, weight=float(row["weight"] or 0)), "cpu")(m, seed)
    assert int(row["seed"]) == seed
    assert quality_of(recon.mean, m)["psnr"] == pytest.approx(float(row["psnr_slice"]), abs=0.01)


@pytest.mark.parametrize("acceleration", [4.0, 8.0])
@pytest.mark.parametrize("name", ["psnr", "ssim", *tables.INSIDE])
def test_ours_is_better_than_all_that_the_paper_compares_with(
    results: tables.Results, acceleration: float, name: str
) -> None:
    """The intervals of paired differences exclude zero."""
    for rival in ("zero-filled", "total variation", "U-Net", "U-Net, put back", *SCORE_BASED):
        own, theirs = (results.slices(("brain", method, acceleration), name) for method in (OURS, rival))
        groups = results.groups(("brain", OURS, acceleration))
        assert (own - theirs).mean() > tables.interval(own - theirs, groups) > 0, rival


@pytest.mark.parametrize("acceleration", [4.0, 8.0])
@pytest.mark.parametrize("rival", SCORE_BASED)
def test_a_twentieth_of_the_calls_is_enough(results: tables.Results, acceleration: float, rival: str) -> None:
    own, theirs = ("brain", "MC-DDPM, mean of 5", acceleration), ("brain", rival, acceleration)
    assert 20 * int(results.of(own)[0]["calls"]) <= int(results.of(theirs)[0]["calls"])
    assert results.slices(own, "psnr").mean() >= results.slices(theirs, "psnr").mean()


@pytest.mark.parametrize("region", tables.REGIONS)
@pytest.mark.parametrize("acceleration", [4.0, 8.0])
def test_calibrated_intervals_hold_what_they_say(results: tables.Results, region: str, acceleration: float) -> None:
    """Of the test person, with the self-check, over all pixels: within two points, but for what is said to miss it."""
    rows = results.of(("brain", OURS, acceleration))
    for level in LEVELS:
        held = [float(row[f"adaptive_{round(100 * level)}_{region}"]) for row in rows]
        off = 100 * abs(tables._pooled(np.array(held), tables._weights(rows, region), [])[0] - level)
        assert off <= MISSED.get((region, acceleration, level), 2.0) + 0.05, (level, off)


def test_tables_stand_as_they_are_printed(results: tables.Results, asked: Evaluation) -> None:
    printed = (ROOT / "docs" / "results.md").read_text().splitlines()
    drawn = [key for key in results.runs() if results.of(key)[0]["spread_foreground"]]
    ours = [key for key in drawn if key[1] == OURS]
    made = [tables._quality(results, "slices"), tables._paired(results, asked.reference, OURS)]
    made += [tables._intervals(results, ours, region) for region in tables.REGIONS]
    made += [tables._spread(results, drawn, region) for region in tables.REGIONS]
    wanted = [row for table in made for row in table.rows]
    wanted += [row for row in tables._intervals(results, drawn, "foreground").rows if row[3] == "90 %"]
    missing = [line for line in map(tables._line, wanted) if line not in printed]
    assert not missing, "\n".join(missing)


def test_contrasts_stand_as_they_are_printed(tmp_path: Path) -> None:
    found, card = read(tmp_path, "contrasts"), read_card("default")
    asked = load_as(Evaluation, ROOT / "configs" / "contrasts.toml")
    assert found.methods == [method.name for method in asked.methods] and found.labels == ["T1", "T2", "PD"]
    ours = [key for key in found.runs() if key[1] == OURS]
    fitted = conformal.fingerprint([card["calibration"], card["self_check"]])
    assert {row["calibration"] for key in ours for row in found.of(key)} == {fitted}
    made = [tables._quality(found, "slices"), *(tables._intervals(found, ours, region) for region in tables.REGIONS)]
    printed = (ROOT / "docs" / "results.md").read_text()
    missing = [line for table in made for line in map(tables._line, table.rows) if line not in printed.splitlines()]
    assert not missing, "\n".join(missing)
    of = {(label, a): [float(row["self_check_p"]) <= 0.05 for row in found.of((label, _, a))] for label, _, a in ours}
    flagged = {key: f"{sum(seen)} of {len(seen)}" for key, seen in of.items()}
    told = (
        "flags {T2_4} slices (T2) and {PD_4} (PD) at 4x, {T2_8} and {PD_8} at 8x, as many as of his T1 ({T1_4} at each)"
    )
    told = told.format(**{f"{label}_{a:g}": value for (label, a), value in flagged.items()})
    assert told in printed.replace("\N{MULTIPLICATION SIGN}", "x") and flagged["T1", 4.0] == flagged["T1", 8.0]


def test_other_masks_stand_as_they_are_printed(tmp_path: Path, results: tables.Results) -> None:
    found, printed = read(tmp_path, "other-masks"), (ROOT / "docs" / "results.md").read_text()
    ours = [key for key in found.runs() if key[1] == OURS]
    made = [tables._intervals(found, ours, region) for region in tables.REGIONS]
    missing = [line for table in made for line in map(tables._line, table.rows) if line not in printed.splitlines()]
    assert not missing, "\n".join(missing)
    for key in ours:
        same = ("volume", "slice", "weights", "calibration")
        assert [[row[name] for name in same] for row in found.of(key)] == [
            [row[name] for name in same] for row in results.of(key)
        ]
        assert not {row["measurement_seed"] for row in found.of(key)} & {
            row["measurement_seed"] for row in results.of(key)
        }
    told = [f"{r.slices(('brain', OURS, a), 'psnr').mean():.2f}" for r in (found, results) for a in (4.0, 8.0)]
    assert "{} and {} dB ({} and {} above)".format(*told) in printed


def test_lesions_stand_as_they_are_printed() -> None:
    with (ROOT / "docs" / "lesions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    card, page = read_card("default"), (ROOT / "docs" / "results.md").read_text()
    of_now = (card["sha256"][:16], conformal.fingerprint([card["calibration"], card["self_check"]]))
    assert {(row["weights"], row["calibration"]) for row in rows} == {of_now}
    assert len(rows) == 2 * 3 * 9 and all(line in page.splitlines() for line in lesions.table(rows))


def test_volumes_follow_from_slices(results: tables.Results) -> None:
    """Their images are not in the rows, but MSE is the mean over slices, and a slice's maximum is known by its PSNR."""
    lines = [
        [cell.strip(" *") for cell in line.split("|")]
        for line in (ROOT / "docs" / "results.md").read_text().splitlines()
    ]
    top = max(
        float(row["mse_slice"]) * 10 ** (float(row["psnr_slice"]) / 10)
        for row in results.of(("brain", results.methods[0], 4.0))
    )
    volumes: dict[tuple[str, str], dict[str, str]] = {}
    for label, method, acceleration in results.runs():
        start = ["", label, f"{acceleration:g}x", method]
        told = [line for line in lines if line[:4] == start and len(line) == 12 and line[8] == "1"]
        assert len(told) == 1, start
        mse, nmse = (results.slices((label, method, acceleration), name) for name in ("mse", "nmse"))
        assert told[0][4] == f"{10 * np.log10(top / mse.mean()):.2f}" and told[0][7] == f"{mse.mean():.2e}"
        assert told[0][6] == f"{mse.sum() / (mse / nmse).sum():.4f}"  # mse / nmse is the energy of the truth
        volumes[method, start[2]] = {"PSNR": told[0][4], "SSIM": told[0][5]}
    head = next(line for line in lines if line[3:4] == ["brain zero-filled"])
    rows = [line for line in lines if len(line) == len(head) and line[2] in ("PSNR", "SSIM")]
    assert len(rows) == 4, "the paper's Table 1 has the same numbers, and their differences"
    for line in rows:
        for name, cell in zip(head, line, strict=True):
            method, _, reference = name.removeprefix("brain ").partition(" - ")
            if reference:
                own, theirs = (float(volumes[m, line[1]][line[2]]) for m in (method, reference))
                assert float(cell) == pytest.approx(own - theirs, abs=0.011 if line[2] == "PSNR" else 0.0011)
            elif name:
                assert cell == volumes[method, line[1]][line[2]]


def test_the_readme_has_the_same_numbers(results: tables.Results) -> None:
    table = [line.replace("*", "") for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|")]
    for method in results.methods:
        wanted = [
            f"{results.slices(('brain', method, a), name).mean():{tables.FORMAT[name]}}"
            for name in ("psnr", "ssim")
            for a in (4.0, 8.0)
        ]
        cost = results.cost(("brain", method, 4.0))
        line = next((line for line in table if re.match(rf"\| {re.escape(method)}( \(|  ?\|)", line)), "")
        assert not line or [cell.strip() for cell in line.split("|")[2:8]] == [*wanted, *cost], (method, line, wanted)
    assert sum(line.startswith(f"| {method} ") for line in table for method in results.methods) >= 6
    text = (ROOT / "README.md").read_text()
    rows = {a: results.of(("brain", OURS, a)) for a in (4.0, 8.0)}
    held = {a: np.array([float(row["adaptive_90_foreground"]) for row in rows[a]]) for a in rows}
    pooled = [100 * tables._pooled(held[a], tables._weights(rows[a], "foreground"), [])[0] for a in rows]
    assert re.search(r"{:.1f} % \(4.\) and {:.1f} % \(8.\) of the pixels".format(*pooled), text)
    assert f"as few as\n  {100 * min(values.min() for values in held.values()):.0f} %" in text


@pytest.mark.parametrize("acceleration", [4, 8])
def test_self_check_separates_what_the_page_says(acceleration: int) -> None:
    """The table's lines are made of docs/selfcheck-*.csv, and all kinds but those named there are told apart."""
    with (ROOT / "docs" / f"selfcheck-{acceleration}x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    page = (ROOT / "docs" / "results.md").read_text()
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    assert len(kinds) == 15 and len(rows) % len(kinds) == 0
    card = read_card("default")
    of_now = (card["sha256"][:16], conformal.fingerprint(card["self_check"]))
    assert {(row["weights"], row["calibration"]) for row in rows} == {of_now}, "the shipped model and its calibration"
    scores = {kind: [float(row["score"]) for row in rows if row["kind"] == kind] for kind in kinds}
    for kind in kinds:
        assert selfcheck.line(rows, kind, acceleration) in page.splitlines()
        if kind not in (selfcheck.USUAL, selfcheck.PERSON, "T2", "PD", "line of noise"):
            assert selfcheck.auc(scores[selfcheck.CONTROLS.get(kind, selfcheck.USUAL)], scores[kind]) >= 0.9
