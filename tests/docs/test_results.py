"""README.md, docs/results.md and docs/results/protocols.md say what was measured: their tables and claims follow from
the rows in docs/results. (Generated pages are compared by `python docs/generate.py --check`.)"""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import lesions, selfcheck
from mcddpm.data import catalogue
from mcddpm.data.cases import quality_of
from mcddpm.evaluation import study, tables
from mcddpm.evaluation.methods import Method, reconstructor
from mcddpm.evaluation.results import EVERYWHERE, FOREGROUND, PSNR, SSIM, Metric, Results, interval
from mcddpm.evaluation.rows import REGIONS, Region
from mcddpm.evaluation.study import Evaluation
from mcddpm.models.store import read_card
from mcddpm.system.files import fingerprint
from mcddpm.system.settings import load, to_dict
from mcddpm.uncertainty.calibration import load_calibration
from mcddpm.uncertainty.scores import LEVELS, percent

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "docs" / "results"
OURS = "MC-DDPM, mean of 20"
MISSED = {("foreground", 8.0, 0.5): 2.3}  # points; what docs/results.md says of it
SCORE_BASED = ("Chung & Ye", "Song et al.", "Jalal et al.", "DDPM, replaced")
CALLS: dict[str, Callable[[Method], int]] = {  # a sample
    **dict.fromkeys(("zero_filled", "total_variation"), lambda method: 0),
    **dict.fromkeys(("unet", "unet_put_back"), lambda method: 1),
    **dict.fromkeys(("mc_ddpm", "ddpm"), lambda method: method.steps),
    **dict.fromkeys(("chung_ye", "song"), lambda method: 2 * method.steps),
    "jalal": lambda method: 2 * method.steps + 1,
}


def page(name: str) -> str:
    return (ROOT / name).read_text()


def plain(text: str) -> str:
    """In one line, with a plain x for the times sign."""
    return " ".join(text.split()).replace("\N{MULTIPLICATION SIGN}", "x")


