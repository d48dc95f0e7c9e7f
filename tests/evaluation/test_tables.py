"""Tables say what rows say, in the layout of the paper."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mcddpm.evaluation import methods, tables
from mcddpm.evaluation.results import Results
from mcddpm.evaluation.rows import Row, write_csv
from mcddpm.evaluation.run import evaluate
from mcddpm.evaluation.study import Evaluation
from mcddpm.evaluation.tables import Table
from mcddpm.uncertainty.scores import bootstrap
from tests.evaluation.studies import only, pieces, rows
from tests.knees import FILES

pytest_plugins = ["tests.evaluation.fixtures"]

STUDENT = 3.1824  # of three degrees of freedom


@pytest.fixture(scope="module")
def made(done: Path) -> dict[str, Table]:
    """By the first words of their titles."""
    return by_title(tables.tables(done, "ZF", ours="Ours"))


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the intervals of error bars, which take most of the time."""
    monkeypatch.setattr(tables, "bootstrap", lambda *_, **__: (0.0, 0.0))


def by_title(found: list[Table]) -> dict[str, Table]:
    return {table.title.partition(", ")[0]: table for table in found}


def psnr(out: Path, method: str) -> list[float]:
    return [row.quality["psnr"] for row in rows(out) if row.key == ("PD", method, 4.0)]


def plain(cell: str) -> str:
    return cell.replace("*", "")


def test_slices_with_their_intervals(done: Path, made: dict[str, Table]) -> None:
    found, table = psnr(done, "One"), made["All metrics on slices"]
    inside = ["PSNR, foreground", "SSIM, foreground"]
    assert list(table.head) == ["", "", "method", "PSNR", "SSIM", "NMSE", "MSE", *inside, "slices", "calls", "seconds"]
    row = next(row for row in table.rows if list(row[:3]) == ["PD", "4x", "One"])
    half = STUDENT * np.std(found, ddof=1) / math.sqrt(4)
    assert plain(row[3]) == f"{np.mean(found):.2f} ± {half:.2f}" and row[9:11] == ["4", "1"]
    for column, best in ((3, max), (4, max), (5, min), (6, min)):  # PSNR, SSIM, NMSE, MSE
        cells = [row[column] for row in table.rows if row[1] == "4x"]
        means = [float(plain(cell).split(" ")[0]) for cell in cells]
        assert cells[means.index(best(means))].startswith("**") and sum("**" in cell for cell in cells) == 1
    assert "± over slices" in table.title


def test_gains_are_slice_by_slice(done: Path, made: dict[str, Table], quickly: None) -> None:
    """Every method against the reference, and ours against every other."""
    gap = np.subtract(psnr(done, "One"), psnr(done, "ZF"))
    paired = [list(row) for row in made["Slice by slice"].rows if row[1] == "4x"]
    assert [row[2:4] for row in paired] == [["One", "ZF"], ["Ours", "ZF"], ["Ours", "One"]]
    assert paired[0][4] == f"{gap.mean():+.2f} ± {STUDENT * gap.std(ddof=1) / 2:.2f}"
    assert [row[8] for row in paired] == ["1 / 0", "4 / 0", "4 / 1"], "calls of both"
    assert "Slice by slice" not in by_title(tables.tables(done)), "against nothing there is nothing to gain"


def test_the_papers_first_table(done: Path, made: dict[str, Table], quickly: None) -> None:
    first = made["Table 1: volumes"]
    assert list(first.head) == ["", "", "PD ZF", "PD One", "PD Ours", "One - ZF", "Ours - ZF"]
    assert [row[1] for row in first.rows[:4]] == ["PSNR", "SSIM", "calls", "seconds"]
    assert list(first.rows[2][2:5]) == ["0", "1", "4"] and list(first.rows[2][5:]) == ["", ""]
    value = [float(plain(cell)) for cell in first.rows[0][2:]]
    assert value[3] == pytest.approx(value[1] - value[0], abs=0.011)
    without = tables.tables(done, "ZF", ("One",))[0]
    assert list(without.head) == ["", "", "PD One", "One - ZF"] and without.rows[0][3] == first.rows[0][5]
    few = tables.tables(done, "ZF", ("ZF", "Ours"))[0]
    assert list(few.head) == ["", "", "PD ZF", "PD Ours", "Ours - ZF"]
    assert [plain(cell) for cell in few.rows[0][2:4]] == [plain(cell) for cell in first.rows[0][2:5:2]]


def test_no_number_without_its_protocol(done: Path, quickly: None) -> None:
    found = tables.tables(done, "ZF", ours="Ours")
    assert len(found) == 8 and all("protocol fastmri" in table.title for table in found)
    within = ["± over slices" in table.title for table in found]
    assert within == [False, False, *[True] * 6], "of two volumes there is none"


def test_the_papers_layout_in_both_languages(done: Path, tmp_path: Path, quickly: None) -> None:
    for name in ("rows.csv", "parts"):
        (tmp_path / name).symlink_to(done / name)
    path = tables.write_tables(tmp_path, "ZF")
    text, tex = path.read_text(), (tmp_path / "tables.tex").read_text()
    assert "| 4x | PSNR |" in text and "| 8x | SSIM |" in text and "One - ZF" in text and "**" in text
    assert r"\begin{tabular}" in tex and r"\textbf{" in tex and r"$\pm$" in tex and "**" not in tex


