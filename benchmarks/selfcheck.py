"""Which scans does the self-check flag? Area under the ROC curve: slices the model was made for against others.

    mcddpm data get brain && mcddpm data get brain-contrasts
    mcddpm calibrate configs/calibrate.toml     # once, if the model is not calibrated yet
    python benchmarks/selfcheck.py

Slices of the test person, whom neither training nor calibration has seen, against: T1, T2 and PD of another person;
the test person with the order of intensities turned round; drawn ellipses; columns that were not where the mask says;
one spike; one line lost, which holds nothing, or the scan's noise alone; the last three outside the centre and inside.
And a line that one of four coils lost, against the same slices by four coils. Each is checked once and kept in --out,
so that it may be stopped at any time; rows-4x.csv and rows-8x.csv there hold what the table is made of.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mcddpm.data import catalogue
from mcddpm.data.phantoms import drawn
from mcddpm.data.slices import Slices, prepare
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import load_model
from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement, measure
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense
from mcddpm.simulation.scans import complex_noise, scan
from mcddpm.system import files
from mcddpm.system.seeds import seed_of
from mcddpm.system.settings import to_dict
from mcddpm.uncertainty import selfcheck
from mcddpm.uncertainty.calibration import load_calibration
from mcddpm.uncertainty.surprise import centre, surprise

Row = dict[str, str]
SNR, SPIKE = 35.0, 0.1
USUAL, PERSON, COILS = "as in training", "T1, another person", "four coils"
CONTROLS = {"T2": PERSON, "PD": PERSON, "line lost by one of four coils": COILS}


def scans(count: int) -> dict[str, Callable[[int], tuple[Tensor, Callable[[Tensor, Tensor, int], Tensor] | None]]]:
    """Kind -> the k-th slice's magnitude, and what happens to its measurement."""
    test = Slices.open(prepare("brain", "test", 192))
    places = [round(k * (len(test) - 1) / (count - 1)) for k in range(count)]
    contrasts = prepare("brain-contrasts", "test", 192)
    rows = json.loads(contrasts.with_suffix(".json").read_text())["slices"]
    others, ellipses = Slices.open(contrasts), drawn(count, 192, seed=5, real=True)

    def contrast(name: str) -> Callable[[int], tuple[Tensor, None]]:
        own = [k for k, row in enumerate(rows) if f"-{name}." in row["file"]]
        return lambda k: (others[own[round(k * (len(own) - 1) / (count - 1))]], None)

    return {
        USUAL: lambda k: (test[places[k]], None),
        PERSON: contrast("T1"),
        "T2": contrast("T2"),
        "PD": contrast("PD"),
        "intensities turned round": lambda k: (turned(test[places[k]]), None),
        "ellipses": lambda k: (ellipses[k].abs(), None),
        "wrong mask": lambda k: (test[places[k]], wrong_mask),
        "spike": lambda k: (test[places[k]], partial(spike, inside=False)),
        "spike in the centre": lambda k: (test[places[k]], partial(spike, inside=True)),
        "lost line": lambda k: (test[places[k]], partial(lost_line, inside=False)),
        "lost line in the centre": lambda k: (test[places[k]], partial(lost_line, inside=True)),
        "line of noise": lambda k: (test[places[k]], partial(line_of_noise, inside=False)),
        "line of noise in the centre": lambda k: (test[places[k]], partial(line_of_noise, inside=True)),
        COILS: lambda k: (test[places[k]], None),
        "line lost by one of four coils": lambda k: (test[places[k]], lost_by_one_coil),
    }


def turned(x: Tensor) -> Tensor:
    """Bright is dark and dark is bright, inside the head."""
    return torch.where(x > 0.1 * x.max(), 1.1 * x.max() - x, x)


def wrong_mask(y_m: Tensor, mask: Tensor, seed: int) -> Tensor:
    """What was measured outside the centre lies in other columns than the mask says."""
    free = (mask & ~centre(mask)).nonzero().flatten()
    moved = y_m.clone()
    moved[:, free] = y_m[:, free.roll(1)]
    return moved


def a_line(mask: Tensor, seed: int, inside: bool) -> Tensor:
    """Any measured column of the centre, or any outside of it."""
    middle = centre(mask)
    places = (mask & (middle if inside else ~middle)).nonzero().flatten()
    return places[torch.randint(len(places), (1,), generator=torch.Generator().manual_seed(seed))]


def spike(y_m: Tensor, mask: Tensor, seed: int, inside: bool) -> Tensor:
    """To one entry, a tenth of the largest is added."""
    row = torch.randint(y_m.shape[0], (1,), generator=torch.Generator().manual_seed(seed + 1))
    struck = y_m.clone()
    struck[row, a_line(mask, seed, inside)] += SPIKE * y_m.abs().max()
    return struck


def lost_line(y_m: Tensor, mask: Tensor, seed: int, inside: bool) -> Tensor:
    """One column is zero."""
    lost = y_m.clone()
    lost[:, a_line(mask, seed, inside)] = 0
    return lost


def lost_by_one_coil(y_m: Tensor, mask: Tensor, seed: int) -> Tensor:
    lost = y_m.clone()
    lost[seed % len(y_m)] = lost_line(lost[seed % len(y_m)], mask, seed, inside=False)
    return lost