def cells(text: str) -> list[list[str]]:
    """Every line of every table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines]


def read(folder: Path, name: str) -> Results:
    shutil.copy(ROWS / f"{name}.csv", folder / "rows.csv")
    return Results(folder)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return read(tmp_path_factory.mktemp("results"), "brain-4x8x")


@pytest.fixture(scope="module")
def asked() -> Evaluation:
    return load(Evaluation, ROOT / "configs" / "brain-4x8x.toml")


def pooled(results: Results, acceleration: float, level: float, region: Region = "foreground") -> float:
    """Coverage with the self-check, over all pixels, in %."""
    rows = results.of(("brain", OURS, acceleration))
    covered = np.array([row.adaptive[region].coverage[percent(level)] for row in rows])
    return 100 * tables.pooled_over(covered, tables.pixel_weights(rows, region), [])[0]


# --- rows -----------------------------------------------------------------------------------------------------------


def test_rows_are_of_the_configuration_and_the_shipped_models(results: Results, asked: Evaluation) -> None:
    assert results.methods == [method.name for method in asked.methods]
    assert len({row.manifest for row in results.rows}) == 1
    slices = {tuple(row.slice for row in results.of(key)) for key in results.runs()}
    assert len(slices) == 1 and len(results.runs()) == 2 * len(asked.methods), "the same slices for each"
    assert {slice % asked.cases[0].every for slice in slices.pop()} == {0}
    fitted = load_calibration("default").fingerprint
    for method in asked.methods:
        for row in (row for row in results.rows if row.method == method.name):
            assert (row.samples, row.weights) == (method.samples, study.weights_of(method.model))
            assert row.calls == method.samples * CALLS[method.kind](method)
            assert row.calibration == (fitted if row.method == OURS else "")


@pytest.mark.parametrize("name", ["contrasts", "other-masks"])
def test_other_rows_are_of_the_shipped_calibration(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, name)
    ours = [row for row in found.rows if row.method == OURS]
    assert ours and {row.calibration for row in ours} == {load_calibration("default").fingerprint}
    assert {row.weights for row in ours} == {study.weights_of("default")}


def test_lesions_and_self_checks_are_of_the_shipped_calibration() -> None:
    calibration, weights = load_calibration("default"), read_card("default").sha256[:16]
    checked = fingerprint(to_dict(calibration.checked))
    fitted = {"lesions": calibration.fingerprint, "selfcheck-4x": checked, "selfcheck-8x": checked}
    for name, known in fitted.items():
        with (ROWS / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert {(row["weights"], row["calibration"]) for row in rows} == {(weights, known)}, name


@pytest.mark.parametrize(
    "name",
    [
        *("zero-filled", "total variation", "U-Net", "U-Net, put back"),
        *("MC-DDPM, one call", "MC-DDPM, one sample", "MC-DDPM, mean of 5", "MC-DDPM, mean of 20"),
    ],
)
@pytest.mark.parametrize("acceleration", [4.0, 8.0])
def test_a_row_is_what_the_shipped_weights_give(
    results: Results, asked: Evaluation, name: str, acceleration: float
) -> None:
    """On one slice of the test person; not the score-based methods, which take half a minute each."""
    scans = [scan for scan in catalogue.scans("brain") if scan.split == "test"]
    if not all(catalogue.volume_path("brain", scan).exists() for scan in scans):
        pytest.skip("the test person's scan is not here: mcddpm data get brain")
    found = [(c, m) for c, m in study.chosen(asked) if m.name == name and c.acceleration == acceleration]
    case, method = found[len(found) // 2]
    row = next(row for row in results.of(("brain", name, acceleration)) if row.slice == case.slice)
    m, seed = case.make(), case.draw_seed(asked.seed)
    recon = reconstructor(replace(method, weight=row.weight or 0.0), "cpu")(m, seed)
    assert row.seed == seed
    assert quality_of(recon.mean, m)["psnr"] == pytest.approx(PSNR.of(row), abs=0.01)


# --- claims ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acceleration", [4.0, 8.0])
@pytest.mark.parametrize("metric", [PSNR, SSIM, *FOREGROUND], ids=lambda metric: metric.title)
def test_ours_is_better_than_all_that_the_paper_compares_with(
    results: Results, acceleration: float, metric: Metric
) -> None:
    """The intervals of paired differences exclude zero."""
    for rival in ("zero-filled", "total variation", "U-Net", "U-Net, put back", *SCORE_BASED):
        own, theirs = (results.slices(("brain", method, acceleration), metric) for method in (OURS, rival))
        groups = results.groups(("brain", OURS, acceleration))
        assert (own - theirs).mean() > interval(own - theirs, groups) > 0, rival


@pytest.mark.parametrize("acceleration", [4.0, 8.0])
@pytest.mark.parametrize("rival", SCORE_BASED)
def test_a_twentieth_of_the_calls_is_enough(results: Results, acceleration: float, rival: str) -> None:
    own, theirs = ("brain", "MC-DDPM, mean of 5", acceleration), ("brain", rival, acceleration)
    assert 20 * results.of(own)[0].calls <= results.of(theirs)[0].calls
    assert results.slices(own, PSNR).mean() >= results.slices(theirs, PSNR).mean()


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("acceleration", [4.0, 8.0])
def test_calibrated_intervals_cover_what_they_say(results: Results, region: Region, acceleration: float) -> None:
    """Of the test person, with the self-check, over all pixels: within two points, but for what is said to miss it."""
    for level in LEVELS:
        off = abs(pooled(results, acceleration, level, region) - 100 * level)
        assert off <= MISSED.get((region, acceleration, level), 2.0) + 0.05, (level, off)


@pytest.mark.parametrize("acceleration", [4, 8])
def test_self_check_separates_what_the_page_says(acceleration: int) -> None:
    """All kinds but those that the page names are told apart."""
    with (ROWS / f"selfcheck-{acceleration}x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    assert len(kinds) == 15 and len(rows) % len(kinds) == 0
    scores = {kind: [float(row["score"]) for row in rows if row["kind"] == kind] for kind in kinds}
    for kind in kinds:
        if kind not in (selfcheck.USUAL, selfcheck.PERSON, "T2", "PD", "line of noise"):
            assert selfcheck.auc(scores[selfcheck.CONTROLS.get(kind, selfcheck.USUAL)], scores[kind]) >= 0.9


# --- pages ----------------------------------------------------------------------------------------------------------


def quality(results: Results, method: str) -> list[str]:
    """PSNR 4x, 8x, SSIM 4x, 8x, as the pages print them."""
    means = [(m, results.slices(("brain", method, a), m).mean()) for m in (PSNR, SSIM) for a in (4.0, 8.0)]
    return [metric.text(float(value)) for metric, value in means]


def test_the_readme_has_the_numbers_of_the_rows(results: Results) -> None:
    table, seen = cells(page("README.md")), 0
    for method in results.methods:
        for line in (line for line in table if re.fullmatch(rf"{re.escape(method)}( \(.*\))?", line[0])):
            seen += 1
            assert line[1:7] == [*quality(results, method), *results.cost(("brain", method, 4.0))], method
    assert seen >= 6
    text, covered = plain(page("README.md")), [pooled(results, a, 0.9) for a in (4.0, 8.0)]
    worst = min(row.adaptive["foreground"].coverage[90] for row in results.rows if row.adaptive)
    assert "{:.1f} % (4x) and {:.1f} % (8x) of the pixels".format(*covered) in text
    assert f"as few as {100 * worst:.0f} %" in text


def test_the_results_page_has_the_numbers_of_the_rows(results: Results) -> None:
    table, seen = cells(page("docs/results.md")), 0
    for method in results.methods:
        inside = [FOREGROUND[0].text(float(results.slices(("brain", method, a), FOREGROUND[0]).mean())) for a in (4, 8)]
        told = [*quality(results, method), *inside, *results.cost(("brain", method, 4.0))]
        for line in (line for line in table if re.fullmatch(rf"{re.escape(method)}(, mean of \d+)?", line[0])):
            seen += 1
            assert line[1:] == told, method
    assert seen == len(results.methods) - 1, "all but one sample"


@pytest.mark.parametrize(
    ("rows", "label", "told"),
    [
        ("brain-4x8x", "brain", "test person, 21 slices"),
        ("other-masks", "brain", "the same slices, other masks, phase and noise"),
        ("contrasts", "T1", "another new person, T1, 12 slices"),
        ("contrasts", "T2", "his T2, 9 slices"),
        ("contrasts", "PD", "his PD, 9 slices"),
    ],
)
def test_the_results_page_has_the_coverage_of_the_rows(rows: str, label: str, told: str, tmp_path: Path) -> None:
    """Of 90 % intervals in the foreground: as drawn, calibrated, with the self-check, and its worst slice."""
    found, table = read(tmp_path, rows), cells(page("docs/results.md"))
    place = next(k for k, line in enumerate(table) if line[0] == told)
    for acceleration, line in zip((4.0, 8.0), table[place : place + 2], strict=True):
        made = tables.interval_table(found, [(label, OURS, acceleration)], "foreground").rows
        own = next(row for row in made if row[3] == "90 %")
        means, worst = [own[k].split(" ± ")[0] for k in (4, 6, 8)], own[9].split(" (")[0]
        assert line[1:] == [f"{acceleration:g}\N{MULTIPLICATION SIGN}", *means, worst]


def test_the_results_page_has_the_contrasts_of_the_rows(tmp_path: Path) -> None:
    found, table = read(tmp_path, "contrasts"), cells(page("docs/results.md"))
    for acceleration in (4.0, 8.0):
        pairs = [[found.slices((x, m, acceleration), PSNR).mean() for m in (OURS, "zero-filled")] for x in found.labels]
        told = [f"{own:.2f} ({zero:.2f})" for own, zero in pairs]
        assert [f"{acceleration:g}\N{MULTIPLICATION SIGN}", *told] in table


def test_the_results_page_has_the_lesions_of_the_rows() -> None:
    with (ROWS / "lesions.csv").open(newline="") as file:
        made = cells("\n".join(lesions.table(list(csv.DictReader(file)))))
    table = cells(page("docs/results.md").replace("\N{MULTIPLICATION SIGN}", "x"))
    wanted = [[*row[:4], *row[5:]] for row in made if row[0].endswith(("lesion", "rest of the head"))]
    assert len(wanted) == 4 and [row for row in wanted if row not in table] == []


def test_the_protocols_page_has_what_the_self_check_flags(tmp_path: Path) -> None:
    found, flagged = read(tmp_path, "contrasts"), {}
    for key in (key for key in found.runs() if key[1] == OURS):
        seen = [row.self_check.p <= 0.05 for row in found.of(key) if row.self_check]
        flagged[key[0], key[2]] = f"{sum(seen)} of {len(seen)}"
    told = "It flags {} slices (T2) and {} (PD) at 4x, {} and {} at 8x, as many as of his T1 ({} at each)"
    told = told.format(*(flagged[x, a] for a in (4.0, 8.0) for x in ("T2", "PD")), flagged["T1", 4.0])
    assert told in plain(page("docs/results/protocols.md")) and flagged["T1", 4.0] == flagged["T1", 8.0]


def test_the_protocols_page_has_the_other_masks(tmp_path: Path, results: Results) -> None:
    found = read(tmp_path, "other-masks")
    for key in (key for key in found.runs() if key[1] == OURS):
        own, before = found.of(key), results.of(key)
        assert [(r.volume, r.slice, r.weights) for r in own] == [(r.volume, r.slice, r.weights) for r in before]
        assert not {row.measurement_seed for row in own} & {row.measurement_seed for row in before}
    told = [f"{r.slices(('brain', OURS, a), PSNR).mean():.2f}" for r in (found, results) for a in (4.0, 8.0)]
    assert "{} and {} dB ({} and {} above)".format(*told) in plain(page("docs/results/protocols.md"))


def test_volumes_follow_from_slices(results: Results) -> None:
    """Their images are not in the rows, but MSE is the mean over slices, and a slice's maximum is known by its PSNR."""
    table, mse, nmse = cells(page("docs/results/protocols.md")), EVERYWHERE[3], EVERYWHERE[2]
    first = results.of(("brain", results.methods[0], 4.0))
    top = max(mse.of(row) * 10 ** (PSNR.of(row) / 10) for row in first)
    volumes: dict[tuple[str, str], dict[str, str]] = {}
    for key in results.runs():
        start = [key[0], f"{key[2]:g}x", key[1]]
        (line,) = (line for line in table if line[:3] == start and len(line) == 10)
        errors, relative = results.slices(key, mse), results.slices(key, nmse)
        assert line[3] == f"{10 * np.log10(top / errors.mean()):.2f}" and line[6] == f"{errors.mean():.2e}"
        assert line[5] == f"{errors.sum() / (errors / relative).sum():.4f}"  # mse / nmse is the energy of the truth
        volumes[key[1], start[1]] = {"PSNR": line[3], "SSIM": line[4]}
    head = next(line for line in table if line[2:3] == ["brain zero-filled"])
    rows = [line for line in table if len(line) == len(head) and line[1] in ("PSNR", "SSIM")]
    assert len(rows) == 4, "the paper's Table 1 has the same numbers, and their differences"
    for line in rows:
        for name, cell in zip(head[2:], line[2:], strict=True):
            method, _, reference = name.removeprefix("brain ").partition(" - ")
            own = volumes[method, line[0]][line[1]]
            if reference:
                gap = float(own) - float(volumes[reference, line[0]][line[1]])
                assert float(cell) == pytest.approx(gap, abs=0.011 if line[1] == "PSNR" else 0.0011)
            else:
                assert cell == own


def test_pages_are_short() -> None:
    assert len(page("README.md").splitlines()) <= 120
    assert len(page("docs/results.md").splitlines()) <= 150


def test_the_map_is_that_of_the_folders() -> None:
    """Its tree names every folder of the package, and nothing that is not there; its nouns are where it says."""
    text, package = page("docs/explanation/map.md"), ROOT / "mcddpm"
    tree = text.split("```")[1]
    folders = set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))
    assert folders == {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    room = ""
    for line in tree.splitlines():
        if found := re.match(r"  (\w+)/", line):
            room = found[1]
        for name in re.findall(r"\b(\w+\.py)\b", line):
            assert (package / name).exists() or (package / room / name).exists(), line
    for noun in ("Measurement", "ModelCard", "DrawPlan", "Notice", "Row", "Workspace"):
        (place,) = re.findall(rf"^\| `{noun}` \|.*`([\w/]+\.py)` \|$", text, re.MULTILINE)
        assert re.search(rf"^class {noun}\b", (package / place).read_text(), re.MULTILINE), noun
