"""What a scan says of the model: calm where the model is exact, and loud about spikes, lost lines and scans of another
kind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from mcddpm.diffusion.gaussian import GaussianPrior
from mcddpm.diffusion.schedules import cosine
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.unet import UNet
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement
from mcddpm.physics.sense import Sense
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.uncertainty import surprise
from mcddpm.uncertainty.surprise import HidePlan, Unchecked
from mcddpm.uncertainty.usual import Usual
from tests.problems import Exact

SIZE = 20
MASK = torch.zeros(SIZE, dtype=torch.bool)
MASK[[0, 2, 5, 7, 8, 9, 10, 11, 12, 14, 17, 19]] = True

PLANE = torch.zeros(12, 12, dtype=torch.bool)
PLANE[4:9, 4:9] = True
PLANE[1, ::3] = True


@cache
def smooth() -> GaussianPrior:
    place = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")).reshape(2, -1).double()
    blur = torch.exp(-torch.cdist(place.T, place.T).square() / 1.5)
    factor = blur.reshape(-1, SIZE, SIZE).to(torch.complex128)
    return GaussianPrior(torch.ones(SIZE, SIZE, dtype=torch.complex128), factor)


@cache
def white() -> GaussianPrior:
    """Pixels, and so entries of k-space, that know nothing of each other."""
    factor = torch.eye(SIZE * SIZE, dtype=torch.complex128).reshape(-1, SIZE, SIZE)
    return GaussianPrior(torch.zeros(SIZE, SIZE, dtype=torch.complex128), factor)


@cache
def exact(of: Callable[[], GaussianPrior]) -> Exact:
    """What is costly is done once for each mask; and so once for each seed of the turns."""
    return Exact(of())


def measured(seed: int, of: Callable[[], GaussianPrior] = smooth, scale: float = 1.0) -> Measurement:
    """scale: of the scan's own units, which the model never sees."""
    x = of().draw(torch.Generator().manual_seed(seed))
    return Measurement(Fourier()(x).masked_fill(~MASK, 0), MASK, scale, Fourier())


def check(m: Measurement, of: Callable[[], GaussianPrior] = smooth) -> dict[str, float]:
    return surprise.surprise(exact(of), m, HidePlan(4, 8, 30), seed=1).statistics


@pytest.fixture(scope="module")
def usual() -> Usual:
    return Usual.of(4.0, [check(measured(100 + k)) for k in range(12)])


def drawn(model: Exact, m: Measurement, plan: DrawPlan, **_: object) -> Reconstruction:
    """What `reconstruct` would draw with very many steps."""
    known = model.posterior(m.operator, m.y_m, m.mask, m.noise)
    g = torch.Generator().manual_seed(plan.seed)
    u = torch.randn(plan.samples, len(known.x_factor), 2, dtype=torch.float64, generator=g)
    x = known.x_mean + torch.tensordot(torch.view_as_complex(u), known.x_factor, dims=1)
    return Reconstruction(x / m.scale, plan.steps)


