"""Rows by label, method and acceleration; metrics of slices and volumes; and how sure their means are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mcddpm import metrics
from mcddpm.evaluation.results import EVERYWHERE, FOREGROUND, PSNR, SSIM, Results, interval
from mcddpm.evaluation.rows import CheckedRow
from tests.evaluation.studies import pieces
from tests.knees import FILES

pytest_plugins = ["tests.evaluation.fixtures"]
ONE = ("PD", "One", 4.0)


def test_what_was_run_in_order(done: Path) -> None:
    results = Results(done)
    assert results.runs() == [("PD", method, a) for a in (4.0, 8.0) for method in ("ZF", "One", "Ours")]
    assert [(row.volume, row.slice) for row in results.of(ONE)] == [(name, k) for name in FILES for k in (0, 1)]
    assert results.protocols == ["fastmri"] and results.of(("PD", "One", 5.0)) == []


def test_metrics_of_slices_are_those_of_rows(done: Path) -> None:
    results = Results(done)
    for metric in (*EVERYWHERE, *FOREGROUND):
        own = [(row.foreground if metric.inside else row.quality)[metric.name] for row in results.of(ONE)]
        assert results.slices(ONE, metric).tolist() == own and len(own) == 4
    assert [metric.title for metric in (PSNR, FOREGROUND[1])] == ["PSNR", "SSIM, foreground"]
    assert (PSNR.text(30.126), SSIM.text(0.91234), PSNR.text(0.5, "+")) == ("30.13", "0.912", "+0.50")
    assert [metric.text(0.000123456) for metric in EVERYWHERE[2:]] == ["0.0001", "1.23e-04"]


def test_metrics_of_volumes_are_of_whole_volumes(done: Path) -> None:
    results = Results(done)
    for volume, name in enumerate(FILES):
        images = [(p["mean"], p["target"]) for p in pieces(done, "One", lambda n, f=name: f in n and n.endswith("-8x"))]
        mean, target = (torch.from_numpy(np.stack(stack)) for stack in zip(*images, strict=True))
        assert mean.shape == (2, 48, 48)
        for metric in EVERYWHERE:
            found = results.volumes(("PD", "One", 8.0), metric)
            expected = float(metrics.METRICS[metric.name](mean, target, volume=True))
            assert len(found) == 2 and found[volume] == pytest.approx(expected)


def test_intervals_by_student() -> None:
    values = np.array([1.0, 2.0, 3.0, 7.0, 8.0, 9.0])
    people = ["a", "a", "a", "b", "b", "b"]
    assert interval(values, people) == pytest.approx(12.7062 * np.std([2.0, 8.0], ddof=1) / math.sqrt(2), rel=1e-4)
    assert interval(values) == pytest.approx(2.5706 * values.std(ddof=1) / math.sqrt(6), rel=1e-4)
    assert math.isnan(interval(values[:1]))


def test_intervals_are_over_people_or_blocks(done: Path) -> None:
    results = Results(done)
    assert results.grouping(ONE)[0] == "slices" and len(set(results.groups(ONE))) == 4, (
        "two people are too few, and their slices are all there is"
    )
    found = results.of(ONE)
    results.rows = [replace(row, volume="one", slice=12 * k) for k, row in enumerate(found)]
    assert [group.split()[1] for group in results.groups(ONE)] == ["0", "0", "1", "2"]
    assert results.grouping(ONE)[0] == "blocks of 18 slices"
    results.rows = [replace(row, volume=name) for row, name in zip(found, "abca", strict=True)]
    assert results.grouping(ONE) == ("volumes", ["a", "b", "c", "a"])


def test_what_a_slice_costs(done: Path) -> None:
    results = Results(done)
    found = results.of(ONE)
    results.rows = [
        replace(row, calls=calls, seconds=calls / 4) for row, calls in zip(found, (10, 9, 10, 9), strict=True)
    ]
    assert results.cost(ONE) == results.whole_cost(ONE) == ("9/10", "2.38")
    checks = [CheckedRow(0.0, 0.5, 192, 1.0), CheckedRow(0.0, 0.5, 96, 3.0), None, None]
    results.rows = [replace(row, self_check=check) for row, check in zip(results.rows, checks, strict=True)]
    assert results.whole_cost(ONE) == ("9/10 + 96/192", "2.38 + 2.00")
    results.rows = [replace(r, self_check=r.self_check and replace(r.self_check, seconds=None)) for r in results.rows]
    assert results.whole_cost(ONE) == ("9/10 + 96/192", "2.38 + -"), "before, seconds were not kept"
    results.rows = [replace(row, self_check=CheckedRow(0.0, 0.5)) for row in found]
    assert results.whole_cost(ONE) == results.cost(ONE)
