"""Figures can be read: what belongs together looks alike, and ticks are numbers with room between them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import image as pictures
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mcddpm import plots
from mcddpm.plots import Panel, Plot


@pytest.fixture
def axis() -> Axes:
    return Figure(figsize=(5.2, 4.2)).subplots()


def test_lines_have_the_colour_of_what_and_the_style_of_how(axis: Axes) -> None:
    names = ["4x", "4x, calibrated", "8x", "8x, calibrated"]
    plots._plot(Plot("", "x", "y", {name: [(0, 0), (1, 1)] for name in names}), axis)
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in axis.get_lines()}
    assert len(set(looks.values())) == 4
    for one, other, part in (("4x", "4x, calibrated", 0), ("8x", "8x, calibrated", 0), ("4x", "8x", 1)):
        assert looks[one][part] == looks[other][part]


@pytest.mark.parametrize("xs", [range(1, 33), (1, 2, 4, 6, 8, 10, 20, 50), (1, 4, 9, 10, 50, 250, 1000)])
def test_ticks_of_a_logarithmic_axis_do_not_overlap(axis: Axes, xs: range | tuple[int, ...]) -> None:
    plots._plot(Plot("", "calls", "dB", {"4x": [(x, 1.0) for x in xs]}, log=True), axis)
    axis.figure.canvas.draw()
    low, high = axis.get_xlim()
    shown = [label for label in axis.get_xticklabels() if low <= label.get_position()[0] <= high]
    assert [label.get_text() for label in shown][:3] == ["1", "2", "5"]
    boxes = [label.get_window_extent() for label in shown]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


@pytest.mark.parametrize(("step", "whole"), [(1.0, True), (0.05, False)])
def test_what_is_counted_has_whole_numbers_for_ticks(axis: Axes, step: float, whole: bool) -> None:
    plots._plot(Plot("", "slice", "coverage", {"4x": [(step * k, 0.9) for k in range(21)]}), axis)
    assert all(float(tick).is_integer() for tick in axis.get_xticks()) == whole


def test_a_zoomed_panel_is_what_lies_in_the_box(tmp_path: Path) -> None:
    image = np.arange(48.0).reshape(6, 8)
    panel = Panel("whole", image, 0, 50, box=(1, 2, 3, 4))
    assert np.array_equal(panel.zoomed((1, 2, 3, 4)).image, image[1:4, 2:6]) and panel.zoomed((1, 2, 3, 4)).vmax == 50
    plots.panels(tmp_path / "new" / "p.png", [[panel, None]])
    assert pictures.imread(tmp_path / "new" / "p.png").std() > 0


def test_what_is_to_be_dark_is_dark_on_disk_as_well(tmp_path: Path) -> None:
    for dark, corner in ((True, [0x14, 0x16, 0x1A]), (False, [255, 255, 255])):
        plots.panels(tmp_path / "p.png", [[Panel("", np.eye(4))]], dark=dark)
        seen = pictures.imread(tmp_path / "p.png")[0, 0, :3]
        assert np.array_equal(np.rint(255 * seen), corner)


def test_drawing_leaves_no_trace_in_a_program_that_draws_itself(tmp_path: Path) -> None:
    """Neither in its choice of backend and style nor among its open figures."""
    before = dict(matplotlib.rcParams)
    plots.panels(tmp_path / "p.png", [[Panel("", np.eye(4))]], dark=True)
    plots.curves(tmp_path / "c.png", {"4x": [(1, 1.0), (2, 2.0)]}, "calls", "dB")
    assert dict(matplotlib.rcParams) == before and plt.get_fignums() == []
