"""Intervals that cover: factors by hand, on data whose std is wrong in a known way; and what is told of them."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import pytest
import torch
from torch import Tensor

from mcddpm.uncertainty import conformal
from mcddpm.uncertainty.conformal import Conformal, Slice


@cache
def slices(count: int, seed: int, size: int = 40) -> tuple[Slice, ...]:
    """Heads whose std is too small by half where it is small, right where it is large, and too large in the air."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        head = torch.zeros(size, size)
        head[6:-6, 6:-6] = 1.0
        std = torch.where(head > 0, torch.rand(size, size, generator=g) * 0.2 + 0.02, 0.05)
        true = torch.where(head == 0, 0.5 * std, torch.where(std < 0.12, 2 * std, std))
        person = float(torch.rand(1, generator=g)) * 0.2 + 0.9  # slices differ
        found.append(Slice(head, std, head + person * true * torch.randn(size, size, generator=g)))
    return tuple(found)


@cache
def fitted(count: int = 160) -> Conformal:
    levels = conformal.possible(conformal.LEVELS, count)
    table = conformal.fit(slices(count, 0), 4.0, levels)
    return Conformal(conformal.VERSION, "abc", "drawn", "2026-01-01", "dpmpp_2m_sde", 10, 20, levels, (table,))


def stretched(c: Conformal, s: Slice, level: float, acceleration: float = 4.0, surprise: float | None = None) -> Tensor:
    return c.stretch(s.mean, s.std, level, acceleration, surprise)[0]


def covered(c: Conformal, s: Slice, level: float, where: Tensor) -> float:
    half = stretched(c, s, level) * s.std
    return float(((s.truth - s.mean).abs() <= half)[where].double().mean())


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.63])
def test_new_slices_are_covered_everywhere(level: float) -> None:
    c, new = fitted(), slices(40, 1)
    for where in (lambda s: s.mean > 0, lambda s: s.mean == 0, lambda s: s.std < 0.1, lambda s: s.std > 0.14):
        found = sum(covered(c, s, level, where(s)) for s in new) / len(new)
        assert found == pytest.approx(level, abs=0.02)
    before = sum(float(((s.truth - s.mean).abs() <= 1.645 * s.std)[s.mean > 0].double().mean()) for s in new) / 40
    assert before < 0.8, "without it they would not be"


def test_quantiles_by_hand() -> None:
    scores = [torch.tensor([1.0, 2.0]), torch.tensor([3.0]), torch.tensor([4.0, 5.0, 6.0, 7.0])]
    # Weights 1/8 1/8 | 1/4 | 1/16 each; one quarter is kept for the slice to come.
    assert conformal.quantiles(scores, [0.125, 0.2, 0.25, 0.5, 0.5625, 0.75]) == [1, 2, 2, 3, 4, 7]


def test_those_that_do_not_shape_decide_for_head_and_air() -> None:
    """Slices that shape the factors, with errors twice as large in the head and half as large in the air, make neither
    too large nor too small."""
    found = list(slices(160, 0))
    for k in range(0, 160, 4):
        wrong = torch.where(found[k].mean > 0, 2.0, 0.5) * (found[k].truth - found[k].mean)
        found[k] = dataclasses.replace(found[k], truth=found[k].mean + wrong)
    c = dataclasses.replace(fitted(), levels=(0.8,), tables=(conformal.fit(found, 4.0, (0.8,)),))
    new = slices(40, 1)
    for where in (lambda s: s.mean > 0, lambda s: s.mean == 0):
        assert sum(covered(c, s, 0.8, where(s)) for s in new) / len(new) == pytest.approx(0.8, abs=0.02)


def test_a_new_slice_is_covered_on_average_however_slices_differ() -> None:
    """Errors that differ ten times from slice to slice, twelve of them: the fit is done over and over, and a new slice
    is covered often enough on average. Without a place for the slice to come it would not be."""
    g, level, held, without = torch.Generator().manual_seed(4), 0.8, [], []
    for _ in range(150):
        sizes = torch.exp(2.3 * torch.rand(13, generator=g) - 1.15)
        drawn = [Slice(torch.ones(8, 8), torch.ones(8, 8), 1 + s * torch.randn(8, 8, generator=g)) for s in sizes]
        table, new = conformal.fit(drawn[:12], 4.0, (level,), bins=1), drawn[12]
        held.append(float(((new.truth - 1).abs() <= table.factors[0][0]).double().mean()))
        scores = [(s.truth - 1).abs().flatten() for k, s in enumerate(drawn[:12]) if k % 4]
        plain = conformal.quantiles(scores, [level], to_come=0)[0]
        without.append(float(((new.truth - 1).abs() <= plain).double().mean()))
    assert level <= sum(held) / 150 < level + 0.1 and sum(without) < sum(held)


