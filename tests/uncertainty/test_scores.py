"""Error bars are measured right: on the exact posterior all agrees, and with std wrong by 10 % each measure objects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm.diffusion.gaussian import GaussianPosterior, GaussianPrior
from mcddpm.physics.fourier import Fourier
from mcddpm.uncertainty import scores
from mcddpm.uncertainty.scores import LEVELS

SIZE, COUNT, TRUTHS = 16, 40, 250


@pytest.fixture(scope="module")
def exact() -> tuple[GaussianPosterior, torch.Generator]:
    """The posterior of a smooth Gaussian image, of which every third column of k-space is measured."""
    g = torch.Generator().manual_seed(0)
    place = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")).reshape(2, -1).double()
    blur = torch.exp(-torch.cdist(place.T, place.T).square()) * (0.5 + torch.rand(SIZE**2, generator=g))
    prior = GaussianPrior(
        torch.ones(SIZE, SIZE, dtype=torch.complex128), blur.reshape(-1, SIZE, SIZE).to(torch.complex128)
    )
    mask = torch.arange(SIZE) % 3 == 0
    y_m = Fourier()(prior.draw(g)).masked_fill(~mask, 0)
    return prior.posterior(Fourier(), y_m, mask), g


@pytest.fixture(scope="module")
def std(exact: tuple[GaussianPosterior, torch.Generator]) -> Tensor:
    """Of the posterior's real part, (H, W)."""
    return exact[0].x_factor.abs().square().sum(0).sqrt()


@pytest.fixture(scope="module")
def posterior(exact: tuple[GaussianPosterior, torch.Generator]) -> tuple[Tensor, Tensor, Tensor]:
    """Its mean, samples' deviations from it (COUNT, slices x H, W), and truths."""
    known, g = exact

    def draw(count: int) -> Tensor:
        u = torch.randn(count, len(known.x_factor), 2, dtype=torch.float64, generator=g)
        return torch.tensordot(torch.view_as_complex(u), known.x_factor, dims=1).real

    mean = known.x_mean.real.repeat(TRUTHS, 1)
    deviations = torch.stack([draw(TRUTHS).reshape(-1, SIZE) for _ in range(COUNT)])
    return mean, deviations, mean + draw(TRUTHS).reshape(-1, SIZE)


def close(name: str, samples: Tensor, truth: Tensor) -> bool:
    """Whether a measure finds these samples calibrated, at the tolerance it is trusted to."""
    kind, _, level = name.partition(" ")
    if kind in ("normal", "quantile"):
        interval = getattr(scores, f"{kind}_interval")(samples, float(level))
        return abs(scores.coverage(interval, truth) - float(level)) < 0.01
    if kind == "ranks":
        slices = zip(samples.split(SIZE, 1), truth.split(SIZE), strict=True)
        counts = torch.stack([scores.ranks(s, t) for s, t in slices])
        return scores.uniformity(counts) > 0.05
    if kind == "crps":  # of a Gaussian that is as wide as it should be; std is too small by 1 / 4N on average
        expected = (1 + 1 / (4 * COUNT - 4)) * samples.std(0).mean() / math.sqrt(math.pi)
        return abs(scores.crps(samples, truth) / float(expected) - 1) < 0.02
    if kind == "spread":
        return abs(scores.spread(samples, truth) - 1) < 0.02
    law = scores.sample_law(samples, truth, (1, 5, COUNT))
    return all(abs(found / expected - 1) < 0.02 for found, expected in law.values())


CHECKS = [*(f"{kind} {level}" for kind in ("normal", "quantile") for level in LEVELS), "ranks", "crps", "spread", "law"]


@pytest.mark.parametrize("name", CHECKS)
def test_the_exact_posterior_is_calibrated_and_a_wrong_std_is_not(
    name: str, posterior: tuple[Tensor, Tensor, Tensor]
) -> None:
    mean, deviations, truth = posterior
    assert close(name, mean + deviations, truth)
    for factor in (0.9, 1.1):
        assert not close(name, mean + factor * deviations, truth), f"std times {factor} went unnoticed"


def test_crps_of_the_exact_posterior_is_its_own(posterior: tuple[Tensor, Tensor, Tensor], std: Tensor) -> None:
    """sigma / sqrt(pi), of the true sigma."""
    mean, deviations, truth = posterior
    assert scores.crps(mean + deviations, truth) == pytest.approx(float(std.mean()) / math.sqrt(math.pi), rel=0.02)


