"""Figures: the only matplotlib in the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator

# Without pyplot: nothing here changes the backend that a notebook or a program of yours has chosen.

Box = tuple[int, int, int, int]  # top, left, height, width
STYLES = ("-", "--", ":")
DARK = "#14161a"


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
    _write(path, figure_of(rows, title, dark))


def figure_of(rows: Sequence[Sequence[Panel | None]], title: str = "", dark: bool = False) -> Figure:
    with style.context(["dark_background"] if dark else "default"):
        figure = _panels(rows, title)
    if dark:
        figure.set_facecolor(DARK)
    return figure


def _panels(rows: Sequence[Sequence[Panel | None]], title: str) -> Figure:
    columns = max(len(row) for row in rows)
    figure = Figure(figsize=(3.1 * columns, 2.9 * len(rows) + 0.4), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for row, line in zip(rows, axes, strict=True):
        for panel, axis in zip(row, line, strict=False):
            if panel is not None:
                _panel(panel, axis, figure)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _panel(panel: Panel, axis: Axes, figure: Figure) -> None:
    picture = axis.imshow(panel.image, cmap=panel.cmap, vmin=panel.vmin, vmax=panel.vmax)
    axis.set_title(panel.title, fontsize=10)
    if panel.box is not None:
        top, left, height, width = panel.box
        axis.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor="red", linewidth=1.2))
    if panel.bar:
        figure.colorbar(picture, ax=axis, fraction=0.046, pad=0.03).ax.tick_params(labelsize=7)


def _write(path: Path, figure: Figure) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor=figure.get_facecolor())


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


@dataclass(frozen=True)
class Plot:
    """Points (x, y) by name, joined by lines or drawn as bars. A line "4x, calibrated" has the colour of "4x" and the
    style of all "calibrated". `level`: a dashed line at this y, or "diagonal"; `between`: the lowest and the highest y.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    level: float | str | None = None
    bars: bool = False
    log: bool = False
    between: tuple[float, float] | None = None


def plots(path: Path, rows: Sequence[Sequence[Plot]], title: str = "") -> None:
    """Write a grid of plots as a PNG."""
    columns = max(len(row) for row in rows)
    size = (8, 5) if len(rows) == columns == 1 else (5.2 * columns, 4.2 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for row, line in zip(rows, axes, strict=True):
        for axis in line[len(row) :]:
            axis.axis("off")
        for plot, axis in zip(row, line, strict=False):
            _plot(plot, axis)
    if title:
        figure.suptitle(title, fontsize=11)
    _write(path, figure)


def _plot(plot: Plot, axis: Axes) -> None:
    colours, styles = (list(dict.fromkeys(name.partition(", ")[part] for name in plot.lines)) for part in (0, 2))
    for k, (name, points) in enumerate(plot.lines.items()):
        xs, ys = zip(*sorted(points), strict=True)
        what, _, how = name.partition(", ")
        if plot.bars:
            wide = 0.9 * min(np.diff(xs), default=1.0) / len(plot.lines)
            axis.bar(np.array(xs) + (k - (len(plot.lines) - 1) / 2) * wide, ys, wide, label=name)
        else:
            colour, style = f"C{colours.index(what)}", STYLES[styles.index(how) % len(STYLES)]
            axis.plot(xs, ys, marker="o", markersize=3, linewidth=1.3, label=name, color=colour, linestyle=style)
    if plot.level == "diagonal":
        top = max(axis.get_xlim()[1], axis.get_ylim()[1])
        axis.plot([0, top], [0, top], color="gray", linestyle="--", linewidth=1)
        axis.set(xlim=(0, top), ylim=(0, top))
    elif plot.level is not None:
        axis.axhline(float(plot.level), color="gray", linestyle="--", linewidth=1)
    if plot.log:
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.margins(y=0.15)  # room for the legend
    elif all(float(x).is_integer() for points in plot.lines.values() for x, _ in points):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if plot.between is not None:
        axis.set_ylim(*plot.between)
    axis.set_title(plot.title, fontsize=10)
    axis.set_xlabel(plot.x)
    axis.set_ylabel(plot.y)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, ncols=2)


def curves(path: Path, lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, title: str = "") -> None:
    """Points (x, y) joined by lines, each with its name; the horizontal axis is logarithmic."""
    plots(path, [[Plot(title, x, y, lines, log=True)]])
