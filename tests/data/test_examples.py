"""The stream of training examples: each decided by its seed and place alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mcddpm.data.examples import Stream
from mcddpm.data.phantoms import drawn
from mcddpm.data.slices import Slices
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.simulation import Simulation


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