def test_latex_has_no_bare_ampersands() -> None:
    tex = Table("in % of all, protocol paper", ["", "", "Chung & Ye"], [["a_b", "4x", "50 % #1"]]).latex()
    assert r"Chung \& Ye" in tex and r"a\_b" in tex and r"50 \% \#1 \\" in tex
    assert r"\caption{in \% of all, protocol paper}" in tex, "no number without its protocol, in print too"


def test_the_one_of_ours_that_draws_most_samples_is_paired_with_all(
    asked: Evaluation, tmp_path: Path, quickly: None
) -> None:
    ours = asked.methods[2]
    few = (asked.methods[0], replace(ours, name="Three", samples=3), ours)
    evaluate(only(asked, *few, accelerations=(4.0,)), tmp_path)
    found = by_title(tables.tables(tmp_path, "ZF", ours=methods.ours(few)))
    pairs = [tuple(row[2:4]) for row in found["Slice by slice"].rows]
    assert pairs == [("Three", "ZF"), ("Three", "Ours"), ("Ours", "ZF")]


# --- error bars -----------------------------------------------------------------------------------------------------


def changed(out: Path, found: list[Row]) -> Results:
    write_csv(out / "rows.csv", found)
    return Results(out)


def test_ranks_are_called_uneven_where_they_can_be(done: Path, tmp_path: Path) -> None:
    """Of 18 samples no slice's p is below 0.05: that none is uneven would be no merit."""
    own = [row for row in rows(done) if row.key == ("PD", "Ours", 4.0)]
    for samples, told in ((18, "-"), (19, "1 of 4"), (20, "1 of 4")):
        found = []
        for k, row in enumerate(own):
            inside = replace(row.scores["foreground"], rank_p=0.04 if k == 2 else 0.06)
            found.append(replace(row, samples=samples, scores=row.scores | {"foreground": inside}))
        results = changed(tmp_path, found)
        assert [row[-3] for row in tables.spread_table(results, results.runs(), "foreground").rows] == [told]


def foregrounds(out: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Errors and stds of ours at 4x, slice by slice, where pixels count."""
    errors, stds = [], []
    for piece in pieces(out, "Ours", lambda name: name.endswith("-4x")):
        mean, std, target = (piece[key].astype(float) for key in ("mean", "std", "target"))
        inside = (2 * mean + target) / 3 > 0.1 * ((2 * mean + target) / 3).max()
        errors.append((mean - target)[inside])
        stds.append(std[inside])
    return errors, stds


def test_coverage_is_over_all_pixels(done: Path, made: dict[str, Table]) -> None:
    """Of one long image, which holds the slices' foregrounds; and of the worst slice, with its name."""
    table = made["Coverage of intervals"]  # of both, the last: the whole image
    assert "whole image" in table.title
    table = tables.interval_table(Results(done), [("PD", "Ours", 4.0)], "foreground")
    row = next(list(row) for row in table.rows if list(row[1:4]) == ["4x", "Ours", "90 %"])
    wide = 6.3138 * math.sqrt(1 + 1 / 2)  # Student's, of one degree of freedom
    covered = [abs(error) <= wide * std for error, std in zip(*foregrounds(done), strict=True)]
    assert float(row[4].split()[0]) == pytest.approx(100 * np.concatenate(covered).mean(), abs=0.06)
    assert float(row[5].split()[0]) == pytest.approx(100 * min(part.mean() for part in covered), abs=0.06)
    worst = min(range(4), key=lambda k: covered[k].mean())
    assert f"({FILES[worst // 2]} {worst % 2})" in row[5] and row[6:8] == ["-", "-"] and row[8] == "4"
    assert list(table.head)[4:8] == ["as drawn, %", "worst slice", "calibrated, %", "worst slice"]
    slices = [100 * part.mean() for part in covered]
    low, high = bootstrap(np.array(slices))
    assert float(row[4].split()[2]) == pytest.approx((high - low) / 2, rel=0.2), "slices have nearly as many pixels"


def test_spread_and_law_are_over_all_pixels(done: Path) -> None:
    (row,) = tables.spread_table(Results(done), [("PD", "Ours", 4.0)], "foreground").rows
    cells = [cell.split(" ± ")[0] for cell in row]
    error, std = (np.concatenate(values) for values in foregrounds(done))
    variance, squared = (std**2).mean(), (error**2).mean()
    assert float(cells[3]) == pytest.approx(math.sqrt(1.5 * variance / squared), abs=0.006)
    assert float(cells[4]) == pytest.approx((squared + 0.5 * variance) / (2 * variance), rel=0.01)
    own = [r.scores["foreground"] for r in rows(done) if r.key == ("PD", "Ours", 4.0)]
    rms = np.sqrt([s.squared_error for s in own])
    for column, key in ((5, "correlation"), (6, "sparsification")):
        assert float(cells[column]) == pytest.approx(np.mean([getattr(s, key) for s in own]), abs=0.006)
    assert float(cells[7]) == pytest.approx(np.mean([s.crps for s in own] / rms), abs=0.006)
    assert float(cells[8]) == pytest.approx(np.mean([s.width_90 for s in own] / rms), abs=0.006)
    assert cells[9] == "-", "two samples' ranks cannot be called uneven"
    assert cells[10] == "4", "calls stand beside every number"


def test_of_one_slice_there_is_no_interval(done: Path, tmp_path: Path) -> None:
    results = changed(tmp_path, [row for row in rows(done) if row.key == ("PD", "Ours", 8.0)][:1])
    (row,) = tables.spread_table(results, results.runs(), "whole").rows
    assert row[3].endswith(" ± nan")
