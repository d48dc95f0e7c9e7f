"""Rows -> tables, in Markdown and LaTeX: the paper's Table 1 and the two of its supplement, paired gains, and costs."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mcddpm import metrics

FORMAT = {"psnr": ".2f", "ssim": ".3f", "nmse": ".4f", "mse": ".2e"}
HIGHER_IS_BETTER = {"psnr": True, "ssim": True, "nmse": False, "mse": False}
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
        self.labels, self.methods = (list(dict.fromkeys(row[key] for row in self.rows)) for key in ("label", "method"))
        self.accelerations = sorted({float(row["acceleration"]) for row in self.rows})

    def slices(self, key: Key, name: str) -> np.ndarray:
        """A column of the rows of one label, method and acceleration, in order."""
        label, method, acceleration = key
        chosen = [r for r in self.rows if (r["label"], r["method"]) == (label, method)]
        return np.array([float(r[name]) for r in chosen if float(r["acceleration"]) == acceleration])

    def volumes(self, key: Key, name: str) -> np.ndarray:
        """A metric on each volume of one label, method and acceleration."""
        label, method, acceleration = key
        found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for row in self.rows:
            if (row["label"], row["method"], float(row["acceleration"])) == key:
                case = f"{label}-{row['volume']}-{int(row['slice']):04d}-{acceleration:g}x".replace("/", "_")
                with np.load(self.out / "parts" / method / f"{case}.npz", allow_pickle=False) as part:
                    found.setdefault(row["volume"], []).append((part["mean"], part["target"]))
        values = []
        for images in found.values():
            mean, target = (torch.from_numpy(np.stack(stack)) for stack in zip(*images, strict=True))
            values.append(float(metrics.METRICS[name](mean, target, volume=True)))
        return np.array(values)


def interval(values: np.ndarray) -> float:
    """Half of the 95 % interval of the mean, from the values' spread (which takes slices for independent)."""
    return 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def tables(out: Path, reference: str = "") -> list[Table]:
    results = Results(out)
    made = [_paper(results, reference)]
    made += [_quality(results, "volumes", results.volumes), _quality(results, "slices", results.slices)]
    made += [_paired(results, reference)] if reference else []
    return [*made, _cost(results)]


def _paper(results: Results, reference: str) -> Table:
    """Volumes: PSNR and SSIM of every method, and the gain of each over the reference, averaged over labels."""
    others = [method for method in results.methods if method != reference] if reference else []
    head = ["", "", *(f"{label} {m}" for label in results.labels for m in results.methods)]
    head += [f"{method} - {reference}" for method in others]
    rows = []
    for acceleration in results.accelerations:
        for name in ("psnr", "ssim"):
            value = {
                (label, m): float(results.volumes((label, m, acceleration), name).mean())
                for label in results.labels
                for m in results.methods
            }
            cells = [c for label in results.labels for c in _best([value[label, m] for m in results.methods], name)]
            gains = [np.mean([value[x, m] - value[x, reference] for x in results.labels]) for m in others]
            rows.append([f"{acceleration:g}x", name.upper(), *cells, *(f"{gain:+{FORMAT[name]}}" for gain in gains)])
    return Table("Table 1: volumes, and gains", head, rows)


def _quality(results: Results, what: str, values: Callable[[Key, str], np.ndarray]) -> Table:
    head = ["", "", *(f"{label} {method}" for label in results.labels for method in results.methods)]
    rows = []
    for acceleration in results.accelerations:
        for name in metrics.METRICS:
            cells: list[str] = []
            for label in results.labels:
                found = [values((label, method, acceleration), name) for method in results.methods]
                told = _best([float(v.mean()) for v in found], name)
                if what == "slices":
                    told = [f"{cell} ± {interval(v):{FORMAT[name]}}" for cell, v in zip(told, found, strict=True)]
                cells += told
            rows.append([f"{acceleration:g}x", name.upper(), *cells])
    return Table(f"All metrics on {what}", head, rows)


def _best(values: Sequence[float], name: str) -> list[str]:
    """The numbers, the best of them bold."""
    best = (max if HIGHER_IS_BETTER[name] else min)(values)
    return [f"**{v:{FORMAT[name]}}**" if v == best else f"{v:{FORMAT[name]}}" for v in values]


def _paired(results: Results, reference: str) -> Table:
    """Slice by slice: the difference to the reference, and the 95 % interval of its mean."""
    others = [method for method in results.methods if method != reference]
    rows = []
    for acceleration in results.accelerations:
        for label in results.labels:
            for name in ("psnr", "ssim"):
                base = results.slices((label, reference, acceleration), name)
                cells = []
                for method in others:
                    gap = results.slices((label, method, acceleration), name) - base
                    cells.append(f"{gap.mean():+{FORMAT[name]}} ± {interval(gap):{FORMAT[name]}}")
                rows.append([f"{acceleration:g}x", f"{label} {name.upper()}", *cells])
    return Table(f"Slice by slice against {reference}", ["", "", *others], rows)


def _cost(results: Results) -> Table:
    rows = []
    for method in results.methods:
        chosen = [row for row in results.rows if row["method"] == method]
        calls, samples = {row["calls"] for row in chosen}, {row["samples"] for row in chosen}
        seconds = float(np.median([float(row["seconds"]) for row in chosen]))
        rows.append([method, "/".join(sorted(samples)), "/".join(sorted(calls)), f"{seconds:.2f}"])
    return Table("Cost of a slice", ["method", "samples", "network calls", "seconds (median)"], rows)


def write_tables(out: Path, reference: str = "") -> Path:
    made = tables(out, reference)
    (out / "tables.tex").write_text("\n".join(table.latex() for table in made))
    path = out / "tables.md"
    path.write_text("\n".join(table.markdown() for table in made))
    return path
