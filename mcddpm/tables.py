"""Rows -> tables, in Markdown and LaTeX: the paper's Table 1 and the two of its supplement, paired gains, and costs."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mcddpm import metrics
from mcddpm.calibration import LEVELS

FORMAT = {"psnr": ".2f", "ssim": ".3f", "nmse": ".4f", "mse": ".2e"}
HIGHER_IS_BETTER = {"psnr": True, "ssim": True, "nmse": False, "mse": False}
BLOCK = 6  # slices
Key = tuple[str, str, float]  # label, method, acceleration


@dataclass(frozen=True)
class Table:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self.head), "|" + "---|" * len(self.head)]
        return "\n".join([*lines, *(_line(row) for row in self.rows)]) + "\n"

    def latex(self) -> str:
        body = " \\\\\n".join(" & ".join(_tex(cell) for cell in row) for row in (self.head, *self.rows))
        columns = "l" * 2 + "c" * (len(self.head) - 2)
        return f"% {self.title}\n\\begin{{tabular}}{{{columns}}}\n{body} \\\\\n\\end{{tabular}}\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _tex(cell: str) -> str:
    text = cell.replace("%", r"\%").replace("_", r"\_").replace("±", r"$\pm$")
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)


class Results:
    """Rows of an evaluation, and its images by volume."""

    def __init__(self, out: Path) -> None:
        with (out / "rows.csv").open() as file:
            self.rows = list(csv.DictReader(file))
        self.out = out
        self.labels, self.methods, self.protocols = (
            list(dict.fromkeys(row[key] for row in self.rows)) for key in ("label", "method", "protocol")
        )
        self.accelerations = sorted({float(row["acceleration"]) for row in self.rows})

    def of(self, key: Key) -> list[dict[str, str]]:
        """The rows of one label, method and acceleration, in order."""
        return [row for row in self.rows if (row["label"], row["method"], float(row["acceleration"])) == key]

    def runs(self) -> list[Key]:
        """Labels, accelerations and methods that were run together, in this order."""
        every = ((x, m, a) for x in self.labels for a in self.accelerations for m in self.methods)
        return [key for key in every if self.of(key)]

    def slices(self, key: Key, name: str) -> np.ndarray:
        """A metric on each slice."""
        return np.array([float(row[f"{name}_slice"]) for row in self.of(key)])

    def volumes(self, key: Key, name: str) -> np.ndarray:
        """A metric on each volume."""
        label, method, acceleration = key
        found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for row in self.of(key):
            case = f"{label}-{row['volume']}-{int(row['slice']):04d}-{acceleration:g}x".replace("/", "_")
            with np.load(self.out / "parts" / method / f"{case}.npz", allow_pickle=False) as part:
                found.setdefault(row["volume"], []).append((part["mean"], part["target"]))
        values = []
        for images in found.values():
            mean, target = (torch.from_numpy(np.stack(stack)) for stack in zip(*images, strict=True))
            values.append(float(metrics.METRICS[name](mean, target, volume=True)))
        return np.array(values)

    def cost(self, key: Key) -> tuple[str, str]:
        """Network calls a slice, and the median of seconds a slice."""
        rows = self.of(key)
        calls = "/".join(sorted({row["calls"] for row in rows}, key=int))
        return calls, f"{np.median([float(row['seconds']) for row in rows]):.2f}"


def interval(values: np.ndarray) -> float:
    """Half of the 95 % interval of the mean, by Student's quantile. Neighbouring slices are alike: where there are
    enough, the spread is that of the means of BLOCK slices in a row."""
    from scipy.stats import t

    blocks = len(values) // BLOCK
    known = np.array([part.mean() for part in np.array_split(values, blocks)]) if blocks >= 3 else values
    n = len(known)
    return float(t.ppf(0.975, n - 1) * known.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan


def tables(out: Path, reference: str = "") -> list[Table]:
    """reference: the method whose gains are shown."""
    results = Results(out)
    made = [_paper(results, reference), _quality(results, "volumes"), _quality(results, "slices")]
    made += [_paired(results, reference)] if reference else []
    drawn = [key for key in results.runs() if results.of(key)[0]["spread_foreground"]]
    return [*made, _calibration(results, drawn)] if drawn else made


def _told(results: Results) -> str:
    return f"protocol {', '.join(results.protocols)}"


def _paper(results: Results, reference: str) -> Table:
    """Volumes: PSNR and SSIM of every method, what they cost, and gains over the reference, averaged over labels."""
    pairs = list(dict.fromkeys((label, method) for label, method, _ in results.runs()))
    others = [m for m in results.methods if m != reference and all((x, m) in pairs for x in results.labels)]
    others = others if reference and all((x, reference) in pairs for x in results.labels) else []
    head = ["", "", *(f"{label} {method}" for label, method in pairs), *(f"{m} - {reference}" for m in others)]
    rows = []
    for a in results.accelerations:
        for name in ("psnr", "ssim"):
            value = {(x, m): _mean(results.volumes((x, m, a), name)) for x, m in pairs}
            cells = [_best(value[x, m], [value[p] for p in pairs if p[0] == x], name) for x, m in pairs]
            gains = [np.mean([value[x, m] - value[x, reference] for x in results.labels]) for m in others]
            rows.append([f"{a:g}x", name.upper(), *cells, *(f"{gain:+{FORMAT[name]}}" for gain in gains)])
        costs = [results.cost((x, m, a)) if results.of((x, m, a)) else ("", "") for x, m in pairs]
        for k, what in enumerate(("calls", "seconds")):
            rows.append([f"{a:g}x", what, *(cost[k] for cost in costs), *("" for _ in others)])
    return Table(f"Table 1: volumes, {_told(results)}; network calls and seconds a slice", head, rows)


def _quality(results: Results, what: str) -> Table:
    """Every metric on slices (mean and its 95 % interval) or volumes (mean), with the cost of a slice."""
    values = results.slices if what == "slices" else results.volumes
    found = {key: {name: values(key, name) for name in metrics.METRICS} for key in results.runs()}
    rows = []
    for key, quality in found.items():
        label, method, acceleration = key
        rivals = [other for other in found if (other[0], other[2]) == (label, acceleration)]
        cells = []
        for name, value in quality.items():
            cell = _best(float(value.mean()), [float(found[rival][name].mean()) for rival in rivals], name)
            cells.append(f"{cell} ± {interval(value):{FORMAT[name]}}" if what == "slices" else cell)
        rows.append([label, f"{acceleration:g}x", method, *cells, str(len(value)), *results.cost(key)])
    head = ["", "", "method", *(name.upper() for name in metrics.METRICS), what, "calls", "seconds"]
    return Table(f"All metrics on {what}, {_told(results)}", head, rows)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _best(value: float, among: Sequence[float], name: str) -> str:
    """A number, bold if it is the best; nothing if there is none."""
    if math.isnan(value):
        return ""
    best = (max if HIGHER_IS_BETTER[name] else min)(v for v in among if not math.isnan(v))
    return f"**{value:{FORMAT[name]}}**" if value == best else f"{value:{FORMAT[name]}}"


def _paired(results: Results, reference: str) -> Table:
    """Slice by slice: the difference to the reference, and the 95 % interval of its mean."""
    rows = []
    for label, method, acceleration in results.runs():
        if method == reference or not results.of((label, reference, acceleration)):
            continue
        cells = []
        for name in ("psnr", "ssim"):
            ours, theirs = (results.slices((label, m, acceleration), name) for m in (method, reference))
            gap = ours - theirs
            cells.append(f"{gap.mean():+{FORMAT[name]}} ± {interval(gap):{FORMAT[name]}}")
        rows.append([label, f"{acceleration:g}x", method, *cells, *results.cost((label, method, acceleration))])
    head = ["", "", "method", "PSNR", "SSIM", "calls", "seconds"]
    return Table(f"Slice by slice against {reference}, {_told(results)}", head, rows)


def _calibration(results: Results, drawn: Sequence[Key]) -> Table:
    """Methods that draw samples: what intervals hold before and after calibration, the worst slice at 90 %, more."""
    levels = [f"{100 * level:g}" for level in LEVELS]
    rows = []
    for key in drawn:
        label, method, acceleration = key
        found = results.of(key)

        def cell(column: str, scale: float = 1.0, form: str = ".1f", found: list[dict[str, str]] = found) -> str:
            """Pooled over pixels; of 90 %, the worst slice's too."""
            known = [row for row in found if row.get(f"{column}_foreground")]
            values = scale * np.array([float(row[f"{column}_foreground"]) for row in known])
            if not known:
                return "-"
            pooled = np.average(values, weights=[float(row["pixels_foreground"]) for row in known])
            return f"{pooled:{form}}" + (f" ({values.min():{form}})" if column.endswith("_90") else "")

        before, after = ([cell(f"{kind}_{level}", 100) for level in levels] for kind in ("coverage", "conformal"))
        more = [cell("spread", form=".2f"), cell("correlation", form=".2f"), cell("law", form=".2f")]
        rows.append([label, f"{acceleration:g}x", method, *before, *after, *more])
    head = ["", "", "method", *(f"{v} %" for v in levels), *(f"{v} %, calibrated" for v in levels)]
    title = "What intervals hold, in % of the foreground's pixels (in the worst slice); spread, correlation, sample law"
    return Table(f"{title}, {_told(results)}", [*head, "spread", "correlation", "law"], rows)


def write_tables(out: Path, reference: str = "") -> Path:
    made = tables(out, reference)
    (out / "tables.tex").write_text("\n".join(table.latex() for table in made))
    path = out / "tables.md"
    path.write_text("\n".join(table.markdown() for table in made))
    return path