def surprising(count: int, seed: int, more: float) -> list[Slice]:
    """Slices whose errors are larger by exp(0.6 v / 2) where the self-check says v, and which say more by so much."""
    g, found = torch.Generator().manual_seed(100 + seed), []
    for s in slices(count, seed):
        v = 0.3 + 0.5 * float(torch.randn(1, generator=g)) + more
        found.append(dataclasses.replace(s, truth=s.mean + math.exp(0.3 * v) * (s.truth - s.mean), surprise=v))
    return found


def test_the_self_check_makes_up_for_people_who_are_not_alike() -> None:
    """Fitted on one person; on another, whose errors are a third larger, only the self-check knows."""
    known, levels = surprising(600, 0, 0.0), (0.5, 0.8, 0.9)
    plain, adaptive = (conformal.fit(known, 4.0, levels, adaptive=a) for a in (False, True))
    assert (plain.slope, plain.usual) == (0, 0) and adaptive.slope == pytest.approx(0.6, abs=0.1)
    c = dataclasses.replace(fitted(20), levels=levels, tables=(plain,), adaptive=(adaptive,))
    for people, shift in ((surprising(40, 1, 0.0), 0.0), (surprising(40, 2, 1.0), 1.0)):
        held = {}
        for way in ("plain", "adaptive"):
            inside = []
            for s in people:
                told = s.surprise if way == "adaptive" else None
                half = stretched(c, s, 0.8, surprise=told) * s.std
                inside.append(float(((s.truth - s.mean).abs() <= half)[s.mean > 0].double().mean()))
            held[way] = sum(inside) / len(inside)
        assert held["adaptive"] == pytest.approx(0.8, abs=0.03)
        assert held["plain"] == pytest.approx(0.8, abs=0.025) if shift == 0 else held["plain"] < 0.7
    s = people[0]
    without = dataclasses.replace(c, adaptive=())
    factor, (notice,) = without.stretch(s.mean, s.std, 0.8, 4.0, 2.0)
    assert notice.kind == "interval self-check" and "intervals do not follow the self-check" in notice.text
    assert torch.equal(factor, stretched(c, s, 0.8)) and c.stretch(s.mean, s.std, 0.8, 4.0, 2.0)[1] == ()
    calmest = min(s.surprise for s in known)
    assert adaptive.lowest == calmest and adaptive.adaptation(calmest) == adaptive.adaptation(-30.0) > 0.5


def test_a_surprise_that_means_nothing_changes_nothing() -> None:
    """Errors that fall with the surprise, or a surprise that is always the same: std stays as it is."""
    falling = [dataclasses.replace(s, surprise=-s.surprise) for s in surprising(80, 0, 0.0)]
    same = [dataclasses.replace(s, surprise=0.4) for s in surprising(80, 0, 0.0)]
    for found in (falling, same):
        table = conformal.fit(found, 4.0, (0.5, 0.8), adaptive=True)
        assert table.slope == 0 and table.factors == conformal.fit(found, 4.0, (0.5, 0.8)).factors


def test_bins_are_of_the_slices_own_std() -> None:
    """A head with twice the std everywhere has the same factors."""
    c, s = fitted(), slices(1, 2)[0]
    assert torch.equal(stretched(c, s, 0.9), stretched(c, dataclasses.replace(s, std=2 * s.std), 0.9))


def test_what_is_not_finite_is_refused() -> None:
    nothing = [dataclasses.replace(s, std=torch.full_like(s.std, torch.nan)) for s in slices(20, 0)]
    with pytest.raises(ValueError, match="not finite: std takes 2 samples or more"):
        conformal.fit(nothing, 4.0, (0.5,))


def test_nothing_infinite() -> None:
    """No air in any slice, and std 0 at some pixels: every factor is still a number, which JSON can hold."""
    g = torch.Generator().manual_seed(0)
    found = []
    for _ in range(20):
        std = torch.rand(16, 16, generator=g)
        std[:2] = 0
        mean = torch.ones(16, 16)
        found.append(Slice(mean, std, mean + std * torch.randn(16, 16, generator=g)))
    table = conformal.fit(found, 4.0, (0.5, 0.9))
    assert torch.isfinite(torch.tensor(table.factors)).all()