def line_of_noise(y_m: Tensor, mask: Tensor, seed: int, inside: bool) -> Tensor:
    """One column holds noise alone, as strong as that at the edge of k-space, where there is little else."""
    lost, column = y_m.clone(), a_line(mask, seed, inside)
    outermost = y_m[: len(y_m) // 16][:, mask & ~centre(mask)]
    std = float(outermost.abs().square().median() / (2 * math.log(2))) ** 0.5  # in each part
    lost[:, column] = complex_noise((len(y_m), 1), std, seed % 2**31)
    return lost


def measured(x: Tensor, change: Callable | None, acceleration: int, k: int, coils: int = 0) -> Measurement:
    seed = seed_of(11, k, acceleration)
    A: Operator = Sense(coil_maps(coils, (x.shape[-2], x.shape[-1]), seed % 2**31)) if coils else Fourier()
    mask = masks.random_columns(x.shape[-1], acceleration=acceleration, seed=seed % 2**31)
    y = A(scan(x, seed % 2**31, snr=SNR)).masked_fill(~mask, 0)
    return measure(y if change is None else change(y, mask, seed), mask, A)


def auc(usual: list[float], unusual: list[float]) -> float:
    a, b = np.array(usual), np.array(unusual)
    return float((b[:, None] > a).mean() + 0.5 * (b[:, None] == a).mean())


def told(usual: list[float], unusual: list[float]) -> str:
    """The area and its 95 % interval: slices are drawn again, the k-th of both together."""
    rng, pairs = np.random.default_rng(0), np.stack([usual, unusual])
    drawn = [auc(*pairs[:, rng.integers(len(usual), size=len(usual))]) for _ in range(2000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{auc(usual, unusual):.2f} ({low:.2f} to {high:.2f})"


def results(
    model: Denoiser, folder: Path, count: int, acceleration: int
) -> Iterator[tuple[str, list[dict[str, float]]]]:
    known = load_calibration(model).checked
    for kind, source in scans(count).items():
        found = []
        for k in range(count):
            path = folder / f"{kind.replace(' ', '_')}-{acceleration}x-{k:03d}-of-{count}.json"
            if not path.exists():
                x, change = source(k)
                m = measured(x, change, acceleration, k, coils=4 if COILS in (kind, CONTROLS.get(kind)) else 0)
                statistics = surprise(model, m, known.plan, seed=k).statistics
                files.write_json(path, statistics)
            found.append(json.loads(path.read_text()))
        yield kind, found


def rows(model: Denoiser, folder: Path, count: int, acceleration: int) -> Iterator[list[Row]]:
    """Of one kind after the other, a row a slice."""
    calibration = load_calibration(model)
    usual, _ = calibration.checked.at(acceleration)
    of = {"weights": calibration.checked.model[:16], "calibration": files.fingerprint(to_dict(calibration.checked))}
    for kind, found in results(model, folder, count, acceleration):
        told = [(f"{usual.score(one):.6g}", f"{usual.p_value(one):.6g}", usual.reason(one)) for one in found]
        yield [
            {"kind": kind, "slice": str(k), "score": s, "p": p, "seen by": by} | of for k, (s, p, by) in enumerate(told)
        ]


def line(known: list[Row], kind: str, acceleration: int) -> str:
    """A line of the table. `known`: rows of this kind, of the usual ones and of its control."""
    own = [row for row in known if row["kind"] == kind]

    def against(other: str) -> str:
        return told(*([float(row["score"]) for row in known if row["kind"] == which] for which in (other, kind)))

    area = against(USUAL) if kind != USUAL else ""
    beside = f"{against(CONTROLS[kind])}, {CONTROLS[kind]}" if kind in CONTROLS else ""
    flagged = np.mean([float(row["p"]) <= selfcheck.ALARM for row in own])
    seen = ", ".join(name for name, _ in Counter(row["seen by"] for row in own).most_common(2))
    return f"| {acceleration}x {kind} | {area} | {beside} | {flagged:.2f} | {seen} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--accelerations", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--out", type=Path, default=catalogue.cache() / "benchmarks" / "selfcheck")
    asked = parser.parse_args()
    model = load_model(asked.model)
    assert isinstance(model, Denoiser)
    known = load_calibration(model).checked
    how = "-".join(map(str, astuple(known.plan)))
    folder = asked.out / f"{known.version}-{known.model[:12]}-{how}"
    folder.mkdir(parents=True, exist_ok=True)
    calls = known.folds * known.samples * known.steps
    print(f"model {known.model[:12]}, {asked.count} slices of each kind, {calls} calls a slice\n")
    print("| | area under the ROC curve | against its control | flagged at p <= 0.05 | seen by |")
    print("|---|---|---|---|---|")
    for acceleration in asked.accelerations:
        found: list[Row] = []
        for of_kind in rows(model, folder, asked.count, acceleration):
            found += of_kind
            print(line(found, of_kind[0]["kind"], acceleration), flush=True)
        with files.whole(asked.out / f"rows-{acceleration}x.csv") as part, part.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
