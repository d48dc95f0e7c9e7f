"""The self-check: calm where the model is exact, and loud about spikes, lost lines and scans of another kind."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm.diffusion.gaussian import GaussianPrior
from mcddpm.diffusion.schedules import cosine
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import describe
from mcddpm.models.unet import UNet
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement
from mcddpm.physics.sense import Sense
from mcddpm.uncertainty import conformal, selfcheck
from mcddpm.uncertainty.selfcheck import SelfCheck, Usual

SIZE = 20
MASK = torch.zeros(SIZE, dtype=torch.bool)
MASK[[0, 2, 5, 7, 8, 9, 10, 11, 12, 14, 17, 19]] = True

PLANE = torch.zeros(12, 12, dtype=torch.bool)
PLANE[4:9, 4:9] = True
PLANE[1, ::3] = True


def prior() -> GaussianPrior:
    place = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")).reshape(2, -1).double()
    blur = torch.exp(-torch.cdist(place.T, place.T).square() / 1.5)
    factor = blur.reshape(-1, SIZE, SIZE).to(torch.complex128)
    return GaussianPrior(torch.ones(SIZE, SIZE, dtype=torch.complex128), factor)


def white() -> GaussianPrior:
    """Pixels, and so entries of k-space, that know nothing of each other."""
    factor = torch.eye(SIZE * SIZE, dtype=torch.complex128).reshape(-1, SIZE, SIZE)
    return GaussianPrior(torch.zeros(SIZE, SIZE, dtype=torch.complex128), factor)


class Exact(Denoiser):
    """Knows the posterior of the prior, whatever was measured."""

    def __init__(self, of: GaussianPrior) -> None:
        network = UNet(4, 2, channels=8, multipliers=(1,), heads=1, attention=())
        super().__init__(network, cosine(1000, 0.5), data_std=1.0, operator=None)
        self.prior, self.known = of, {}

    def denoise(self, y_t: Tensor, t: Tensor, y_m: Tensor, mask: Tensor, A: Fourier) -> Tensor:
        key = (mask.numpy().tobytes(), y_m[0].numpy().tobytes())
        if key not in self.known:
            self.known[key] = self.prior.posterior(A, y_m[0], mask)
        bar_alpha, bar_beta = self.schedule.at(t)
        return self.known[key].denoise(y_t, float(bar_alpha), float(bar_beta))


@pytest.fixture(scope="module")
def model() -> Exact:
    return Exact(prior())


def measured(seed: int, of: Callable[[], GaussianPrior] = prior) -> Measurement:
    x = of().draw(torch.Generator().manual_seed(seed))
    return Measurement(Fourier()(x).masked_fill(~MASK, 0), MASK, 1.0, Fourier())


def check(model: Exact, m: Measurement) -> dict[str, float]:
    return selfcheck.surprise(model, m, samples=8, steps=30, seed=1).statistics


@pytest.fixture(scope="module")
def usual(model: Exact) -> Usual:
    found = [check(model, measured(100 + k)) for k in range(12)]
    return Usual.of(4.0, found)


@pytest.mark.parametrize(("of", "expected", "within"), [(white, 1.0, 0.04), (prior, 0.94, 0.06)])
def test_an_exact_model_is_not_surprised(of: Callable[[], GaussianPrior], expected: float, within: float) -> None:
    """|z|^2 is 1 on average where entries' variances are alike: 1.125 if it were forgotten that the mean of 8 samples
    is itself 1/8 off. Where they fall by orders of magnitude it is 0.94, for std is averaged over neighbours."""
    model = Exact(of())
    found = [selfcheck.surprise(model, measured(k, of), samples=8, steps=30, seed=k).statistics for k in range(48)]
    assert np.mean([np.exp(one["overall"]) for one in found]) == pytest.approx(expected, abs=within)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_variance_of_a_few_samples(dtype: torch.dtype) -> None:
    """Averaged in logarithms, and right all the same: a twelfth too small if their bias were forgotten."""
    drawn = torch.randn(8, 400, 400, dtype=dtype, generator=torch.Generator().manual_seed(0))
    found = selfcheck.variance_of(drawn, torch.ones(400, dtype=torch.bool))
    freedom = 7.0 if dtype.is_complex else 3.5
    jensen = float(torch.polygamma(1, torch.tensor(freedom, dtype=torch.float64))) / 15 / 2  # exp of a mean of 15
    assert float(found[2:-2, 1:-1].mean()) == pytest.approx(1 + jensen, abs=0.005)


def test_expected_energy_by_many_draws() -> None:
    """Two samples and what they are of, each N(1, 2): E|y|^2 is 3, and 4 or 5 if the mean's own error counted."""
    drawn = 1 + torch.randn(3, 100_000, dtype=torch.complex128, generator=torch.Generator().manual_seed(0)) * 2**0.5
    mean, variance = drawn[:2].mean(0), drawn[:2].var(0)
    found = float(selfcheck.energy_of(mean, variance, 2).mean())
    assert found == pytest.approx(3.0, abs=0.05) and float(drawn[2].abs().square().mean()) == pytest.approx(
        3.0, abs=0.05
    )


