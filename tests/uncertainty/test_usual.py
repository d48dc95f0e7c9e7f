"""What is usual for a model, and how far off other slices are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mcddpm.system.settings import from_dict, to_dict
from mcddpm.uncertainty.conformal import VERSION
from mcddpm.uncertainty.surprise import HidePlan
from mcddpm.uncertainty.usual import SelfCheck, Usual

OUTER = ("overall", "shape", "point", "line", "energy")
NAMES = (
    *OUTER,
    *(f"centre_{name}" for name in OUTER),
    *(f"middle_{name}" for name in OUTER if name != "line"),
    "detail",
)


def drawn(count: int, seed: int = 0) -> list[dict[str, float]]:
    """The statistics of so many slices: some have long tails."""
    rng = np.random.default_rng(seed)
    return [dict(zip(NAMES, (rng.exponential(size=len(NAMES)) - 1).tolist(), strict=True)) for _ in range(count)]


@pytest.fixture(scope="module")
def usual() -> Usual:
    return Usual.of(4.0, drawn(12))


def test_it_is_of_what_all_slices_have() -> None:
    some = [{"overall": 1.0, "line": 2.0}, {"line": 3.0, "overall": 4.0, "middle_point": 5.0}]
    assert Usual.of(8.0, some) == Usual(8.0, {"overall": (1.0, 4.0), "line": (2.0, 3.0)})


def test_p_values(usual: Usual) -> None:
    every = [*drawn(12), {name: values[0] + 0.01 for name, values in usual.statistics.items()}]
    found = [Usual.of(4.0, every[:k] + every[k + 1 :]).p_value(one) for k, one in enumerate(every)]
    assert np.allclose(sorted(found), np.arange(1, 14) / 13), "one among equals: each rank once"
    far = {name: max(values) + 5 for name, values in usual.statistics.items()}
    assert usual.p_value(far) == pytest.approx(1 / 13)
    least = {name: min(values) for name, values in usual.statistics.items()}
    both_ways = [name for name in least if name.endswith(("overall", "detail"))]
    assert sorted(both_ways) == ["centre_overall", "detail", "middle_overall", "overall"]
    calm = least | {name: float(np.median(usual.statistics[name])) for name in both_ways}
    assert usual.p_value(calm | {"line": -9.0, "centre_point": -9.0}) > 0.5, "lines can only be too far off"
    for name in both_ways:
        quiet = calm | {name: least[name] - 5}
        assert usual.p_value(quiet) == pytest.approx(1 / 13), "too well predicted is unusual as well"


def test_deviations_are_in_units_of_what_one_slice_in_twenty_reaches() -> None:
    values = tuple(float(k) for k in range(201))
    usual = Usual(4.0, {"overall": values, "line": values})
    assert usual.deviations({"line": 190.0}) == pytest.approx({"line": 1.0})
    assert usual.deviations({"line": 10.0}) == pytest.approx({"line": -1.0}), "lines can only be too far off"
    for value, expected in ((195.0, 1.0), (5.0, 1.0), (100.0, 0.0)):
        assert usual.deviations({"overall": value}) == pytest.approx({"overall": expected})
    found = {"overall": 102.0, "line": 140.0, "else": 1e9}
    assert usual.reason(found) == "line" and usual.score(found) == pytest.approx(40 / 90)
    assert usual.score(found | {"overall": math.nan}) == math.inf and usual.p_value({"line": math.nan}) == 1 / 202


def known(usual: Usual) -> SelfCheck:
    both = (usual, replace(usual, acceleration=8.0))
    return SelfCheck(VERSION, "abc", "drawn", "2026-01-01", "fourier", "dpmpp_2m_sde", 4, 8, 6, both)


def test_the_nearest_acceleration_is_taken_and_a_far_one_told(usual: Usual) -> None:
    check = known(usual)
    assert [(check.at(a)[0].acceleration, check.at(a)[1]) for a in (2.9, 5.5, 5.8, 11.0)] == [
        *[(4.0, ())] * 2,
        *[(8.0, ())] * 2,
    ]
    for asked, nearest in ((2.8, 4.0), (12.0, 8.0)):
        found, (notice,) = check.at(asked)
        assert found.acceleration == nearest and notice.kind == "self-check acceleration"
        assert str(notice) == f"the scan is under-sampled {asked}x, what is usual was found at {nearest:g}x"


def test_it_is_written_and_read_and_says_how_lines_were_hidden(usual: Usual) -> None:
    check = known(usual)
    assert from_dict(SelfCheck, to_dict(check)) == check and check.plan == HidePlan(4, 8, 6, "dpmpp_2m_sde")
