"""Are lesions reconstructed, and do error bars hold there? Two tumour patients, whose like no model here has seen.

    mcddpm data get brain-lesions
    mcddpm calibrate configs/calibrate.toml     # once, if the model is not calibrated yet
    python benchmarks/lesions.py                # the table, and docs/images/lesions.png

T1 with contrast agent, slices of 6.5 mm: another contrast, another thickness, and enhancing tumours. Inside a box set
by hand around the lesion, against the rest of the head: error of the mean of 20 samples, what std says of it, and how
often 90 % intervals hold the truth; and if the self-check is surprised. Each reconstruction is kept in --out, and
rows.csv beside them has a row a slice and region, of which the table is made (docs/results/lesions.csv).
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mcddpm import plots
from mcddpm.data import catalogue
from mcddpm.data.cases import Case, Cases, cases_of
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import load_model
from mcddpm.plots import Box, Panel
from mcddpm.reconstruction.sample import reconstruct
from mcddpm.system import files
from mcddpm.uncertainty import scores, selfcheck
from mcddpm.uncertainty.calibration import load_calibration

# Set by eye on the slices as the stack has them: slice -> top, left, height, width.
BOXES: dict[int, Box] = {
    6: (79, 48, 22, 19),
    7: (80, 46, 44, 18),
    8: (105, 46, 18, 32),
    9: (105, 46, 16, 18),
    10: (105, 51, 18, 26),
    11: (103, 53, 22, 24),
    12: (104, 53, 18, 21),
    25: (66, 36, 15, 12),
    26: (68, 38, 11, 9),
}
SHOWN = 11
INTERVALS = ("as drawn", "calibrated", "with self-check")
REGIONS = ("lesion", "rest of the head", "rest without skin")
Row = dict[str, str]


def drawn(model: Denoiser, case: Case, folder: Path) -> dict[str, Tensor]:
    """mean, std, truth, zero-filled and the ends of 90 % intervals (INTERVALS), relative to the slice's maximum; and p
    of the self-check."""
    path = folder / f"{case.name}.npz"
    if not path.exists():
        m = case.make()
        assert m.truth is not None
        recon = reconstruct(model, m, seed=case.slice)
        samples = torch.as_tensor(recon.samples).abs() * m.scale
        calibration, check = load_calibration(model), selfcheck.check(model, m, seed=case.slice)
        images = {"mean": samples.mean(0), "std": samples.std(0), "truth": m.truth.abs()}
        told = [recon.interval(calibration, 0.9, surprise) for surprise in (None, check.overall)]
        found = [scores.normal_interval(samples, 0.9), *((x.lower * m.scale, x.upper * m.scale) for x in told)]
        for name, ends in zip(INTERVALS, found, strict=True):
            images |= {f"{end} {name}": torch.as_tensor(x) for end, x in zip(("lower", "upper"), ends, strict=True)}
        images["zero_filled"] = m.operator.pinv(m.y_m).abs()
        top = m.truth.abs().max()
        with files.whole(path) as part, part.open("wb") as file:
            np.savez(file, p=check.p, **{key: (image / top).numpy() for key, image in images.items()})  # type: ignore[arg-type]
    with np.load(path) as found:
        return {key: torch.from_numpy(found[key]) for key in found}


def inside(box: Box, like: Tensor) -> Tensor:
    where = torch.zeros_like(like, dtype=torch.bool)
    top, left, height, width = box
    where[top : top + height, left : left + width] = True
    return where


def row_of(images: dict[str, Tensor], region: Tensor) -> Row:
    """Of the pixels of a region: mean squares, relative to the slice's maximum, and which part 90 % intervals hold."""
    of = {key: image[region][None].double() for key, image in images.items() if key != "p"}
    squares = {
        "zero_filled": of["zero_filled"] - of["truth"],
        "error": of["mean"] - of["truth"],
        "std": of["std"],
    }
    row = {"pixels": str(int(region.sum()))} | {k: f"{float(v.square().mean()):.6g}" for k, v in squares.items()}
    for name in INTERVALS:
        held = scores.coverage((of[f"lower {name}"], of[f"upper {name}"]), of["truth"])
        row[name] = f"{held:.6g}"
    return row