def altered(m: Measurement, what: str) -> Measurement:
    y, line = m.y_m.clone(), 9 if "centre" in what else 10 if "middle" in what else 14
    if what.startswith("spike"):
        y[3, line] += 30 * y.abs()[:, line].mean()
    elif what.startswith("corrupt line"):
        y[:, line] = 4 * y[:, line].roll(7)
    elif what.startswith("lost line"):
        y[:, line] = 0
    else:  # large or, in places, as large as usual on the whole, and not in either half
        halves = torch.where(torch.arange(SIZE) % 2 == 0, 0.1, 1.41)[:, None]
        where = selfcheck.regions(MASK)["centre_" if "centre" in what else ""]
        y = torch.where(where, (halves if "places" in what else 2.5) * y, y)
    return dataclasses.replace(m, y_m=y)


WRONG = [
    ("spike", "point"),
    ("corrupt line", "line"),
    ("lost line", "energy"),
    ("other kind", "overall"),
    ("other kind", "detail"),
    ("wrong in places", "shape"),
    ("spike in the centre", "centre_point"),
    ("corrupt line in the centre", "centre_line"),
    ("lost line in the centre", "centre_energy"),
    ("lost line in the middle", "middle_energy"),
    ("spike in the middle", "middle_point"),
    ("other kind in the centre", "centre_overall"),
    ("wrong in places of the centre", "centre_shape"),
]


@pytest.mark.parametrize(("what", "statistic"), WRONG)
def test_what_is_wrong_is_seen(model: Exact, usual: Usual, what: str, statistic: str) -> None:
    m = measured(7)
    fine, wrong = check(model, m), check(model, altered(m, what))
    assert usual.p_value(fine) > 0.1
    assert usual.p_value(wrong) == pytest.approx(1 / 13) and wrong[statistic] > max(usual.statistics[statistic])


def test_every_line_is_hidden_once() -> None:
    inner = selfcheck.centre(MASK)
    assert {name: where.nonzero().flatten().tolist() for name, where in selfcheck.regions(MASK).items()} == {
        "": [0, 2, 5, 14, 17, 19],
        "centre_": [7, 8, 9, 11, 12],
        "middle_": [10],
    }
    turns = selfcheck.hidden(MASK & ~inner, inner, 3, seed=0)
    assert torch.stack(turns).sum(0).tolist() == MASK.long().tolist()
    for hide in turns:
        assert hide.any() and not (hide & hide.roll(1) & inner).any(), "not two neighbours of the centre at once"
    others = selfcheck.hidden(MASK & ~inner, inner, 3, seed=1)
    assert not torch.equal(turns[0], others[0]) and torch.equal(turns[0] & inner, others[0] & inner)
    disc = selfcheck.centre(PLANE)
    assert (torch.stack(selfcheck.hidden(PLANE & ~disc, disc, 2, 0)).sum(0) == PLANE).all()
    few = torch.tensor([1, 0, 1, 1, 1, 0, 1]).bool()
    with pytest.raises(selfcheck.Unchecked, match="2 lines are measured outside the centre: too few"):
        selfcheck.hidden(few & ~selfcheck.centre(few), selfcheck.centre(few), 3, 0)
    with pytest.raises(ValueError, match="in 1 turn would hide all"):
        selfcheck.hidden(MASK & ~inner, inner, 1, 0)


