"""Rows of an evaluation by label, method and acceleration; its metrics; and how sure their means are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from mcddpm import metrics
from mcddpm.data.cases import name_of
from mcddpm.evaluation.rows import Row, read_csv
from mcddpm.system.workspace import Workspace

BLOCK = 18  # slices of a volume that count as one, for neighbours are alike
Key = tuple[str, str, float]  # label, method, acceleration


@dataclass(frozen=True)
class Metric:
    """A metric as rows and tables have it. inside: of the foreground alone."""

    name: str
    format: str
    lower_is_better: bool = False
    inside: bool = False

    @property
    def title(self) -> str:
        return self.name.upper() + (", foreground" if self.inside else "")

    def of(self, row: Row) -> float:
        return (row.foreground if self.inside else row.quality)[self.name]

    def text(self, value: float, sign: str = "") -> str:
        return f"{value:{sign}{self.format}}"


PSNR, SSIM = Metric("psnr", ".2f"), Metric("ssim", ".3f")
EVERYWHERE = (PSNR, SSIM, Metric("nmse", ".4f", lower_is_better=True), Metric("mse", ".2e", lower_is_better=True))
FOREGROUND = (Metric("psnr", ".2f", inside=True), Metric("ssim", ".3f", inside=True))


class Results:
    """Rows of an evaluation, and its images by volume."""

    def __init__(self, out: Path) -> None:
        self.rows, self.workspace = read_csv(out / "rows.csv"), Workspace(out, "evaluation")
        self.labels = list(dict.fromkeys(row.label for row in self.rows))
        self.methods = list(dict.fromkeys(row.method for row in self.rows))
        self.protocols = list(dict.fromkeys(row.protocol for row in self.rows))
        self.truths = list(dict.fromkeys(row.truth for row in self.rows))
        self.accelerations = sorted({row.acceleration for row in self.rows})

    def of(self, key: Key) -> list[Row]:
        """The rows of one label, method and acceleration, in order."""
        return [row for row in self.rows if row.key == key]

    def runs(self) -> list[Key]:
        """Labels, accelerations and methods that were run together, in this order."""
        every = ((x, m, a) for x in self.labels for a in self.accelerations for m in self.methods)
        return [key for key in every if self.of(key)]

    def slices(self, key: Key, metric: Metric) -> np.ndarray:
        """A metric on each slice."""
        return np.array([metric.of(row) for row in self.of(key)])

    def grouping(self, key: Key) -> tuple[str, list[str]]:
        """What is taken to be independent, and which of them each slice is of: volumes, if there are three; else blocks
        of a volume, if there are three; else slices, for want of better."""
        rows = self.of(key)
        slices = [f"{row.volume} {row.slice}" for row in rows]
        blocks = [f"{row.volume} {row.slice // BLOCK}" for row in rows]
        result = {"volumes": [row.volume for row in rows], f"blocks of {BLOCK} slices": blocks}
        return next(((name, groups) for name, groups in result.items() if len(set(groups)) >= 3), ("slices", slices))

    def groups(self, key: Key) -> list[str]:
        return self.grouping(key)[1]

    @cache  # noqa: B019 (all that is read is read for this table)
    def volumes(self, key: Key, metric: Metric) -> np.ndarray:
        """A metric on each volume."""
        label, method, acceleration = key
        result: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for row in self.of(key):
            case = name_of(label, row.volume, row.slice, acceleration)
            piece = self.workspace.read(f"{method}/{case}")
            result.setdefault(row.volume, []).append((piece["mean"], piece["target"]))
        values = []
        for images in result.values():
            mean, target = (torch.from_numpy(np.stack(stack)) for stack in zip(*images, strict=True))
            values.append(float(metrics.METRICS[metric.name](mean, target, volume=True)))
        return np.array(values)

    def cost(self, key: Key) -> tuple[str, str]:
        """Network calls a slice, and the median of seconds a slice."""
        rows = self.of(key)
        calls = "/".join(map(str, sorted({row.calls for row in rows})))
        return calls, f"{np.median([row.seconds for row in rows]):.2f}"

    def whole_cost(self, key: Key) -> tuple[str, str]:
        """The same, and what the self-check took beside it, where there was one; "-" where that was not kept."""
        checks = [row.self_check for row in self.of(key) if row.self_check and row.self_check.calls is not None]
        cost = self.cost(key)
        if not checks:
            return cost
        calls = "/".join(map(str, sorted({check.calls for check in checks if check.calls is not None})))
        known = [check.seconds for check in checks if check.seconds is not None]
        return f"{cost[0]} + {calls}", f"{cost[1]} + {np.median(known):.2f}" if known else f"{cost[1]} + -"


def interval(values: np.ndarray, groups: Sequence[object] = ()) -> float:
    """Half of the 95 % interval of the mean, by Student's quantile, of the means of groups where they are given."""
    from scipy.stats import t

    labels = np.unique([str(group) for group in groups], return_inverse=True)[1] if len(groups) else range(len(values))
    known = np.array([values[np.asarray(labels) == k].mean() for k in dict.fromkeys(labels)])
    n = len(known)
    return float(t.ppf(0.975, n - 1) * known.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
