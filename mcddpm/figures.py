"""Figures: the only matplotlib in the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt


@dataclass(frozen=True)
class Panel:
    """One picture: an image (H, W), its title, and the range and colours it is shown in."""

    title: str
    image: np.ndarray
    vmin: float | None = None
    vmax: float | None = None
    cmap: str = "gray"


def panels(path: Path, rows: Sequence[Sequence[Panel]], title: str = "") -> None:
    """Write a grid of pictures, each with its own colour bar, as a PNG."""
    columns = max(len(row) for row in rows)
    figure, axes = plt.subplots(
        len(rows), columns, figsize=(3.1 * columns, 2.9 * len(rows) + 0.4), squeeze=False, layout="constrained"
    )
    for axis in axes.flat:
        axis.axis("off")
    for row, line in zip(rows, axes, strict=True):
        for panel, axis in zip(row, line, strict=False):
            picture = axis.imshow(panel.image, cmap=panel.cmap, vmin=panel.vmin, vmax=panel.vmax)
            axis.set_title(panel.title, fontsize=10)
            figure.colorbar(picture, ax=axis, fraction=0.046, pad=0.03).ax.tick_params(labelsize=7)
    if title:
        figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
