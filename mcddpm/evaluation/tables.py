"""Rows -> tables, in Markdown and LaTeX: the paper's Table 1 and the two of its supplement, paired gains, and costs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mcddpm.evaluation.results import EVERYWHERE, FOREGROUND, PSNR, SSIM, Key, Metric, Results, interval
from mcddpm.evaluation.rows import Intervals, Region, Row
from mcddpm.system import files
from mcddpm.uncertainty.scores import LEVELS, Scores, bootstrap, percent, pooled

REGIONS: dict[Region, str] = {"foreground": "foreground", "whole": "whole image"}
TRUTHS = {"measured": "as measured", "clean": "without its noise"}
COSTS = ("calls (+ self-check)", "seconds (+ self-check)")


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
    text = re.sub(r"[%_&#$]", lambda result: rf"\{result[0]}", cell).replace("±", r"$\pm$")
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)


def tables(out: Path, reference: str = "", shown: Collection[str] = (), ours: str = "") -> list[Table]:
    """reference: the method whose gains are shown. shown: those in Table 1; all unless told. ours: the method that is
    held against every other."""
    results = Results(out)
    made = [paper_table(results, reference, shown or results.methods), quality_table(results, "volumes")]
    made += [quality_table(results, "slices"), paired_table(results, reference, ours)]
    drawn = [key for key in results.runs() if results.of(key)[0].scores]
    doubts = [
        table(results, drawn, region) for table in (interval_table, spread_table) for region in ("foreground", "whole")
    ]
    return [table for table in (*made, *(doubts if drawn else ())) if table.rows]


def _told(results: Results) -> str:
    truths = " and ".join(TRUTHS[truth] for truth in results.truths)
    return f"protocol {', '.join(results.protocols)}; truth: the scan {truths}"


def _within(results: Results) -> str:
    kinds = dict.fromkeys(results.grouping(key)[0] for key in results.runs())
    return f"{_told(results)}; ± over {', '.join(kinds)}"


def paper_table(results: Results, reference: str, shown: Collection[str]) -> Table:
    """Volumes: PSNR and SSIM of every method, what they cost, and gains over the reference, averaged over the labels
    that have both."""
    pairs = list(dict.fromkeys((label, method) for label, method, _ in results.runs() if method in shown))
    others = [m for m in dict.fromkeys(m for _, m in pairs) if reference in results.methods and m != reference]
    theirs = [(label, reference) for label in results.labels] if others else []
    head = ["", "", *(f"{label} {method}" for label, method in pairs), *(f"{m} - {reference}" for m in others)]
    rows = []
    for a in results.accelerations:
        for metric in (PSNR, SSIM):
            value = {(x, m): _mean(results.volumes((x, m, a), metric)) for x, m in (*pairs, *theirs)}
            cells = [_best(value[x, m], [value[p] for p in pairs if p[0] == x], metric) for x, m in pairs]
            gaps = [[value.get((x, m), math.nan) - value[x, reference] for x in results.labels] for m in others]
            gains = [_mean(np.array([gap for gap in own if not math.isnan(gap)])) for own in gaps]
            texts = ("" if math.isnan(gain) else metric.text(gain, "+") for gain in gains)
            rows.append([f"{a:g}x", metric.title, *cells, *texts])
        costs = [results.cost((x, m, a)) if results.of((x, m, a)) else ("", "") for x, m in pairs]
        for k, what in enumerate(("calls", "seconds")):
            rows.append([f"{a:g}x", what, *(cost[k] for cost in costs), *("" for _ in others)])
    return Table(f"Table 1: volumes, {_told(results)}; network calls and seconds a slice", head, rows)


def quality_table(results: Results, what: str) -> Table:
    """Every metric on slices (mean and its 95 % interval) or volumes (mean), with the cost of a slice."""
    values = results.slices if what == "slices" else results.volumes
    known = (*EVERYWHERE, *(FOREGROUND if what == "slices" else ()))
    result = {key: {metric: values(key, metric) for metric in known} for key in results.runs()}
    rows = []
    for key, quality in result.items():
        label, method, acceleration = key
        rivals = [other for other in result if (other[0], other[2]) == (label, acceleration)]
        cells = []
        for metric, value in quality.items():
            cell = _best(float(value.mean()), [float(result[rival][metric].mean()) for rival in rivals], metric)
            within = f" ± {metric.text(interval(value, results.groups(key)))}" if what == "slices" else ""
            cells.append(cell + within)
        rows.append([label, f"{acceleration:g}x", method, *cells, str(len(value)), *results.cost(key)])
    head = ["", "", "method", *(metric.title for metric in known), what, "calls", "seconds"]
    message = _within(results) if what == "slices" else _told(results)
    return Table(f"All metrics on {what}, {message}", head, rows)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _best(value: float, among: Sequence[float], metric: Metric) -> str:
    """A number, bold if it is the best; nothing if there is none."""
    if math.isnan(value):
        return ""
    best = (min if metric.lower_is_better else max)(v for v in among if not math.isnan(v))
    return f"**{metric.text(value)}**" if value == best else metric.text(value)


def paired_table(results: Results, reference: str, ours: str) -> Table:
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
            for metric in (PSNR, SSIM, *FOREGROUND):
                gap = results.slices(own, metric) - results.slices(theirs, metric)
                within = metric.text(interval(gap, results.groups(own)))
                cells.append(f"{metric.text(float(gap.mean()), '+')} ± {within}")
            costs = map(" / ".join, zip(results.cost(own), results.cost(theirs), strict=True))
            rows.append([label, f"{acceleration:g}x", method, other, *cells, *costs])
    titles = [metric.title for metric in (PSNR, SSIM, *FOREGROUND)]
    head = ["", "", "method", "against", *titles, "calls of both", "seconds of both"]
    return Table(f"Slice by slice, {_within(results)}", head, rows)


# --- error bars -----------------------------------------------------------------------------------------------------


def _drawn(row: Row, region: Region) -> Intervals:
    """Intervals of samples as they were drawn."""
    result = row.scores[region]
    return Intervals(result.coverage, result.width_90)


WAYS: dict[str, Callable[[Row, Region], Intervals]] = {
    "as drawn": _drawn,
    "calibrated": lambda row, region: row.conformal.get(region, Intervals()),
    "with self-check": lambda row, region: row.adaptive.get(region, Intervals()),
}


def interval_table(results: Results, drawn: Sequence[Key], region: Region) -> Table:
    """Methods that draw samples: coverage of intervals before and after calibration, over all pixels of all slices,
    with a 95 % interval; and the worst slice."""
    some = any(results.of(key)[0].adaptive for key in drawn)
    ways = list(WAYS) if some else list(WAYS)[:2]
    rows = []
    for key in drawn:
        label, method, acceleration = key
        result = results.of(key)
        several = len({row.volume for row in result}) > 1
        places = [f"{row.volume} {row.slice}" if several else str(row.slice) for row in result]
        for level in LEVELS:
            cells = []
            for way in ways:
                values = [WAYS[way](row, region).coverage.get(percent(level)) for row in result]
                if None in values:
                    cells += ["-", "-"]
                    continue
                covered = 100 * np.array(values, float)
                part, within = pooled_over(covered, pixel_weights(result, region), results.groups(key))
                worst = int(covered.argmin())
                cells += [f"{part:.1f} ± {within:.1f}", f"{covered[worst]:.1f} ({places[worst]})"]
            rows.append([label, f"{acceleration:g}x", method, f"{100 * level:g} %", *cells, *results.whole_cost(key)])
    head = ["", "", "method", "level", *(cell for way in ways for cell in (f"{way}, %", "worst slice")), *COSTS]
    return Table(f"Coverage of intervals, {REGIONS[region]}, in % of its pixels, {_within(results)}", head, rows)


def pooled_over(
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


def spread_table(results: Results, drawn: Sequence[Key], region: Region) -> Table:
    """Over all pixels of all slices: what std expects by what is met. Means over slices: the rank correlation of std
    and |error|, the area of the sparsification curve, CRPS and the width of 90 % intervals (as drawn and, where there
    are any, calibrated and with the self-check) by the root mean square of the mean's error; and how many slices' rank
    histograms are uneven."""
    rows = []
    for key in drawn:
        label, method, acceleration = key
        result, groups = results.of(key), results.groups(key)
        own = [row.scores[region] for row in result]

        def column(of: Callable[[Scores], float], own: Sequence[Scores] = own) -> np.ndarray:
            return np.array([of(one) for one in own])

        squared_error = column(lambda s: s.squared_error)
        energies = np.column_stack([column(lambda s: s.variance), squared_error])
        law = partial(_law, samples=result[0].samples)
        cells = [pooled_over(energies, pixel_weights(result, region), groups, partial(law, which=k)) for k in (0, 1)]
        relative = column(lambda s: s.crps) / np.sqrt(squared_error)
        for values in (column(lambda s: s.correlation), column(lambda s: s.sparsification), relative):
            cells.append(pooled_over(values, [1.0] * len(result), groups))
        widths = [[way(row, region).width_90 for row in result] for way in WAYS.values()]
        wide = [np.array(w, float) / np.sqrt(squared_error) for w in widths if None not in w]
        uneven = f"{int((column(lambda s: s.rank_p) <= 0.05).sum())} of {len(result)}"
        uneven = uneven if result[0].samples >= 19 else "-"  # of N samples' ranks, p is 1 / (N + 1) or more
        widths_told = ", ".join(f"{w.mean():.2f}" for w in wide)
        numbers = [*(f"{v:.2f} ± {half:.2f}" for v, half in cells), widths_told, uneven, *results.whole_cost(key)]
        rows.append([label, f"{acceleration:g}x", method, *numbers])
    head = ["", "", "method", "spread", "sample law", "correlation of std and error", "sparsification"]
    head += ["CRPS / error", "90 % width / error: drawn, calibrated, self-check", "uneven ranks", *COSTS]
    message = "Is std as large as the error (then spread and law are 1)"
    return Table(f"{message}, {REGIONS[region]}, {_within(results)}", head, rows)


def _law(means: np.ndarray, which: int, samples: int) -> float:
    """spread or law, of a mean variance and a mean squared error."""
    return pooled(float(means[0]), float(means[1]), samples)[which]


def pixel_weights(rows: Sequence[Row], region: Region) -> list[float]:
    """How many pixels of each slice count."""
    return [float(row.pixels_foreground or 0) if region == "foreground" else 1.0 for row in rows]


def write_tables(out: Path, reference: str = "", shown: Collection[str] = (), ours: str = "") -> Path:
    made, path = tables(out, reference, shown, ours), out / "tables.md"
    for target, form in ((path.with_suffix(".tex"), Table.latex), (path, Table.markdown)):
        files.write_text(target, "\n".join(map(form, made)))
    return path