def test_the_law_of_few_samples_is_that_of_all_their_means() -> None:
    """Four samples: for every K, the mean over all subsets; and the error that std expects of the mean of four."""
    g = torch.Generator().manual_seed(0)
    samples, truth = torch.randn(4, 5, 6, generator=g).double(), torch.randn(5, 6, generator=g).double()
    variance = float(samples.var(0).mean())
    for k, (found, expected) in scores.sample_law(samples, truth, (1, 2, 3, 4)).items():
        means = [torch.stack(some).mean(0) for some in itertools.combinations(samples, k)]
        assert found == pytest.approx(float(torch.stack([(m - truth).square().mean() for m in means]).mean()))
        assert expected == pytest.approx((1 + 1 / k) * variance)
    error = float((samples.mean(0) - truth).square().mean())
    assert scores.spread(samples, truth) == pytest.approx((1.25 * variance / error) ** 0.5)


def test_scores_are_each_their_own() -> None:
    g = torch.Generator().manual_seed(0)
    samples, truth = torch.randn(20, 8, 8, generator=g), torch.randn(8, 8, generator=g)
    where = torch.rand(8, 8, generator=g) > 0.4
    found = asdict(scores.scores(samples, truth, where))
    normal, quantile = found.pop("coverage"), found.pop("quantile")
    std, error = samples.std(0), samples.mean(0) - truth
    one, expected = scores.sample_law(samples, truth, (1,), where)[1]
    by_name = {
        "width_90": scores.width(scores.normal_interval(samples, 0.9), where),
        "crps": scores.crps(samples, truth, where),
        "energy": scores.energy_score(samples, truth, where),
        "spread": scores.spread(samples, truth, where),
        "correlation": scores.rank_correlation(std, error, where),
        "sparsification": scores.sparsification_area(std, error, where),
        "law": one / expected,
        "rank_p": scores.uniformity(scores.ranks(samples, truth, where)),
        "variance": float(std[where].square().mean()),
        "squared_error": float(error[where].square().mean()),
    }
    assert found == pytest.approx(by_name) and len(set(by_name.values())) == 10

    def covered(kind: Callable[..., tuple[Tensor, Tensor]], levels: Sequence[float]) -> dict[int, float]:
        return {round(100 * v): scores.coverage(kind(samples, v), truth, where) for v in levels}

    assert normal == covered(scores.normal_interval, LEVELS) and len(set(normal.values())) > 2
    assert quantile == covered(scores.quantile_interval, (0.5, 0.8, 0.9)), "of 20 samples, no more"


@pytest.mark.parametrize(("count", "possible"), [(2, []), (9, [50, 80]), (19, [50, 80, 90]), (39, [50, 80, 90, 95])])
def test_quantiles_are_scored_as_far_as_there_are_samples(count: int, possible: list[int]) -> None:
    g = torch.Generator().manual_seed(0)
    found = scores.scores(torch.randn(count, 4, 4, generator=g), torch.randn(4, 4, generator=g))
    assert list(found.quantile) == possible and list(found.coverage) == [50, 80, 90, 95]


def test_spread_and_law_of_several_slices() -> None:
    """Those of one image that holds them all."""
    g = torch.Generator().manual_seed(0)
    samples, truth = torch.randn(5, 12, 6, generator=g).double(), torch.randn(12, 6, generator=g).double()
    parts = [scores.scores(*part) for part in zip(samples.split(4, 1), truth.split(4), strict=True)]
    variance, squared = (float(np.mean([getattr(p, key) for p in parts])) for key in ("variance", "squared_error"))
    whole = scores.scores(samples, truth)
    assert scores.pooled(variance, squared, 5) == pytest.approx((whole.spread, whole.law))
    assert whole.spread != pytest.approx(np.mean([p.spread for p in parts]), rel=1e-3)


def test_crps_is_the_closed_form_of_a_gaussian() -> None:
    z = torch.linspace(-2, 2, 9, dtype=torch.float64).reshape(3, 3)
    g = torch.Generator().manual_seed(0)
    samples = torch.randn(200_000, 3, 3, dtype=torch.float64, generator=g)
    normal = torch.distributions.Normal(0.0, 1.0)
    exact = z * (2 * normal.cdf(z) - 1) + 2 * normal.log_prob(z).exp() - 1 / math.sqrt(math.pi)
    for place in np.ndindex(3, 3):
        where = torch.zeros(3, 3, dtype=torch.bool)
        where[place] = True
        assert scores.crps(samples, z, where) == pytest.approx(float(exact[place]), abs=0.005)