def same_turns(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    own = surprise.hidden
    monkeypatch.setattr(surprise, "hidden", lambda outer, inner, folds, _: own(outer, inner, folds, seed))


@pytest.mark.parametrize(("of", "expected"), [(white, 1.01), (smooth, 0.944)])
def test_an_exact_model_is_not_surprised(
    of: Callable[[], GaussianPrior], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """|z|^2 is 1 on average where entries' variances are alike: 1.125 if it were forgotten that the mean of 8 samples
    is itself 1/8 off. Where they fall by orders of magnitude it is 0.94, for std is averaged over neighbours."""
    monkeypatch.setattr(surprise, "reconstruct", drawn)
    same_turns(monkeypatch, 1)
    plan = HidePlan(4, 8, 30)
    found = [surprise.surprise(exact(of), measured(k, of, 0.5), plan, seed=k).statistics for k in range(150)]
    assert np.mean([np.exp(one["overall"]) for one in found]) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(("of", "expected"), [(white, 1.01), (smooth, 1.0)])
def test_nor_by_noise_that_it_knows(
    of: Callable[[], GaussianPrior], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden entry is its draw and noise: 2 or more where noise as large as the signal is forgotten."""
    monkeypatch.setattr(surprise, "reconstruct", drawn)
    same_turns(monkeypatch, 1)
    s, found = 1.0, []
    for k in range(60):
        m = measured(k, of)
        g = torch.Generator().manual_seed(k + 1000)
        eps = torch.view_as_complex(torch.randn(SIZE, SIZE, 2, dtype=torch.float64, generator=g))
        noisy = dataclasses.replace(m, y_m=m.y_m + s * eps * MASK, noise=torch.tensor(s), noise_from="given")
        found.append(surprise.surprise(exact(of), noisy, HidePlan(4, 8, 30), seed=k).statistics)
    assert np.mean([np.exp(one["overall"]) for one in found]) == pytest.approx(expected, abs=0.04)
    if of is white:  # E|y|^2 has the noise in it: without, the logarithm would be off by that of 2
        assert np.mean([one["energy"] for one in found]) < 0.75


@pytest.mark.parametrize("of", [white, smooth])
def test_nor_is_it_where_a_sampler_draws(of: Callable[[], GaussianPrior], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the smooth prior it is 1.00, not 0.94, with 30 steps as with 240: the grid ends at a twentieth of `data_std`,
    and the std of entries that vary by less comes out too small."""
    same_turns(monkeypatch, 1)
    plan = HidePlan(4, 8, 30)
    found = [surprise.surprise(exact(of), measured(k, of), plan, seed=k).statistics for k in range(48)]
    assert np.mean([np.exp(one["overall"]) for one in found]) == pytest.approx(1.0, abs=0.04)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_variance_of_a_few_samples(dtype: torch.dtype) -> None:
    """Averaged in logarithms, and right all the same: a twelfth too small if their bias were forgotten."""
    drawn = torch.randn(8, 400, 400, dtype=dtype, generator=torch.Generator().manual_seed(0))
    found = surprise.variance_of(drawn, torch.ones(400, dtype=torch.bool))
    freedom = 7.0 if dtype.is_complex else 3.5
    jensen = float(torch.polygamma(1, torch.tensor(freedom, dtype=torch.float64))) / 15 / 2  # exp of a mean of 15
    assert float(found[2:-2, 1:-1].mean()) == pytest.approx(1 + jensen, abs=0.005)


def test_expected_energy_by_many_draws() -> None:
    """Two samples and what they are of, each N(1, 2): E|y|^2 is 3, and 4 or 5 if the mean's own error counted."""
    drawn = 1 + torch.randn(3, 100_000, dtype=torch.complex128, generator=torch.Generator().manual_seed(0)) * 2**0.5
    mean, variance = drawn[:2].mean(0), drawn[:2].var(0)
    found = float(surprise.energy_of(mean, variance, 2).mean())
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
        where = surprise.regions(MASK)["centre_" if "centre" in what else ""]
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


def test_what_is_fine_is_not_called_wrong(usual: Usual) -> None:
    assert usual.p_value(check(measured(7))) > 0.1


@pytest.mark.parametrize(("what", "statistic"), WRONG)
def test_what_is_wrong_is_seen(usual: Usual, what: str, statistic: str) -> None:
    wrong = check(altered(measured(7), what))
    assert usual.p_value(wrong) == pytest.approx(1 / 13) and wrong[statistic] > max(usual.statistics[statistic])


def test_every_line_is_hidden_once() -> None:
    inner = surprise.centre(MASK)
    assert {name: where.nonzero().flatten().tolist() for name, where in surprise.regions(MASK).items()} == {
        "": [0, 2, 5, 14, 17, 19],
        "centre_": [7, 8, 9, 11, 12],
        "middle_": [10],
    }
    turns = surprise.hidden(MASK & ~inner, inner, 3, seed=0)
    assert torch.stack(turns).sum(0).tolist() == MASK.long().tolist()
    for hide in turns:
        assert hide.any() and not (hide & hide.roll(1) & inner).any(), "not two neighbours of the centre at once"
    others = surprise.hidden(MASK & ~inner, inner, 3, seed=1)
    assert not torch.equal(turns[0], others[0]) and torch.equal(turns[0] & inner, others[0] & inner)
    disc = surprise.centre(PLANE)
    assert (torch.stack(surprise.hidden(PLANE & ~disc, disc, 2, 0)).sum(0) == PLANE).all()
    few = torch.tensor([1, 0, 1, 1, 1, 0, 1]).bool()
    with pytest.raises(Unchecked, match="2 lines are measured outside the centre: too few"):
        surprise.hidden(few & ~surprise.centre(few), surprise.centre(few), 3, 0)
    with pytest.raises(ValueError, match="in 1 turn would hide all"):
        surprise.hidden(MASK & ~inner, inner, 1, 0)


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
    assert surprise.centre(mask).nonzero().flatten().tolist() == run


def test_the_centre_of_a_plane_is_a_disc() -> None:
    inside = surprise.centre(PLANE)
    assert inside[6, 6] and inside[4, 6] and not inside[1, 3] and (PLANE | ~inside).all()


@pytest.mark.parametrize("written", [lambda m: m, lambda m: m.expand(SIZE, SIZE), lambda m: m.expand(3, SIZE, SIZE)])
def test_columns_are_columns_however_they_are_written(written) -> None:
    assert surprise.lines_of(written(MASK)).equal(MASK)
    plane = torch.rand(8, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    assert surprise.lines_of(plane).equal(plane)


def test_a_mask_of_the_plane_hides_the_same_columns() -> None:
    m = measured(5)
    assert check(m) == check(dataclasses.replace(m, mask=MASK.expand(SIZE, SIZE)))


def test_where_the_model_was_surprised() -> None:
    """A point that appears in the measurement of the lines outside the centre shows in the image, at its place."""
    m = measured(3)
    x = torch.zeros(SIZE, SIZE, dtype=torch.complex128)
    x[5, 13] = 40.0
    wrong = dataclasses.replace(m, y_m=m.y_m + Fourier()(x).masked_fill(~(MASK & ~surprise.centre(MASK)), 0))
    image = surprise.surprise(exact(smooth), wrong, HidePlan(4, 8, 30), seed=1).image
    assert np.unravel_index(int(image.argmax()), image.shape) == (5, 13)


def test_calls_are_counted_and_few_samples_refused() -> None:
    model, full = exact(smooth), dataclasses.replace(measured(0), mask=torch.ones(SIZE, dtype=torch.bool))
    with pytest.raises(Unchecked, match="0 lines are measured outside the centre"):
        surprise.surprise(model, full, HidePlan())
    assert surprise.surprise(model, measured(0), HidePlan(2, 3, 4)).calls == 2 * 3 * 4
    assert surprise.surprise(model, measured(0), HidePlan(2, 3, 4, "heun")).calls == 2 * 3 * 7
    with pytest.raises(ValueError, match="with 1 sample has no std"):
        surprise.surprise(model, measured(0), HidePlan(samples=1))


def test_a_mask_without_a_centre_has_no_statistics_of_it(usual: Usual) -> None:
    m, open_middle = measured(2), MASK.clone()
    open_middle[10] = False
    found = check(dataclasses.replace(m, mask=open_middle, y_m=m.y_m.masked_fill(~open_middle, 0)))
    assert (
        set(found) == {"overall", "detail", "shape", "line", "energy", "point"} and 1 / 13 <= usual.p_value(found) <= 1
    )


def test_what_is_wrong_elsewhere_does_not_count() -> None:
    """With independent entries, the model says the same of one whatever the others are."""
    m = measured(4, white)
    fine = check(m, white)
    for name, column in (("", 14), ("centre_", 9), ("middle_", 10)):
        y = m.y_m.clone()
        y[9, column] += 30
        found = check(dataclasses.replace(m, y_m=y), white)
        changed = {key for key in fine if abs(found[key] - fine[key]) > 1e-6}
        assert changed == {name + key for key in ("overall", "shape", "line", "energy", "point")} & set(fine) | (
            {"detail"} if not name else set()
        )
    assert "middle_line" not in fine, "one line has no others to compare with"


def test_detail_is_a_band_of_frequencies() -> None:
    """Of 32 x 16 entries: from 1/8 up, below 1/4 cycles a pixel, in both directions."""
    band = surprise.detail(torch.zeros(3, 32, 16))
    assert band[:, 8].nonzero().flatten().tolist() == [9, 10, 11, 12, 20, 21, 22, 23]
    assert band[16].nonzero().flatten().tolist() == [5, 6, 10, 11]


def test_lines_are_looked_at_coil_by_coil() -> None:
    """One coil loses a line, of which the other still has as much as expected."""
    z = torch.randn(2, 64, 8, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    where, expected = torch.ones(8, dtype=torch.bool), torch.ones(2, 64, 8)
    lost = z.clone()
    lost[1, :, 3] = 0
    fine, found = (surprise.statistics_of(z, y, expected, where) for y in (z, lost))
    assert fine["energy"] < 0.5 and found["energy"] > 10
    torn = torch.where(lost == 0, 3 * z, z)
    worse = surprise.statistics_of(torn, z, expected, where)
    assert fine["line"] < 0.5 and worse["line"] == pytest.approx(math.log(9), abs=0.4)
    points = surprise.statistics_of(z, z, expected, where.expand(64, 8))
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
    found = surprise.surprise(model, Measurement(y_m, mask, 1.0, A), HidePlan(2, 2, 2))
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
    found = surprise.surprise(model, Measurement(y_m, mask, 1.0, A), HidePlan(3, 2, 2))
    assert set(found.statistics) == {"overall", "shape", "line", "energy", "point"} and found.image.shape == (16, 16)