def line(rows: Sequence[Row]) -> str:
    """Pooled over the pixels of these: error and std as root mean squares in % of the slice's maximum, and coverage."""
    weights = [float(row["pixels"]) for row in rows]
    pooled = {
        key: float(np.average([float(row[key]) for row in rows], weights=weights))
        for key in ("zero_filled", "error", "std", *INTERVALS)
    }
    zero, error, std = (100 * pooled[key] ** 0.5 for key in ("zero_filled", "error", "std"))
    told = f"{zero:.2f} | {error:.2f} | {std:.2f} | {std / error:.2f}"
    return " | ".join([told, *(f"{100 * pooled[name]:.1f}" for name in INTERVALS)])


def table(rows: Sequence[Row]) -> list[str]:
    runs = dict.fromkeys((row["acceleration"], row["region"]) for row in rows)
    return [
        f"| {a}x, {region} | {line([row for row in rows if (row['acceleration'], row['region']) == (a, region)])} |"
        for a, region in runs
    ]


def picture(path: Path, images: dict[int, dict[str, Tensor]], box: Box) -> None:
    rows = []
    for acceleration, found in images.items():
        error, top = (found["mean"] - found["truth"]).abs(), 0.6  # skin is far brighter than any brain
        shown = {name: found[name] for name in ("truth", "zero_filled", "mean")}
        row = [Panel(name.replace("_", "-"), x.numpy(), 0, top, box=box) for name, x in shown.items()]
        row += [Panel(name, x.numpy(), 0, 0.1, "magma", box) for name, x in (("|error|", error), ("std", found["std"]))]
        around = (box[0] - 15, box[1] - 15, box[2] + 30, box[3] + 30)
        rows += [row, [panel.zoomed(around, f"{acceleration}x") for panel in row]]
    plots.panels(path, rows, "a tumour with contrast agent, which no model here has seen", dark=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--out", type=Path, default=catalogue.cache() / "benchmarks" / "lesions")
    parser.add_argument("--figure", type=Path, default=Path("docs/images/lesions.png"))
    asked = parser.parse_args()
    model = load_model(asked.model)
    assert isinstance(model, Denoiser) and model.card is not None
    fitted = {"weights": model.card.sha256[:16], "calibration": load_calibration(model).fingerprint}
    folder = asked.out / "-".join(fitted.values())
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    shown = {}
    for acceleration in (4, 8):
        cases = cases_of(Cases(source="brain-lesions:test:192", accelerations=(acceleration,), label="lesions"))
        images = {k: drawn(model, cases[k], folder) for k in BOXES}
        found: dict[str, list[Row]] = {name: [] for name in REGIONS}
        for k, image in images.items():
            head, box = scores.foreground(image["mean"]), inside(BOXES[k], image["truth"])
            rest = head & ~box
            for name, region in zip(REGIONS, (box, rest, rest & (image["mean"] < 0.6)), strict=True):
                place = {"acceleration": str(acceleration), "region": name, "slice": str(k)}
                found[name].append(place | row_of(image, region) | {"p": f"{float(image['p']):.6g}"} | fitted)
        rows += [row for name in REGIONS for row in found[name]]
        shown[acceleration] = images[SHOWN]
    with files.whole(folder / "rows.csv") as part, part.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    titles = [
        "",
        "error of zero-filled, %",
        "of the mean, %",
        "std, %",
        "std / error",
        "90 % holds, %",
        "calibrated, %",
    ]
    print(f"| {' | '.join([*titles, 'with self-check, %'])} |\n|{'---|' * (len(titles) + 1)}")
    print("\n".join(table(rows)))
    picture(asked.figure, shown, BOXES[SHOWN])
    for a in ("4", "8"):
        p = {row["slice"]: float(row["p"]) for row in rows if row["acceleration"] == a}
        count = sum(value <= selfcheck.ALARM for value in p.values())
        print(f"{a}x: the self-check finds {count} of {len(p)} slices unusual (p <= {selfcheck.ALARM:g})")
    print(asked.figure)


if __name__ == "__main__":
    main()
