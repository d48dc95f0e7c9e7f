"""One line of an evaluation: as a `Row`, as a line of rows.csv, and back."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from mcddpm.evaluation.rows import CheckedRow, Intervals, Row, read_csv, write_csv
from mcddpm.system.settings import from_dict, to_dict
from mcddpm.uncertainty.scores import Scores

pytest_plugins = ["tests.evaluation.fixtures"]


def scores(start: float, quantile: dict[int, float]) -> Scores:
    names = ("width_90", "crps", "energy", "spread", "correlation", "sparsification", "law", "rank_p", "variance")
    values = {name: start + 0.1 * k for k, name in enumerate((*names, "squared_error"))}
    return Scores({50: start, 80: start + 1, 90: start + 2, 95: start + 3}, **values, quantile=quantile)


PLAIN = Row(
    *("PD", "paper", "0012", 5, 4.0, "1e5"),
    quality={"psnr": 30.1, "ssim": 0.9, "nmse": 0.01, "mse": 1e-9},
    foreground={"psnr": 29.0, "ssim": 0.8},
    samples=1,
    calls=0,
    seconds=0.125,
    seed=2**32 - 1,
)
FULL = Row(
    *("brain, left", "simulated", 'a "b"', 7, 8.0, "MC-DDPM | 20"),
    quality={"psnr": math.inf, "ssim": 1.0, "nmse": 0.0, "mse": 0.0},
    foreground={"psnr": math.inf, "ssim": 1.0},
    samples=20,
    calls=200,
    seconds=1.5,
    seed=1,
    scores={"foreground": scores(0.1, {50: 0.5, 80: 0.8, 90: 0.9}), "whole": scores(0.2, {})},
    conformal={"foreground": Intervals({50: 0.51, 80: 0.81, 90: 0.91, 95: 0.96}, 3.0), "whole": Intervals({50: 0.52})},
    adaptive={"foreground": Intervals({50: 0.53}), "whole": Intervals({50: 0.54}, 4.0)},
    self_check=CheckedRow(-0.25, 0.05, 192, 2.25),
    pixels_foreground=1000,
    weight=2e-3,
    measurement_seed=100000105,
    device="cpu",
    weights="0123456789012345",
    calibration="12e4",
    manifest="00ff",
)


def test_columns_are_those_of_before(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", [PLAIN])
    levels = (50, 80, 90, 95)
    expected = ["label", "protocol", "volume", "slice", "acceleration", "method"]
    expected += ["psnr_slice", "ssim_slice", "nmse_slice", "mse_slice", "psnr_foreground", "ssim_foreground"]
    for region in ("foreground", "whole"):
        expected += [f"coverage_{v}_{region}" for v in levels] + [f"quantile_{v}_{region}" for v in levels[:3]]
        names = ("width_90", "crps", "energy", "spread", "correlation", "sparsification", "law", "rank_p", "variance")
        expected += [f"{name}_{region}" for name in (*names, "squared_error")]
    ways, regions = ("conformal", "adaptive"), ("foreground", "whole")
    expected += [f"{way}_{v}_{region}" for way in ways for region in regions for v in levels]
    expected += [f"{way}_width_90_{region}" for way in ways for region in regions]
    expected += ["self_check_overall", "self_check_p", "self_check_calls", "self_check_seconds"]
    expected += ["pixels_foreground", "weight", "samples", "calls", "seconds", "seed", "measurement_seed", "device"]
    expected += ["weights", "calibration", "manifest", "truth"]
    assert (tmp_path / "rows.csv").read_text().splitlines()[0].split(",") == expected


def test_a_line_says_what_the_row_says(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", [PLAIN, FULL])
    with (tmp_path / "rows.csv").open(newline="") as file:
        plain, full = csv.DictReader(file)
    given = {"volume": "0012", "slice": "5", "acceleration": "4.0", "method": "1e5", "mse_slice": "1e-09", "calls": "0"}
    assert plain.items() >= (given | {"psnr_slice": "30.1", "ssim_foreground": "0.8", "seconds": "0.125"}).items()
    empty = [name for name, text in plain.items() if not text]
    assert {"weight", "weights", "crps_whole", "conformal_90_whole", "self_check_p", "measurement_seed"} <= set(empty)
    given = {"psnr_slice": "inf", "coverage_80_foreground": "1.1", "quantile_90_foreground": "0.9", "weight": "0.002"}
    given |= {
        "quantile_50_whole": "",
        "conformal_90_foreground": "0.91",
        "conformal_90_whole": "",
        "calibration": "12e4",
    }
    given |= {"conformal_width_90_foreground": "3.0", "adaptive_50_whole": "0.54"}
    given |= {"adaptive_width_90_foreground": "", "adaptive_width_90_whole": "4.0"}
    given |= {"squared_error_whole": str(0.2 + 0.1 * 9), "self_check_overall": "-0.25", "self_check_calls": "192"}
    assert full.items() >= given.items()


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_csv(write_csv(tmp_path / "rows.csv", [FULL, PLAIN])) == [FULL, PLAIN]
    assert FULL.key == ("brain, left", "MC-DDPM | 20", 8.0)


@pytest.mark.parametrize("row", [PLAIN, FULL])
def test_a_piece_keeps_a_row(row: Row) -> None:
    assert from_dict(Row, json.loads(json.dumps(to_dict(row)))) == row


def test_all_rows_of_an_evaluation_are_read_again(done: Path, tmp_path: Path) -> None:
    """Of two samples there is no quantile at all."""
    found = read_csv(done / "rows.csv")
    ours = [row for row in found if row.method == "Ours"]
    assert len(ours) == 8 and all(row.scores["whole"].quantile == {} for row in ours)
    again = write_csv(tmp_path / "rows.csv", found)
    assert again.read_bytes() == (done / "rows.csv").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("psnr_slice", "psnr_pixel"), "unknown column psnr_pixel"),
        (lambda text: text.replace("4294967295", "many"), "could not convert string to float: 'many'"),
        (lambda text: text.replace("4294967295", "1.5"), r"seed is 1\.5, expected a whole number"),
        (lambda text: text.replace("paper", ""), "protocol is missing"),
    ],
)
def test_what_holds_no_rows_is_refused(tmp_path: Path, change, message: str) -> None:
    path = write_csv(tmp_path / "rows.csv", [PLAIN])
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=rf"rows.csv does not hold the rows of an evaluation: .*{message}"):
        read_csv(path)