def test_a_region_that_too_few_slices_have_is_refused() -> None:
    """Of 20 slices 15 decide, enough for 90 %; but if only six of those have air, they can promise 6 in 7."""
    found = list(slices(20, 0))
    for k in range(8, 20):
        found[k] = dataclasses.replace(found[k], mean=torch.ones_like(found[k].mean))
    with pytest.raises(
        ValueError, match=r"a level of 0.9 takes 9 slices that decide and have air, there are 6 \(of 15"
    ):
        conformal.fit(found, 4.0, [0.5, 0.9])
    assert conformal.fit(found, 4.0, [0.5, 0.8]).slices == 20


def test_fewer_samples_take_longer_intervals() -> None:
    """Gaussian errors, of means and stds of 3 samples: the factors of 20 samples hold too little, by_count makes up."""
    c, g = fitted(), torch.Generator().manual_seed(2)
    drawn, truth = torch.randn(4, 200_000, generator=g, dtype=torch.float64).tensor_split([3])
    factor, half = conformal.z_of(0.9, c.samples), drawn.std(0)
    held = [
        float(((truth[0] - drawn.mean(0)).abs() <= f * factor * half).double().mean()) for f in (1, c.by_count(0.9, 3))
    ]
    assert held[0] < 0.8 and held[1] == pytest.approx(0.9, abs=0.005) and c.by_count(0.9, c.samples) == 1


def test_slices_count_alike() -> None:
    few, many = torch.full((10,), 5.0), torch.full((1000,), 1.0)
    assert conformal.quantiles([few, many], [0.3, 0.6]) == [1.0, 5.0], "a large head is not many people"


def test_how_many_slices_a_level_takes() -> None:
    assert [conformal.needed(level) for level in (0.5, 0.8, 0.9, 0.95, 0.99)] == [2, 6, 12, 26, 132]
    assert conformal.possible([0.5, 0.9, 0.95], 25) == (0.5, 0.9)
    with pytest.raises(ValueError, match=r"a level of 0\.9 takes 12 calibration slices, there are 11"):
        conformal.possible([0.9, 0.95], 11)
    with pytest.raises(ValueError, match="there are no levels to fit"):
        conformal.possible([], 11)
    c = fitted(20)
    s = slices(1, 2)[0]
    with pytest.raises(ValueError, match=r"0\.98 takes 66 calibration slices, .* calibrated on 20: 0\.9 is"):
        c.stretch(s.mean, s.std, 0.98, 4.0)
    with pytest.raises(ValueError, match=r"a level of 0\.92 was not fitted: 0\.9 is the highest this model has"):
        dataclasses.replace(fitted(200), levels=(0.5, 0.9)).stretch(s.mean, s.std, 0.92, 4.0)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_levels_that_are_none(level: float) -> None:
    s = slices(1, 2)[0]
    with pytest.raises(ValueError, match="expected a value between 0 and 1"):
        fitted(20).stretch(s.mean, s.std, level, 4.0)


def test_the_nearest_acceleration_is_taken_and_a_far_one_told() -> None:
    c, s = fitted(20), slices(1, 2)[0]
    twice = dataclasses.replace(
        c.tables[0], acceleration=8.0, factors=tuple(tuple(2 * v for v in row) for row in c.tables[0].factors)
    )
    both = dataclasses.replace(c, tables=(c.tables[0], twice))
    assert torch.allclose(stretched(both, s, 0.9, 7.2), 2 * stretched(both, s, 0.9, 4.4))
    assert [both.stretch(s.mean, s.std, 0.9, a)[1] for a in (2.9, 5.5, 5.8, 11.0)] == [()] * 4
    for asked, told in ((11.6, "11.6x, intervals were fitted at 8x"), (2.8, "2.8x, intervals were fitted at 4x")):
        factor, (notice,) = both.stretch(s.mean, s.std, 0.9, asked)
        assert str(notice) == f"the scan is under-sampled {told}" and notice.kind == "interval acceleration"
        assert torch.equal(factor, stretched(both, s, 0.9, 8.0 if asked > 8 else 4.0))


def test_higher_levels_are_wider() -> None:
    c, s = fitted(), slices(1, 2)[0]
    widths = torch.stack([stretched(c, s, level) for level in (0.02, 0.1, 0.33, 0.5, 0.77, 0.9, 0.97)])
    assert (widths.diff(dim=0) > 0).all() and (widths[0] > 0).all()
