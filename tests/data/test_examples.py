"""The stream of training examples: each decided by its seed and place alone."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
import torch

from mcddpm.data.examples import Batch, Stream
from mcddpm.data.phantoms import drawn
from mcddpm.data.slices import Slices
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense
from mcddpm.simulation.scans import Simulation


def stream(slices: Slices, **settings: object) -> Stream:
    families = settings.pop("families", ("random_columns", "equispaced_columns"))
    return Stream(slices, Fourier(), families, (4.0, 8.0), seed=0, simulate=Simulation(), **settings)


def heads(count: int, size: int) -> Slices:
    return Slices(drawn(count, size, seed=0), "heads")


def test_an_example_is_the_same_in_any_part_of_any_batch() -> None:
    """Positions from one epoch into the next, as one batch and one by one, as processes share them."""
    whole = stream(heads(5, 16)).batch(range(3, 8))
    parts = [stream(heads(5, 16)).batch([position]) for position in range(3, 8)]
    for name in ("y_m", "y_c", "mask", "scale"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts]))
    assert [part.slices[0] for part in parts] == whole.slices
    first, second = (stream(heads(5, 16)).batch(range(5 * epoch, 5 * epoch + 5)) for epoch in (0, 1))
    assert sorted(first.slices) == sorted(second.slices) == list(range(5)) and first.slices != second.slices
    masks = [dict(zip(batch.slices, batch.mask, strict=True)) for batch in (first, second)]
    assert any(not torch.equal(masks[0][k], masks[1][k]) for k in range(5)), "in each epoch, masks of its own"


def test_an_example_is_measured_and_scaled() -> None:
    """What is measured and what is not add up to the scaled slice, and the zero-filled image has a maximum of one."""
    slices, A = heads(5, 16), Fourier()
    batch = stream(slices).batch(range(5))
    assert not (batch.y_m * ~batch.mask).any() and not (batch.y_c * batch.mask).any()
    assert torch.allclose(A.pinv(batch.y_m).abs().flatten(1).amax(1), torch.ones(5), atol=1e-6)
    full = A.pinv(batch.y_m + batch.y_c) / batch.scale[:, None, None]
    assert torch.allclose(full, torch.stack([slices[k] for k in batch.slices]), atol=1e-5)


def test_training_examples_are_augmented_and_validation_is_not() -> None:
    images = np.abs(drawn(2, 32, seed=0))
    trained, judged = (stream(Slices(images, "two"), augment=augment) for augment in (True, False))
    a, b = (trained.measure([0], [seed]) for seed in (1, 2))
    assert not torch.equal((a.y_m + a.y_c).abs(), (b.y_m + b.y_c).abs())
    c = judged.measure([0], [1])
    x = Fourier().pinv((c.y_m + c.y_c) / c.scale[:, None, None])[0].abs()
    assert (x - torch.from_numpy(images[0])).norm() < 0.2 * x.norm()
    assert torch.equal(trained.measure([0], [1]).y_m, a.y_m)


def test_noise_is_at_one_snr_in_validation_and_at_many_in_training() -> None:
    """Of 20 to 60: the geometric middle, or anything between."""
    magnitude = np.abs(drawn(1, 64, seed=0))
    foreground = magnitude[magnitude > 0.1 * magnitude.max()].mean()

    def measured(seed: int, augment: bool, *snr: float) -> torch.Tensor:
        how, head = Simulation(augment=False, snr=snr), Slices(magnitude, "head")
        batch = Stream(head, Fourier(), ["random_columns"], [4.0], 0, how, augment).measure([0], [seed])
        return (batch.y_m + batch.y_c) / batch.scale[0]

    def found(seed: int, augment: bool) -> float:
        noise = measured(seed, augment, 20.0, 60.0) - measured(seed, augment, 1e9)
        return float(foreground / torch.view_as_real(noise).std())

    judged = [found(seed, augment=False) for seed in range(4)]
    assert judged == pytest.approx([(20 * 60) ** 0.5] * 4, rel=0.05)
    trained = [found(seed, augment=True) for seed in range(12)]
    assert 19 < min(trained) < 28 and 45 < max(trained) < 62


def test_a_strip_is_measured_as_it_is_within_its_slice() -> None:
    """Where whole columns are measured, rows are apart: the strip's measured and unmeasured images are the slice's."""
    slices, A = heads(5, 32), Fourier()
    whole, strip = (stream(slices, strip=rows).batch(range(5)) for rows in (0, 12))
    assert strip.y_m.shape == (5, 12, 32) and torch.equal(strip.scale, whole.scale)
    tops = set()
    for part, full in ((strip.y_m, whole.y_m), (strip.y_c, whole.y_c)):
        for small, large in zip(A.pinv(part), A.pinv(full), strict=True):
            gaps = [float((small - large[top : top + 12]).abs().max()) for top in range(21)]
            assert min(gaps) < 1e-5
            tops.add(int(np.argmin(gaps)))
    assert len(tops) > 2


def test_an_unconditional_example_shows_no_measurement() -> None:
    """Nothing measured, everything to be denoised, and the scale that a measurement would have had."""
    shown, hidden = (stream(heads(3, 16), conditional=conditional).batch(range(3)) for conditional in (True, False))
    assert not hidden.mask.any() and not hidden.y_m.any() and torch.equal(hidden.scale, shown.scale)
    assert torch.allclose(hidden.y_c, shown.y_m + shown.y_c)


# --- noise in what was measured -------------------------------------------------------------------------------------

SIZE = 48
FOURIER, SENSE = Fourier(), Sense(coil_maps(3, (SIZE, SIZE), seed=0))


def noisy_stream(
    A: Operator = FOURIER, noisy: bool = True, bright: float = 1.0, snr: float = 20.0, exact: float = 0.2, **more: bool
) -> Stream:
    """Magnitudes of heads, times `bright`, at one SNR."""
    how = Simulation(snr=(snr,), exact=exact)
    slices = Slices(bright * np.abs(drawn(4, SIZE, seed=0)), "heads")
    return Stream(slices, A, ["random_columns"], [2.0], seed=0, simulate=how, noisy=noisy, **more)


def unscaled(batch: Batch, values: torch.Tensor) -> torch.Tensor:
    return values / batch.scale.reshape(-1, *[1] * (values.ndim - 1))


def assert_std(residual: torch.Tensor, std: torch.Tensor, within: float = 4.5) -> None:
    """White Gaussian values: sum |r|^2 / s^2 is chi-square, and each part has half of it. (B, data), (B, 1, ...)"""
    parts = torch.view_as_real(residual / std).flatten(1, -2)  # (B, entries, 2), zero where nothing was measured
    count = (parts != 0).all(-1).sum(1)
    for power in parts.square().sum(1).T:
        assert ((power - count).abs() < within * (2 * count).sqrt()).all(), power / count


@pytest.mark.parametrize("A", [FOURIER, SENSE], ids=["fourier", "sense"])
def test_the_truth_has_no_noise_and_the_measurement_has_as_much_as_it_says(A: Operator) -> None:
    """y_m - M y_0 is white, of the stated std in each part, and independent from coil to coil."""
    seeds = [5, 6, 7, 8]
    batch = noisy_stream(A).measure([0, 1, 2, 3], seeds)
    silent = noisy_stream(A, snr=1e9, noisy=False).measure([0, 1, 2, 3], seeds)
    y_0, truth = unscaled(batch, batch.y_0), unscaled(silent, silent.y_0)
    assert torch.equal(batch.mask, silent.mask) and (y_0 - truth).norm() < 1e-5 * truth.norm()
    assert (
        batch.noise.shape == (4, *[1] * (y_0.ndim - 1)) and not batch.known.any() and torch.equal(batch.y_0, batch.y_c)
    )
    residual = batch.y_m - batch.y_0 * batch.mask
    assert_std(residual, batch.noise)
    if A is SENSE:
        flat = (residual / batch.noise).transpose(0, 1).flatten(1)
        between = (flat @ flat.mH / (flat.abs() > 0).sum(1)).fill_diagonal_(0)
        assert between.abs().max() < 0.1


def test_noise_is_scaled_with_the_data() -> None:
    """A scan ten times as bright is the same example, as the model sees it."""
    one, ten = (noisy_stream(bright=bright).measure([0, 1], [5, 6]) for bright in (1.0, 10.0))
    assert torch.allclose(ten.noise, one.noise, rtol=1e-4) and torch.allclose(ten.scale, one.scale / 10, rtol=1e-4)
    for batch, bright in ((one, 1.0), (ten, 10.0)):
        stds = [noisy_stream(bright=bright).noise_of(k, seed) for k, seed in ((0, 5), (1, 6))]
        assert unscaled(batch, batch.noise).flatten().tolist() == pytest.approx(stds, rel=1e-5)
    image = bright * np.abs(drawn(4, SIZE, seed=0))[0]
    assert stds[0] == pytest.approx(image[image > 0.1 * image.max()].mean() / 20, rel=1e-5)


def test_a_part_of_the_training_examples_is_known_exactly() -> None:
    """Their truth is what was measured, noise and all: y_0 is y_m on M to the bit, as in the paper."""
    indices, seeds = [k % 4 for k in range(150)], list(range(150))
    batch = noisy_stream(augment=True).measure(indices, seeds)
    plain = noisy_stream(augment=True, noisy=False).measure(indices, seeds)
    exact = batch.noise.flatten() == 0
    assert 0.1 < float(exact.float().mean()) < 0.3
    for one, usual, k in ((batch[k], plain[k], k) for k in range(150)):
        same = torch.equal(one.y_0 * one.mask, one.y_m)
        assert same == bool(exact[k]) and torch.equal(one.known.any().reshape(1), exact[k : k + 1])
        assert torch.equal(one.y_m, usual.y_m) and torch.equal(one.y_c, usual.y_c) == same, "the same measurement"
    assert_std((batch.y_m - batch.y_0 * batch.mask)[~exact], batch.noise[~exact])
    for share in (0.0, 1.0):
        some = noisy_stream(augment=True, exact=share).measure(indices[:20], seeds[:20])
        assert ((some.noise == 0) == bool(share)).all()
        assert (noisy_stream(exact=share).measure(indices[:20], seeds[:20]).noise > 0).all(), "none in validation"


@pytest.mark.parametrize("A", [FOURIER, SENSE], ids=["fourier", "sense"])
def test_otherwise_what_is_measured_is_known_exactly(A: Operator) -> None:
    batch, noisy = (noisy_stream(A, noisy=noisy).measure([0, 1], [5, 6]) for noisy in (False, True))
    for name in ("y_m", "mask", "scale"):
        assert torch.equal(getattr(batch, name), getattr(noisy, name))
    assert not batch.noise.any() and torch.equal(batch.known, batch.mask)
    assert not (batch.y_c * batch.mask).any() and torch.equal(batch.y_0, batch.y_m + batch.y_c)
    assert_std(batch.y_0 - noisy.y_0, noisy.noise)  # noise on every entry of the truth
    silent = noisy_stream(A, snr=math.inf).measure([0, 1], [5, 6])
    assert not silent.noise.any() and torch.equal(silent.known, silent.mask), "there is none to speak of"


def test_noise_of_strips_and_of_examples_without_a_measurement() -> None:
    """A strip has the noise of its slice; the truth of what was not measured has none."""
    whole, strip = noisy_stream().measure([0, 1], [5, 6]), noisy_stream(strip=16).measure([0, 1], [5, 6])
    assert strip.y_0.shape == (2, 16, SIZE) and torch.equal(strip.noise, whole.noise)
    assert_std(strip.y_m - strip.y_0 * strip.mask, strip.noise)
    hidden = noisy_stream(conditional=False).measure([0, 1], [5, 6])
    assert torch.equal(hidden.y_0, whole.y_0) and not hidden.known.any() and not hidden.y_m.any()


def test_a_batch_is_its_examples() -> None:
    stream = noisy_stream(augment=True, exact=0.5)
    seeds = list(range(6))
    batch = stream.measure([0, 1, 2, 3, 0, 1], seeds)
    assert 0 < int((batch.noise == 0).sum()) < 6
    examples = list(islice(batch, 7))
    assert len(examples) == 6 and [one.slices for one in examples] == [[k] for k in batch.slices]
    for k, one in enumerate(examples):
        alone = stream.measure([k % 4], [seeds[k]])
        for name in ("y_m", "y_c", "mask", "scale", "noise", "known", "y_0"):
            assert torch.equal(getattr(one, name), getattr(alone, name)), name
            assert torch.equal(getattr(one, name), getattr(batch, name)[k : k + 1]), name
    assert torch.equal(batch[-1].y_m, batch[5].y_m) and torch.equal(batch.to(torch.device("cpu")).noise, batch.noise)
    with pytest.raises(IndexError):
        batch[6]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"families": ()}, "the mix of masks is empty"),
        ({"families": ("radial",), "strip": 8}, "needs operator fourier and masks of whole columns"),
        ({"strip": 17}, "training.strip is 17, expected 0 to the height of a slice, 16"),
    ],
)
def test_streams_that_cannot_be(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stream(heads(3, 16), **settings)
