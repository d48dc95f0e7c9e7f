"""Figures: the only matplotlib in the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

Box = tuple[int, int, int, int]  # top, left, height, width


@dataclass(frozen=True)
class Panel:
    """One picture: an image (H, W), its title, the range and colours it is shown in, and a red box to draw."""

    title: str
    image: np.ndarray
    vmin: float | None = None
    vmax: float | None = None
    cmap: str = "gray"
    box: Box | None = None
    bar: bool = True

    def zoomed(self, box: Box, title: str = "") -> Panel:
        """The same picture, in the same range, of what lies in a box."""
        top, left, height, width = box
        part = self.image[top : top + height, left : left + width]
        return replace(self, title=title, image=part, box=None, bar=False)


def panels(path: Path, rows: Sequence[Sequence[Panel | None]], title: str = "", dark: bool = False) -> None:
    """Write a grid of pictures as a PNG; None leaves a place empty; dark as reading rooms are, if asked."""
    with plt.style.context(["dark_background", {"savefig.facecolor": "#14161a"}] if dark else "default"):
        _panels(path, rows, title)


def _panels(path: Path, rows: Sequence[Sequence[Panel | None]], title: str) -> None:
    columns = max(len(row) for row in rows)
    figure, axes = plt.subplots(
        len(rows), columns, figsize=(3.1 * columns, 2.9 * len(rows) + 0.4), squeeze=False, layout="constrained"
    )
    for axis in axes.flat:
        axis.axis("off")
    for row, line in zip(rows, axes, strict=True):
        for panel, axis in zip(row, line, strict=False):
            if panel is None:
                continue
            picture = axis.imshow(panel.image, cmap=panel.cmap, vmin=panel.vmin, vmax=panel.vmax)
            axis.set_title(panel.title, fontsize=10)
            if panel.box is not None:
                top, left, height, width = panel.box
                axis.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor="red", linewidth=1.2))
            if panel.bar:
                figure.colorbar(picture, ax=axis, fraction=0.046, pad=0.03).ax.tick_params(labelsize=7)
    if title:
        figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def reconstruction(
    path: Path,
    images: dict[str, np.ndarray],
    std: np.ndarray,
    samples: np.ndarray,
    one_call: np.ndarray,
    box: Box,
    title: str = "",
) -> None:
    """The paper's figure: truth, zero-filled, mean, its error and std; the box of each enlarged; samples there.

    images: title -> (H, W), "truth" and "mean" among them; samples: (N, H, W).
    """
    truth, mean = images["truth"], images["mean"]
    top, most = float(truth.max()), float(np.percentile(std, 99.5))
    shown = [Panel(name, image, 0, top, box=box) for name, image in images.items()]
    shown += [
        Panel("|error| of the mean", abs(mean - truth), 0, 3 * most, "magma", box),
        Panel("std", std, 0, 3 * most, "magma", box),
    ]
    drawn = [Panel(f"sample {k + 1}", sample, 0, top, bar=False) for k, sample in enumerate(samples[:3])]
    spread = Panel("|sample 1 - sample 2|", abs(samples[0] - samples[1]), 0, 3 * most, "magma", bar=False)
    one = Panel("one call", one_call, 0, top, bar=False)
    rows = [shown, [panel.zoomed(box) for panel in shown], [p.zoomed(box, p.title) for p in (*drawn, spread, one)]]
    panels(path, rows, title, dark=True)


def curves(path: Path, lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> None:
    """Points (x, y) joined by lines, each with its name; the horizontal axis is logarithmic."""
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for name, points in lines.items():
        ordered = sorted(points)
        axis.plot(*zip(*ordered, strict=True), marker="o", markersize=3.5, linewidth=1.3, label=name)
    axis.set_xscale("log")
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
