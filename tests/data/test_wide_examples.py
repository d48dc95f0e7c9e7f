"""Training examples as wide as real scans: decided by their seeds, measured as they say, alike within a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mcddpm.data.phantoms import drawn
from mcddpm.data.slices import Slices
from mcddpm.data.wide_examples import TYPICAL, Frame, WideStream, near
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.sense import Sense
from mcddpm.simulation.wide import Wide

SMALL = Wide(sizes=(32, 40, 48), coils=(1, 12))


def stream(wide: Wide = SMALL, seed: int = 0, exact: float = 0.3) -> WideStream:
    return WideStream(Slices(np.abs(drawn(6, 48, seed=1)), "heads"), wide, seed, exact)


def test_an_example_is_decided_by_the_seed_and_its_position() -> None:
    first, again = (stream().batch([3, 4, 5]) for _ in range(2))
    assert torch.equal(first.y_m, again.y_m) and torch.equal(first.y_c, again.y_c)
    assert torch.equal(first.mask, again.mask) and torch.equal(first.noise, again.noise)
    assert not torch.equal(stream(seed=1).batch([3, 4, 5]).scale, first.scale)


def test_batches_are_of_one_frame_and_many_kinds() -> None:
    """Sizes, numbers of coils, masks of columns and of the plane; every batch can be stacked."""
    shapes, coils, planes, exact = set(), set(), 0, 0
    for k in range(60):
        batch = stream().batch(range(3 * k, 3 * k + 3))
        assert torch.isfinite(torch.view_as_real(batch.y_m)).all() and torch.isfinite(batch.noise).all()
        assert torch.equal(batch.y_m, batch.y_m * batch.mask)
        assert torch.allclose(batch.A.pinv(batch.y_m).abs().flatten(1).amax(1), torch.ones(3), rtol=1e-4)
        shapes.add(tuple(batch.y_m.shape[-2:]))
        coils.add(batch.y_m.shape[1] if batch.y_m.ndim == 4 else 1)
        planes += int((batch.mask != batch.mask[..., :1, :]).any())
        none = batch.noise.flatten() == 0
        exact += int(none.sum())
        assert not none.any() or isinstance(batch.A, Fourier)
    assert len(shapes) > 5 and coils >= {1, 2, 3, 4} and max(coils) <= SMALL.virtual
    assert 5 < planes < 55 and exact > 5


@pytest.mark.parametrize("coils", [1, 4])
def test_it_is_measured_as_it_says(coils: int) -> None:
    """y_m is the truth, seen by the coils, and noise of the std that is told; but for how well that is known."""
    wide = Wide(map_error=(1e-6, 1e-6), support=0.0)
    ratios = []
    for k in range(12):
        batch = stream(wide, exact=0.0).measure([k % 6], [k], Frame((48, 40), coils))
        off = ((batch.y_m - batch.y_0) / batch.noise)[batch.mask.expand(batch.y_m.shape)]
        ratios.append(float(off.abs().square().mean() / 2) ** 0.5)
    assert np.mean(np.log(ratios)) == pytest.approx(0, abs=0.1) and 0.03 < np.std(np.log(ratios)) < 0.2


def test_without_noise_the_truth_is_what_was_measured() -> None:
    batch = stream(exact=1.0).measure([0], [1], Frame((48, 40), 1))
    assert not batch.noise.any() and torch.equal(batch.known, batch.mask)
    assert not (batch.y_c * batch.mask).any() and torch.equal(batch.y_0 * batch.mask, batch.y_m)


def test_maps_are_a_little_wrong_and_known_near_the_object() -> None:
    frame = Frame((48, 48), 4)
    errors = []
    for size in (1e-6, 0.05):
        batch = stream(Wide(map_error=(size, size), support=0.0)).measure([0], [2], frame)
        assert isinstance(batch.A, Sense)
        errors.append(batch.A.maps)
    off = (errors[1] - errors[0]).norm() / errors[0].norm()
    assert 0.02 < float(off) < 0.12
    batch = stream(Wide(support=1.0)).measure([0], [2], frame)
    image = batch.A.pinv(batch.y_0)[0].abs()
    assert isinstance(batch.A, Sense) and 0.02 < float((batch.A.maps[0].abs().sum(0) == 0).float().mean()) < 0.95
    assert torch.equal(near(image) | (batch.A.maps[0].abs().sum(0) > 0), batch.A.maps[0].abs().sum(0) > 0)


def test_typical_examples_are_of_one_size_and_one_coil() -> None:
    batches = stream().typical(4)
    assert len(batches) == 4 and all(batch.y_m.shape == (1, *TYPICAL) for batch in batches)
    assert len(stream().typical(100)) == 6


def test_complex_slices_have_a_phase_already() -> None:
    with pytest.raises(ValueError, match=r"is complex: simulation\.wide takes magnitudes"):
        WideStream(Slices(drawn(2, 32, seed=0), "scans"), SMALL, 0, 0.0)