def test_scores_by_hand() -> None:
    samples, truth = torch.tensor([[[0.0]], [[2.0]], [[4.0]]]), torch.tensor([[1.0]])
    # E|X - x| = (1 + 1 + 3) / 3; pairs: |0-2| = 2, |0-4| = 4, |2-4| = 2, their mean 8 / 3, half of it 4 / 3
    assert scores.crps(samples, truth) == pytest.approx(5 / 3 - 4 / 3)
    assert scores.energy_score(samples, truth) == pytest.approx(5 / 3 - 4 / 3), "the same in one dimension"
    plane = torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]]])
    expected = (math.hypot(1, 0) + math.hypot(2, 4)) / 2 - 5 / 2
    assert scores.energy_score(plane, torch.tensor([[1.0, 0.0]])) == pytest.approx(expected / math.sqrt(2))


def test_the_energy_score_sees_correlations() -> None:
    """Truth and samples are pairs of equal numbers; samples whose halves do not belong together score worse."""
    g = torch.Generator().manual_seed(0)
    better = []
    for _ in range(200):
        drawn = torch.randn(41, 1, 1, generator=g, dtype=torch.float64).expand(41, 1, 8)
        samples, truth = drawn[1:], drawn[0]
        apart = torch.stack([column[torch.randperm(40, generator=g)] for column in samples.unbind(2)], 2)
        better.append(scores.energy_score(samples, truth) - scores.energy_score(apart, truth))
    assert np.mean(better) < -2 * np.std(better) / math.sqrt(200)


def test_intervals_by_order_statistics() -> None:
    samples = torch.arange(1.0, 20.0).reshape(19, 1, 1)
    low, high = scores.quantile_interval(samples, 0.9)  # k = 0.05 * 20
    assert (low.item(), high.item()) == pytest.approx((1.0, 19.0))
    low, high = scores.quantile_interval(samples, 0.85)  # k = 1.5
    assert (low.item(), high.item()) == pytest.approx((1.5, 18.5))
    with pytest.raises(ValueError, match=r"19 samples have no 95 % interval between them: it takes 39"):
        scores.quantile_interval(samples, 0.95)


def test_few_samples_cover_as_they_say() -> None:
    """With five samples, mean -+ 1.96 std would cover 84 %; Student's factor makes it 95."""
    g = torch.Generator().manual_seed(0)
    drawn = torch.randn(6, 200, 200, generator=g, dtype=torch.float64)
    interval = scores.normal_interval(drawn[1:], 0.95)
    assert scores.coverage(interval, drawn[0]) == pytest.approx(0.95, abs=0.004)
    std = float(drawn[1:].std(0).mean())
    assert scores.width(interval) == pytest.approx(2 * 2.7764 * (1 + 1 / 5) ** 0.5 * std, rel=1e-4)


def test_ranks_of_ties_are_drawn_by_lot() -> None:
    samples, truth = torch.zeros(3, 100, 100), torch.zeros(100, 100)
    found = scores.ranks(samples, truth)
    assert found.sum() == 4 * 100 * 100 and (found.sum(0) == 10_000).all() and (found.sum(1) == 10_000).all()
    assert (found[0] - 2500).abs().max() < 200, "a truth that equals all samples is anywhere among them"
    above = scores.ranks(samples, truth + 1)
    assert above[0].tolist() == [0, 0, 0, 10_000]


def test_uniformity_bears_correlated_pixels() -> None:
    """Smooth images, whose pixels depend on each other: an ordinary chi-square would reject nearly all of them."""
    g, p = torch.Generator().manual_seed(0), []
    for _ in range(400):
        white = torch.randn(5, 20, 16, 16, generator=g)
        smooth = torch.nn.functional.avg_pool2d(white, 9, 1)  # 5 slices of 20 images, 8 x 8
        counts = torch.stack([scores.ranks(one[1:], one[0]) for one in smooth])
        p.append(scores.uniformity(counts, draws=199))
    assert 0.06 < np.mean([value <= 0.1 for value in p]) < 0.14


def test_a_true_posterior_near_the_threshold_is_accepted() -> None:
    """Pixels straddle the edge of the foreground: chosen by the truth alone, they would be those where it is high."""
    g = torch.Generator().manual_seed(0)
    drawn = (0.1 + 0.02 * torch.randn(20, 64, 64, generator=g)).clamp(min=0)
    drawn[:, 0, 0] = 1.0
    samples, truth = drawn[1:], drawn[0]
    even = scores.ranks(samples, truth, scores.even_foreground(samples, truth))[0].double()
    by_truth = scores.ranks(samples, truth, scores.foreground(truth))[0].double()
    mean = lambda counts: float((counts * torch.arange(20)).sum() / counts.sum())  # noqa: E731
    assert mean(even) == pytest.approx(9.5, abs=0.4) and mean(by_truth) > 13


