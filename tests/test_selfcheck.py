"""The self-check: calm where the model is exact, and loud about spikes, lost lines and scans of another kind."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm import selfcheck
from mcddpm.datasets import Measurement
from mcddpm.denoiser import Denoiser
from mcddpm.gaussian import GaussianPrior
from mcddpm.operators import Fourier
from mcddpm.schedules import cosine
from mcddpm.selfcheck import SelfCheck, Usual
from mcddpm.unet import UNet

SIZE = 20
MASK = torch.zeros(SIZE, dtype=torch.bool)
MASK[[0, 2, 5, 7, 8, 9, 10, 11, 12, 14, 17, 19]] = True


def prior() -> GaussianPrior:
    place = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")).reshape(2, -1).double()
    blur = torch.exp(-torch.cdist(place.T, place.T).square() / 1.5)
    factor = blur.reshape(-1, SIZE, SIZE).to(torch.complex128)
    return GaussianPrior(torch.ones(SIZE, SIZE, dtype=torch.complex128), factor)


class Exact(Denoiser):
    """Knows the posterior of the prior, whatever was measured."""

    def __init__(self) -> None:
        network = UNet(4, 2, channels=8, multipliers=(1,), heads=1, attention=())
        super().__init__(network, cosine(1000, 0.5), data_std=1.0, operator=None)
        self.prior, self.known = prior(), {}

    def denoise(self, y_t: Tensor, t: Tensor, y_m: Tensor, mask: Tensor, A: Fourier) -> Tensor:
        key = (mask.numpy().tobytes(), y_m[0].numpy().tobytes())
        if key not in self.known:
            self.known[key] = self.prior.posterior(A, y_m[0], mask)
        bar_alpha, bar_beta = self.schedule.at(t)
        return self.known[key].denoise(y_t, float(bar_alpha), float(bar_beta))


@pytest.fixture(scope="module")
def model() -> Exact:
    return Exact()


def measured(seed: int) -> Measurement:
    x = prior().draw(torch.Generator().manual_seed(seed))
    return Measurement(Fourier()(x).masked_fill(~MASK, 0), MASK, 1.0, Fourier())


def check(model: Exact, m: Measurement) -> dict[str, float]:
    return selfcheck.surprise(model, m, samples=8, steps=30, seed=1).statistics


@pytest.fixture(scope="module")
def usual(model: Exact) -> Usual:
    found = [check(model, measured(100 + k)) for k in range(12)]
    return Usual(4.0, **{name: tuple(f[name] for f in found) for name in selfcheck.STATISTICS})


def test_an_exact_model_is_not_surprised(usual: Usual) -> None:
    assert np.mean(np.exp(usual.overall)) == pytest.approx(1.0, abs=0.15)


def altered(m: Measurement, what: str) -> Measurement:
    y, line = m.y_m.clone(), 14
    if what == "spike":
        y[3, line] += 30 * y.abs()[:, line].mean()
    elif what == "corrupt line":
        y[:, line] = 4 * y[:, line].roll(7)
    elif what == "lost line":
        y[:, line] = 0
    else:
        y = torch.where(selfcheck.centre(MASK), y, 2.5 * y)
    return dataclasses.replace(m, y_m=y)


WRONG = [("spike", "point"), ("corrupt line", "line"), ("lost line", "line"), ("other kind", "overall")]


@pytest.mark.parametrize(("what", "statistic"), WRONG)
def test_what_is_wrong_is_seen(model: Exact, usual: Usual, what: str, statistic: str) -> None:
    m = measured(7)
    fine, wrong = check(model, m), check(model, altered(m, what))
    assert usual.p_value(fine) > 0.1
    assert usual.p_value(wrong) == pytest.approx(1 / 13) and wrong[statistic] > max(getattr(usual, statistic))


def test_every_line_outside_the_centre_is_hidden_once() -> None:
    turns = selfcheck.hidden(MASK, 3, seed=0)
    assert selfcheck.centre(MASK).nonzero().flatten().tolist() == [8, 9, 10, 11, 12]
    assert torch.stack(turns).sum(0).tolist() == (MASK & ~selfcheck.centre(MASK)).long().tolist()
    assert not torch.equal(turns[0], selfcheck.hidden(MASK, 3, seed=1)[0])
    plane = torch.zeros(12, 12, dtype=torch.bool)
    plane[4:9, 4:9] = True
    plane[1, ::3] = True
    inside = selfcheck.centre(plane)
    assert inside[6, 6] and inside[4, 6] and not inside[1, 3] and (plane | ~inside).all()
    assert (torch.stack(selfcheck.hidden(plane, 2, 0)).sum(0) == (plane & ~inside)).all()
    with pytest.raises(ValueError, match="2 lines are measured outside the centre: too few"):
        selfcheck.hidden(torch.tensor([1, 0, 1, 1, 1, 0, 1]).bool(), 3, 0)


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
    assert selfcheck.surprise(model, measured(0), folds=2, samples=3, steps=4).calls == 2 * 3 * 4
    with pytest.raises(ValueError, match="with 1 sample has no std"):
        selfcheck.surprise(model, measured(0), samples=1)


def test_p_values(usual: Usual) -> None:
    known = zip(usual.overall, usual.line, usual.point, strict=True)
    own = [dict(zip(selfcheck.STATISTICS, values, strict=True)) for values in known]
    ranks = sorted(round(13 * usual.p_value(s)) for s in own)
    assert ranks[0] == 2 and ranks[-1] == 13 and len(set(ranks)) > 8, "each as unusual as so many"
    far = {name: max(getattr(usual, name)) + 5 for name in selfcheck.STATISTICS}
    assert usual.p_value(far) == pytest.approx(1 / 13)
    quiet = {"overall": min(usual.overall) - 5, "line": min(usual.line), "point": min(usual.point)}
    assert usual.p_value(quiet) == pytest.approx(1 / 13), "too well predicted is unusual as well"


def test_of_a_scan() -> None:
    assert selfcheck.of_scan([0.03]) == 0.03
    assert selfcheck.of_scan([0.01, 0.02, 0.9]) == pytest.approx(0.02 * 3 / 2)
    assert selfcheck.of_scan([0.01, 0.8, 0.9]) == 1.0
    rng = np.random.default_rng(0)
    apart = [selfcheck.of_scan(rng.uniform(size=8)) for _ in range(4000)]
    assert np.mean(np.array(apart) <= 0.1) <= 0.1
    same = [selfcheck.of_scan([p] * 8) for p in rng.uniform(size=4000)]
    assert np.mean(np.array(same) <= 0.1) == pytest.approx(0.05, abs=0.02), "whatever slices have in common"


def test_of_a_card(usual: Usual) -> None:
    settings = {"operator": "fourier", "sampler": "dpmpp_2m_sde", "folds": 4, "samples": 8, "steps": 6}
    both = (usual, dataclasses.replace(usual, acceleration=8.0))
    known = SelfCheck("abc", "drawn", "2026-01-01", **settings, usual=both)
    found = selfcheck.of_card({"sha256": "abc", "self_check": dataclasses.asdict(known)})
    assert found == known and found.at(7.1).acceleration == 8.0 and math.isfinite(found.at(3).score(check_of(usual)))
    with pytest.raises(ValueError, match="carries no self_check"):
        selfcheck.of_card({"sha256": "abc"})
    with pytest.raises(ValueError, match="was fitted on other weights"):
        selfcheck.of_card({"sha256": "abd", "self_check": dataclasses.asdict(known)})


def check_of(usual: Usual) -> dict[str, float]:
    return {name: getattr(usual, name)[0] for name in selfcheck.STATISTICS}