@pytest.mark.parametrize(
    ("sampled", "run"),
    [
        (MASK.nonzero().flatten().tolist(), [7, 8, 9, 10, 11, 12]),  # as far as it goes, to either side of 10
        ([0, 9, 10, 15], [9, 10]),
        ([10, 11, 12, 19], [10, 11, 12]),
        ([0, 3, 9, 11], []),
        (list(range(SIZE)), list(range(SIZE))),
        (list(range(5, SIZE)), list(range(5, SIZE))),
        (list(range(15)), list(range(15))),
    ],
)
def test_the_centre_is_the_run_of_columns_around_the_middle(sampled: list[int], run: list[int]) -> None:
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[sampled] = True
    assert selfcheck.centre(mask).nonzero().flatten().tolist() == run


def test_the_centre_of_a_plane_is_a_disc() -> None:
    inside = selfcheck.centre(PLANE)
    assert inside[6, 6] and inside[4, 6] and not inside[1, 3] and (PLANE | ~inside).all()


@pytest.mark.parametrize("written", [lambda m: m, lambda m: m.expand(SIZE, SIZE), lambda m: m.expand(3, SIZE, SIZE)])
def test_columns_are_columns_however_they_are_written(written) -> None:
    assert selfcheck.lines_of(written(MASK)).equal(MASK)
    plane = torch.rand(8, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    assert selfcheck.lines_of(plane).equal(plane)


def test_a_mask_of_the_plane_hides_the_same_columns(model: Exact) -> None:
    m = measured(5)
    assert check(model, m) == check(model, dataclasses.replace(m, mask=MASK.expand(SIZE, SIZE)))


def test_where_the_model_was_surprised(model: Exact) -> None:
    """A point that appears in the measurement of the lines outside the centre shows in the image, at its place."""
    m = measured(3)
    x = torch.zeros(SIZE, SIZE, dtype=torch.complex128)
    x[5, 13] = 40.0
    wrong = dataclasses.replace(m, y_m=m.y_m + Fourier()(x).masked_fill(~(MASK & ~selfcheck.centre(MASK)), 0))
    image = selfcheck.surprise(model, wrong, samples=8, steps=30, seed=1).image
    assert np.unravel_index(int(image.argmax()), image.shape) == (5, 13)


def test_calls_are_counted_and_few_samples_refused(model: Exact) -> None:
    full = dataclasses.replace(measured(0), mask=torch.ones(SIZE, dtype=torch.bool))
    with pytest.raises(selfcheck.Unchecked, match="0 lines are measured outside the centre"):
        selfcheck.surprise(model, full)
    assert selfcheck.surprise(model, measured(0), folds=2, samples=3, steps=4).calls == 2 * 3 * 4
    with pytest.raises(ValueError, match="with 1 sample has no std"):
        selfcheck.surprise(model, measured(0), samples=1)


def slices_of(usual: Usual) -> list[dict[str, float]]:
    rows = zip(*usual.statistics.values(), strict=True)
    return [dict(zip(usual.statistics, row, strict=True)) for row in rows]


def test_p_values(usual: Usual) -> None:
    every = [*slices_of(usual), {name: values[0] + 0.01 for name, values in usual.statistics.items()}]
    found = [Usual.of(4.0, every[:k] + every[k + 1 :]).p_value(one) for k, one in enumerate(every)]
    assert np.allclose(sorted(found), np.arange(1, 14) / 13), "one among equals: each rank once"
    far = {name: max(values) + 5 for name, values in usual.statistics.items()}
    assert usual.p_value(far) == pytest.approx(1 / 13)
    least = {name: min(values) for name, values in usual.statistics.items()}
    both_ways = [name for name in least if name.endswith(("overall", "detail"))]
    assert sorted(both_ways) == ["centre_overall", "detail", "middle_overall", "overall"]
    for name in both_ways:
        quiet = least | {name: least[name] - 5}
        assert usual.p_value(quiet) == pytest.approx(1 / 13), "too well predicted is unusual as well"
    calm = least | {name: float(np.median(usual.statistics[name])) for name in both_ways}
    assert usual.p_value(calm | {"line": -9.0, "centre_point": -9.0}) > 0.5, "lines can only be too far off"


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


def test_a_mask_without_a_centre_has_no_statistics_of_it(model: Exact, usual: Usual) -> None:
    m, open_middle = measured(2), MASK.clone()
    open_middle[10] = False
    found = check(model, dataclasses.replace(m, mask=open_middle, y_m=m.y_m.masked_fill(~open_middle, 0)))
    assert (
        set(found) == {"overall", "detail", "shape", "line", "energy", "point"} and 1 / 13 <= usual.p_value(found) <= 1
    )


def test_what_is_wrong_elsewhere_does_not_count() -> None:
    """With independent entries, the model says the same of one whatever the others are."""
    model, m = Exact(white()), measured(4, white)
    fine = check(model, m)
    for name, column in (("", 14), ("centre_", 9), ("middle_", 10)):
        y = m.y_m.clone()
        y[9, column] += 30
        found = check(model, dataclasses.replace(m, y_m=y))
        changed = {key for key in fine if abs(found[key] - fine[key]) > 1e-6}
        assert changed == {name + key for key in ("overall", "shape", "line", "energy", "point")} & set(fine) | (
            {"detail"} if not name else set()
        )
    assert "middle_line" not in fine, "one line has no others to compare with"


def test_detail_is_a_band_of_frequencies() -> None:
    """Of 32 x 16 entries: from 1/8 up, below 1/4 cycles a pixel, in both directions."""
    band = selfcheck.detail(torch.zeros(3, 32, 16))
    assert band[:, 8].nonzero().flatten().tolist() == [9, 10, 11, 12, 20, 21, 22, 23]
    assert band[16].nonzero().flatten().tolist() == [5, 6, 10, 11]


def test_lines_are_looked_at_coil_by_coil() -> None:
    """One coil loses a line, of which the other still has as much as expected."""
    z = torch.randn(2, 64, 8, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    where, expected = torch.ones(8, dtype=torch.bool), torch.ones(2, 64, 8)
    lost = z.clone()
    lost[1, :, 3] = 0
    fine, found = (selfcheck.statistics_of(z, y, expected, where) for y in (z, lost))
    assert fine["energy"] < 0.5 and found["energy"] > 10
    torn = torch.where(lost == 0, 3 * z, z)
    worse = selfcheck.statistics_of(torn, z, expected, where)
    assert fine["line"] < 0.5 and worse["line"] == pytest.approx(math.log(9), abs=0.4)
    points = selfcheck.statistics_of(z, z, expected, where.expand(64, 8))
    assert set(points) == {"overall", "shape", "point"}, "of single points there are no lines"
    assert points["overall"] == pytest.approx(0, abs=0.1) and points["shape"] == pytest.approx(0.577, abs=0.1)


@pytest.mark.parametrize("coils", [False, True])
def test_coils_and_masks_of_the_plane(coils: bool) -> None:
    """Here the model is wrong, which does not matter."""
    network = UNet(4, 2, channels=8, multipliers=(1,), heads=1, attention=())
    model = Denoiser(network, cosine(1000, 0.5), data_std=1.0, operator=None)
    g = torch.Generator().manual_seed(0)
    A = Sense(coil_maps(3, (16, 16), 0)) if coils else Fourier()
    mask = torch.arange(16) % 3 != 1 if coils else torch.rand(16, 16, generator=g) < 0.5
    mask[..., 7:10] = True
    y_m = A(torch.randn(16, 16, dtype=torch.complex64, generator=g)).masked_fill(~mask, 0)
    found = selfcheck.surprise(model, Measurement(y_m, mask, 1.0, A), folds=2, samples=2, steps=2)
    of_lines = {"line", "energy", "centre_line", "centre_energy", "middle_point"} & set(found.statistics)
    assert len(of_lines) == (5 if coils else 0) and "centre_point" in found.statistics
    assert found.image.shape == (16, 16) and all(map(math.isfinite, found.statistics.values()))


def test_a_sinogram_has_neither_centre_nor_detail() -> None:
    """Here the model is wrong, which does not matter."""
    A = Radon((16, 16), 12)
    network = UNet(2, 1, channels=8, multipliers=(1,), heads=1, attention=())
    model = Denoiser(network, cosine(1000, 0.5), data_std=1.0, operator=None)
    mask = torch.arange(12) % 2 == 0
    y_m = A(torch.rand(16, 16, generator=torch.Generator().manual_seed(0))).masked_fill(~mask, 0)
    found = selfcheck.surprise(model, Measurement(y_m, mask, 1.0, A), folds=3, samples=2, steps=2)
    assert set(found.statistics) == {"overall", "shape", "line", "energy", "point"} and found.image.shape == (16, 16)


def test_of_a_scan() -> None:
    assert selfcheck.of_scan([0.03]) == 0.03
    assert selfcheck.of_scan([0.01, 0.02, 0.9]) == pytest.approx(0.02 * 3 / 2)
    assert selfcheck.of_scan([0.01, 0.8, 0.9]) == 1.0
    fewest = 1 / (selfcheck.enough() + 1)
    assert all(selfcheck.of_scan([fewest] * n) <= selfcheck.ALARM for n in range(1, 300)), "an alarm can be raised"
    rng = np.random.default_rng(0)
    apart = [selfcheck.of_scan(rng.uniform(size=8)) for _ in range(4000)]
    assert np.mean(np.array(apart) <= 0.1) <= 0.1
    same = [selfcheck.of_scan([p] * 8) for p in rng.uniform(size=4000)]
    assert np.mean(np.array(same) <= 0.1) == pytest.approx(0.05, abs=0.02), "whatever slices have in common"


def test_of_a_card(usual: Usual) -> None:
    settings = {"operator": "fourier", "sampler": "dpmpp_2m_sde", "folds": 4, "samples": 8, "steps": 6}
    both = (usual, dataclasses.replace(usual, acceleration=8.0))
    known = SelfCheck(conformal.VERSION, "abc", "drawn", "2026-01-01", **settings, usual=both)
    written = json.loads(json.dumps(dataclasses.asdict(known)))
    found = selfcheck.of_card({"sha256": "abc", "self_check": written})
    assert (
        found == known and found.at(7.1).acceleration == 8.0 and math.isfinite(found.at(3).score(slices_of(usual)[0]))
    )
    with pytest.raises(ValueError, match="carries no self_check"):
        selfcheck.of_card({"sha256": "abc"})
    with pytest.raises(ValueError, match="was fitted on other weights"):
        selfcheck.of_card({"sha256": "abd", "self_check": written})
    with pytest.raises(ValueError, match=r"has version 3, not \d+: run mcddpm calibrate anew"):
        selfcheck.of_card({"sha256": "abc", "self_check": written | {"version": 3}})
    with pytest.raises(ValueError, match="has version of before there were any"):
        selfcheck.of_card({"sha256": "abc", "self_check": {"model": "abc", "usual": []}})


def test_the_shipped_model_is_calibrated() -> None:
    card = describe("default")[0]
    known, fitted = selfcheck.of_card(card), conformal.of_card(card)
    assert [u.acceleration for u in known.usual] == [t.acceleration for t in fitted.adaptive] == [4.0, 8.0]
    assert {"overall", "detail", "centre_energy", "middle_point"} <= set(known.usual[0].statistics)