def test_where_pixels_count() -> None:
    g = torch.Generator().manual_seed(0)
    samples, truth = torch.randn(30, 8, 8, generator=g), torch.randn(8, 8, generator=g)
    where = torch.zeros(8, 8, dtype=torch.bool)
    where[2:5, 1:7] = True
    cut = (samples[:, 2:5, 1:7], truth[2:5, 1:7])
    for measure in (scores.crps, scores.energy_score, scores.spread):
        assert measure(samples, truth, where) == pytest.approx(measure(*cut))
    assert scores.ranks(samples, truth, where)[0].equal(scores.ranks(*cut)[0])
    inside = scores.coverage(scores.normal_interval(samples, 0.5), truth, where)
    assert inside == scores.coverage(scores.normal_interval(cut[0], 0.5), cut[1])


def test_spread_against_skill() -> None:
    g = torch.Generator().manual_seed(0)
    std = torch.rand(300, 300, generator=g, dtype=torch.float64) + 0.1
    error = std * torch.randn(300, 300, generator=g, dtype=torch.float64)
    predicted, found = scores.spread_skill(std, error, bins=6)
    assert len(predicted) == 6 and (found / predicted - 1).abs().max() < 0.03 and (predicted.diff() > 0).all()
    assert scores.rank_correlation(std, std) == pytest.approx(1.0)
    assert scores.rank_correlation(std, -std) == pytest.approx(1.0), "the size of the error counts"
    assert 0.2 < scores.rank_correlation(std, error) < 0.6
    assert abs(scores.rank_correlation(torch.rand(300, 300, generator=g), error)) < 0.02
    assert scores.rank_correlation(torch.ones(4, 4), error[:4, :4]) == 0.0


def test_sparsification() -> None:
    g = torch.Generator().manual_seed(0)
    error = torch.randn(200, 200, generator=g, dtype=torch.float64)
    parts, curve, best = scores.sparsification(error.abs(), error)
    assert curve.equal(best) and float(curve[0]) == pytest.approx(1.0) and (curve.diff() < 0).all()
    assert float(parts[-1]) == pytest.approx(0.95)
    half = error.abs().flatten().sort().values[: 200 * 200 // 2]
    assert float(scores.sparsification(error.abs(), error, points=96)[1][50]) == pytest.approx(
        float(half.square().mean().sqrt() / error.square().mean().sqrt()), rel=1e-3
    )
    assert scores.sparsification_area(error.abs(), error) == 0.0
    chance = scores.sparsification_area(torch.rand(200, 200, generator=g), error)
    assert chance == pytest.approx(0.95 - float(torch.trapezoid(best, parts.double())), abs=0.02)


def test_bootstrap() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(3.0, 1.0, 400)
    low, high = scores.bootstrap(values)
    assert (low, high) == pytest.approx((values.mean() - 1.96 / 20, values.mean() + 1.96 / 20), abs=0.015)
    people = np.repeat(np.arange(20), 20)
    shifted = values + 5 * rng.normal(size=20)[people]
    wide = scores.bootstrap(shifted, people)
    assert wide[1] - wide[0] > 5 * (high - low), "slices of one person do not count as twenty people"
    with pytest.raises(ValueError, match="over 1 group has no spread"):
        scores.bootstrap(values, np.zeros(400))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: scores.normal_interval(x[:1], 0.9), "there is 1 sample, expected 2 or more"),
        (lambda x: scores.crps(x[:1], x[0]), "there is 1 sample"),
        (lambda x: scores.ranks(x[:1], x[0]), "there is 1 sample"),
        (lambda x: scores.normal_interval(x, 1.0), r"the level is 1.0, expected a value between 0 and 1"),
        (lambda x: scores.quantile_interval(x, 0.0), "the level is 0.0"),
    ],
)
def test_mistakes(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(5, 2, 2))


def test_foreground() -> None:
    truth = torch.tensor([[[1.0, 0.05], [0.2, 0.11]], [[10.0, 0.5], [2.0, 1.1]]])
    assert scores.foreground(truth).tolist() == [[[True, False], [True, True]]] * 2
