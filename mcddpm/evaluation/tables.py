"""Rows -> tables, in Markdown and LaTeX: the paper's Table 1 and the two of its supplement, paired gains, and costs."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from mcddpm import metrics
from mcddpm.data.cases import name_of
from mcddpm.system import files
from mcddpm.uncertainty.scores import LEVELS, bootstrap, pooled

INSIDE = {"psnr_foreground": "PSNR, foreground", "ssim_foreground": "SSIM, foreground"}
FORMAT = {"psnr": ".2f", "ssim": ".3f", "nmse": ".4f", "mse": ".2e", "psnr_foreground": ".2f", "ssim_foreground": ".3f"}
REGIONS = {"foreground": "foreground", "whole": "whole image"}
LOWER_IS_BETTER = ("nmse", "mse")
COSTS = ("calls (+ self-check)", "seconds (+ self-check)")
BLOCK = 18  # slices of a volume that count as one, for neighbours are alike
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
        lines = [r"\begin{table}", rf"\caption{{{_tex(self.title)}}}", rf"\begin{{tabular}}{{{columns}}}"]
        return "\n".join([*lines, rf"{body} \\", r"\end{tabular}", r"\end{table}"]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _tex(cell: str) -> str:
    text = re.sub(r"[%_&#$]", lambda found: rf"\{found[0]}", cell).replace("±", r"$\pm$")
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
        column = name if name in INSIDE else f"{name}_slice"
        return np.array([float(row[column]) for row in self.of(key)])

    def grouping(self, key: Key) -> tuple[str, list[str]]:
        """What is taken to be independent, and which of them each slice is of: volumes, if there are three; else blocks
        of a volume, if there are three; else slices, for want of better."""
        rows = self.of(key)
        slices = [f"{row['volume']} {row['slice']}" for row in rows]
        blocks = [f"{row['volume']} {int(row['slice']) // BLOCK}" for row in rows]
        found = {"volumes": [row["volume"] for row in rows], f"blocks of {BLOCK} slices": blocks}
        return next(((name, groups) for name, groups in found.items() if len(set(groups)) >= 3), ("slices", slices))

    def groups(self, key: Key) -> list[str]:
        return self.grouping(key)[1]

    @cache  # noqa: B019 (all that is read is read for this table)
    def volumes(self, key: Key, name: str) -> np.ndarray:
        """A metric on each volume."""
        label, method, acceleration = key
        found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for row in self.of(key):
            case = name_of(label, row["volume"], int(row["slice"]), acceleration)
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

    def whole_cost(self, key: Key) -> tuple[str, str]:
        """The same, and what the self-check took beside it, where there was one; "-" where that was not kept."""
        rows, cost = [row for row in self.of(key) if row["self_check_calls"]], self.cost(key)
        if not rows:
            return cost
        calls = "/".join(sorted({row["self_check_calls"] for row in rows}, key=int))
        known = [float(row["self_check_seconds"]) for row in rows if row["self_check_seconds"]]
        return f"{cost[0]} + {calls}", f"{cost[1]} + {np.median(known):.2f}" if known else f"{cost[1]} + -"


def interval(values: np.ndarray, groups: Sequence[object] = ()) -> float:
    """Half of the 95 % interval of the mean, by Student's quantile, of the means of groups where they are given."""
    from scipy.stats import t

    labels = np.unique([str(group) for group in groups], return_inverse=True)[1] if len(groups) else range(len(values))
    known = np.array([values[np.asarray(labels) == k].mean() for k in dict.fromkeys(labels)])
    n = len(known)
    return float(t.ppf(0.975, n - 1) * known.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan


def tables(out: Path, reference: str = "", shown: Collection[str] = (), ours: str = "") -> list[Table]:
    """reference: the method whose gains are shown. shown: those in Table 1; all unless told. ours: the method that is
    held against every other."""
    results = Results(out)
    made = [
        _paper(results, reference, shown or results.methods),
        _quality(results, "volumes"),
        _quality(results, "slices"),
    ]
    drawn = [key for key in results.runs() if results.of(key)[0]["spread_foreground"]]
    made += [_paired(results, reference, ours)]
    doubts = [table(results, drawn, region) for table in (_intervals, _spread) for region in ("foreground", "whole")]
    return [table for table in (*made, *(doubts if drawn else ())) if table.rows]


def _told(results: Results) -> str:
    return f"protocol {', '.join(results.protocols)}"


def _within(results: Results) -> str:
    kinds = dict.fromkeys(results.grouping(key)[0] for key in results.runs())
    return f"{_told(results)}; ± over {', '.join(kinds)}"


def _paper(results: Results, reference: str, shown: Collection[str]) -> Table:
    """Volumes: PSNR and SSIM of every method, what they cost, and gains over the reference, averaged over the labels
    that have both."""
    pairs = list(dict.fromkeys((label, method) for label, method, _ in results.runs() if method in shown))
    others = [m for m in dict.fromkeys(m for _, m in pairs) if reference in results.methods and m != reference]
    theirs = [(label, reference) for label in results.labels] if others else []
    head = ["", "", *(f"{label} {method}" for label, method in pairs), *(f"{m} - {reference}" for m in others)]
    rows = []
    for a in results.accelerations:
        for name in ("psnr", "ssim"):
            value = {(x, m): _mean(results.volumes((x, m, a), name)) for x, m in (*pairs, *theirs)}
            cells = [_best(value[x, m], [value[p] for p in pairs if p[0] == x], name) for x, m in pairs]
            gaps = [[value.get((x, m), math.nan) - value[x, reference] for x in results.labels] for m in others]
            gains = [_mean(np.array([gap for gap in own if not math.isnan(gap)])) for own in gaps]
            told = ("" if math.isnan(gain) else f"{gain:+{FORMAT[name]}}" for gain in gains)
            rows.append([f"{a:g}x", name.upper(), *cells, *told])
        costs = [results.cost((x, m, a)) if results.of((x, m, a)) else ("", "") for x, m in pairs]
        for k, what in enumerate(("calls", "seconds")):
            rows.append([f"{a:g}x", what, *(cost[k] for cost in costs), *("" for _ in others)])
    return Table(f"Table 1: volumes, {_told(results)}; network calls and seconds a slice", head, rows)


def _quality(results: Results, what: str) -> Table:
    """Every metric on slices (mean and its 95 % interval) or volumes (mean), with the cost of a slice."""
    values = results.slices if what == "slices" else results.volumes
    names = (*metrics.METRICS, *(INSIDE if what == "slices" else ()))
    found = {key: {name: values(key, name) for name in names} for key in results.runs()}
    rows = []
    for key, quality in found.items():
        label, method, acceleration = key
        rivals = [other for other in found if (other[0], other[2]) == (label, acceleration)]
        cells = []
        for name, value in quality.items():
            cell = _best(float(value.mean()), [float(found[rival][name].mean()) for rival in rivals], name)
            within = f" ± {interval(value, results.groups(key)):{FORMAT[name]}}" if what == "slices" else ""
            cells.append(cell + within)
        rows.append([label, f"{acceleration:g}x", method, *cells, str(len(value)), *results.cost(key)])
    head = ["", "", "method", *(INSIDE.get(name, name.upper()) for name in names), what, "calls", "seconds"]
    told = _within(results) if what == "slices" else _told(results)
    return Table(f"All metrics on {what}, {told}", head, rows)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _best(value: float, among: Sequence[float], name: str) -> str:
    """A number, bold if it is the best; nothing if there is none."""
    if math.isnan(value):
        return ""
    best = (min if name in LOWER_IS_BETTER else max)(v for v in among if not math.isnan(v))
    return f"**{value:{FORMAT[name]}}**" if value == best else f"{value:{FORMAT[name]}}"


def _paired(results: Results, reference: str, ours: str) -> Table:
    """Slice by slice: every method against the reference, and ours against every other; the mean of the differences
    and its 95 % interval, and what both cost."""
    rows = []
    for label, method, acceleration in results.runs():
        others = results.methods if method == ours else [reference]
        for other in others:
            theirs, own = ((label, m, acceleration) for m in (other, method))
            if other == method or not results.of(theirs):
                continue
            cells = []
            for name in ("psnr", "ssim", *INSIDE):
                gap = results.slices(own, name) - results.slices(theirs, name)
                cells.append(f"{gap.mean():+{FORMAT[name]}} ± {interval(gap, results.groups(own)):{FORMAT[name]}}")
            costs = map(" / ".join, zip(results.cost(own), results.cost(theirs), strict=True))
            rows.append([label, f"{acceleration:g}x", method, other, *cells, *costs])
    head = ["", "", "method", "against", "PSNR", "SSIM", *INSIDE.values(), "calls of both", "seconds of both"]
    return Table(f"Slice by slice, {_within(results)}", head, rows)


def _intervals(results: Results, drawn: Sequence[Key], region: str) -> Table:
    """Methods that draw samples: what intervals hold before and after calibration, over all pixels of all slices, with
    a 95 % interval; and the worst slice."""
    some = any(results.of(key)[0].get("adaptive_50_foreground") for key in drawn)
    kinds = ("coverage", "conformal", "adaptive") if some else ("coverage", "conformal")
    rows = []
    for key in drawn:
        label, method, acceleration = key
        found = results.of(key)
        several = len({row["volume"] for row in found}) > 1
        places = [f"{row['volume']} {row['slice']}" if several else row["slice"] for row in found]
        for level in LEVELS:
            cells = []
            for kind in kinds:
                values = [row.get(f"{kind}_{round(100 * level)}_{region}") for row in found]
                if not all(values):
                    cells += ["-", "-"]
                    continue
                held = 100 * np.array(values, float)
                part, within = _pooled(held, _weights(found, region), results.groups(key))
                worst = int(held.argmin())
                cells += [f"{part:.1f} ± {within:.1f}", f"{held[worst]:.1f} ({places[worst]})"]
            rows.append([label, f"{acceleration:g}x", method, f"{100 * level:g} %", *cells, *results.whole_cost(key)])
    head = ["", "", "method", "level", "holds, %", "worst slice", "calibrated holds, %", "worst slice"]
    head += ["with self-check holds, %", "worst slice"] if some else []
    head += COSTS
    return Table(f"What intervals hold of the {REGIONS[region]}, in % of its pixels, {_within(results)}", head, rows)


def _pooled(
    values: np.ndarray,
    weights: Sequence[float],
    groups: Sequence[object],
    then: Callable[[np.ndarray], float] = lambda means: float(means[0]),
) -> tuple[float, float]:
    """Means weighted by pixels, values being (slices,) or (slices, several), and what is made of them; and half of the
    width of its bootstrap interval over groups."""
    both = np.column_stack([values, np.asarray(weights)])

    def statistic(rows: np.ndarray) -> float:
        return then(np.average(rows[:, :-1], axis=0, weights=rows[:, -1]))

    if len(set(groups)) < 2:
        return statistic(both), math.nan
    low, high = bootstrap(both, groups, statistic=statistic)
    return statistic(both), (high - low) / 2


def _spread(results: Results, drawn: Sequence[Key], region: str) -> Table:
    """Over all pixels of all slices: what std expects by what is met. Means over slices: the rank correlation of std
    and |error|, the area of the sparsification curve, CRPS and the width of 90 % intervals (as drawn and, where there
    are any, calibrated and with the self-check) by the root mean square of the mean's error; and how many slices' rank
    histograms are uneven."""
    rows = []
    for key in drawn:
        label, method, acceleration = key
        found, groups = results.of(key), results.groups(key)
        names = ("variance", "squared_error", "correlation", "sparsification", "crps", "rank_p")
        columns = {name: np.array([float(row[f"{name}_{region}"]) for row in found]) for name in names}
        energies = np.column_stack([columns["variance"], columns["squared_error"]])
        law = partial(_law, samples=int(found[0]["samples"]))
        cells = [_pooled(energies, _weights(found, region), groups, partial(law, which=k)) for k in (0, 1)]
        relative = columns["crps"] / np.sqrt(columns["squared_error"])
        for values in (columns["correlation"], columns["sparsification"], relative):
            cells.append(_pooled(values, [1.0] * len(found), groups))
        widths = [[row.get(f"{kind}width_90_{region}") for row in found] for kind in ("", "conformal_", "adaptive_")]
        wide = [np.array(w, float) / np.sqrt(columns["squared_error"]) for w in widths if all(w)]
        uneven = f"{int((columns['rank_p'] <= 0.05).sum())} of {len(found)}"
        uneven = uneven if int(found[0]["samples"]) >= 19 else "-"  # of N samples' ranks, p is 1 / (N + 1) or more
        widths_told = ", ".join(f"{w.mean():.2f}" for w in wide)
        numbers = [*(f"{v:.2f} ± {half:.2f}" for v, half in cells), widths_told, uneven, *results.whole_cost(key)]
        rows.append([label, f"{acceleration:g}x", method, *numbers])
    head = ["", "", "method", "spread", "sample law", "correlation of std and error", "sparsification"]
    head += ["CRPS / error", "90 % width / error: drawn, calibrated, self-check", "uneven ranks", *COSTS]
    told = "Is std as large as the error (then spread and law are 1)"
    return Table(f"{told}, {REGIONS[region]}, {_within(results)}", head, rows)


def _law(means: np.ndarray, which: int, samples: int) -> float:
    """spread or law, of a mean variance and a mean squared error."""
    return pooled(float(means[0]), float(means[1]), samples)[which]


def _weights(rows: Sequence[dict[str, str]], region: str) -> list[float]:
    """How many pixels of each slice count."""
    return [float(row["pixels_foreground"]) if region == "foreground" else 1.0 for row in rows]


def write_tables(out: Path, reference: str = "", shown: Collection[str] = (), ours: str = "") -> Path:
    made, path = tables(out, reference, shown, ours), out / "tables.md"
    for target, form in ((path.with_suffix(".tex"), Table.latex), (path, Table.markdown)):
        with files.whole(target) as part:
            part.write_text("\n".join(map(form, made)))
    return path
