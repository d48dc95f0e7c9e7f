"""Your own k-space becomes a measurement: what was sampled, its scale, the operator, the truth; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm import Measurement
from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import measure, measured_rms
from mcddpm.physics.sense import Sense
from tests.problems import randn

SIZE = 32
MASK = masks.random_columns(SIZE, acceleration=4, seed=0)
PLANE = masks.gaussian_2d((SIZE, SIZE), acceleration=4, seed=0)


def kspace(scale: float = 1.0) -> Tensor:
    return scale * randn(SIZE, SIZE)


def test_what_was_sampled_is_found() -> None:
    y = kspace() * MASK
    assert torch.equal(Measurement.from_kspace(y).mask.all(0), MASK)
    assert torch.equal(Measurement.from_kspace(y).y_m, Measurement.from_kspace(kspace(), MASK).y_m)
    assert torch.equal(Measurement.from_kspace(kspace() * PLANE).mask, PLANE)


def test_a_sample_that_one_coil_has_was_taken() -> None:
    y = torch.stack([kspace(), kspace()]) * MASK
    y[0, :, MASK.nonzero()[0]] = 0
    assert torch.equal(Measurement.from_kspace(y).mask.all(0), MASK)


@pytest.mark.parametrize("scale", [1.0, 3e4, 1e-5])
def test_the_zero_filled_image_has_maximum_one(scale: float) -> None:
    m = Measurement.from_kspace(kspace(scale), MASK)
    assert m.operator.pinv(m.y_m).abs().max().item() == pytest.approx(1, rel=1e-5)
    assert m.scale == pytest.approx(1 / float(Fourier().pinv(kspace(scale) * MASK).abs().max()), rel=1e-5)
    assert torch.allclose(m.y_m, kspace(scale) * MASK * m.scale, rtol=1e-5)
    assert (m.y_m[:, ~MASK] == 0).all() and m.y_m.dtype == torch.complex64


def test_the_truth_is_known_where_everything_was_measured_and_then_hidden() -> None:
    m = Measurement.from_kspace(kspace(), MASK)
    assert m.truth is not None and torch.allclose(m.truth / m.scale, Fourier().pinv(kspace()), atol=1e-5)
    assert Measurement.from_kspace(kspace() * MASK).truth is None, "without a mask nothing was hidden"
    assert Measurement.from_kspace(kspace() * MASK, MASK).truth is None, "what is zero was not measured"


def test_numpy_is_remembered() -> None:
    y = kspace().numpy()
    from_numpy, from_torch = Measurement.from_kspace(y, MASK.numpy()), Measurement.from_kspace(kspace(), MASK)
    assert from_numpy.from_numpy and not from_torch.from_numpy
    assert torch.equal(from_numpy.y_m, from_torch.y_m)
    assert torch.equal(Measurement.from_kspace(y.astype(np.complex128), MASK).y_m, from_torch.y_m)


def test_several_coils_with_their_maps_or_without() -> None:
    maps = coil_maps(4, (SIZE, SIZE), 0)
    x = torch.zeros(SIZE, SIZE, dtype=torch.complex64)
    x[8:24, 6:20] = 1.0
    y = Sense(maps)(x)
    m = Measurement.from_kspace(y, MASK, maps=maps)
    assert isinstance(m.operator, Sense) and m.truth is not None
    assert torch.allclose(m.truth / m.scale, x, atol=1e-5)
    for mask in (MASK, masks.gaussian_2d((SIZE, SIZE), acceleration=3, seed=0), masks.radial((SIZE, SIZE), seed=0)):
        found = Measurement.from_kspace(y, mask).operator  # maps from whatever centre is sampled
        assert isinstance(found, Sense) and found.maps.shape == maps.shape
    with pytest.raises(ValueError, match="the centre of k-space is not sampled"):
        Measurement.from_kspace(y, torch.arange(SIZE) < 8)


def test_maps_are_made_of_measured_data_only() -> None:
    y = torch.stack([kspace(), 2 * kspace().flip(0)])
    hidden = torch.where(MASK, y, 50 * randn(2, SIZE, SIZE, seed=4))
    one, other = (Measurement.from_kspace(data, MASK).operator for data in (y, hidden))
    assert isinstance(one, Sense) and isinstance(other, Sense) and torch.equal(one.maps, other.maps)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(4, 4),), r"kspace has dtype torch.float32 and shape \(4, 4\), expected complex"),
        ((torch.zeros(4, dtype=torch.complex64),), r"shape \(4,\), expected complex \(H, W\) or \(coils, H, W\)"),
        ((kspace(),), "fully sampled and no mask was given"),
        ((kspace(), torch.ones(5).bool()), r"mask has shape \(5,\)"),
        ((kspace(), torch.ones(SIZE)), r"mask has dtype torch.float32, expected torch.bool"),
        ((kspace(), torch.ones(SIZE).bool()), "mask samples everything"),
        ((kspace() * float("nan"),), "kspace holds NaN or infinite values"),
        ((kspace() * float("inf"), MASK), "kspace holds NaN or infinite values"),
        ((torch.zeros(4, 4, dtype=torch.complex64),), "mask samples nothing"),
        ((torch.zeros(4, 4, dtype=torch.complex64), torch.arange(4) < 2), "zero everywhere: nothing to reconstruct"),
    ],
)
def test_k_space_that_cannot_be_used(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Measurement.from_kspace(*arguments)


def test_any_operator_measures() -> None:
    """Truth and target are scaled like the data."""
    A, x = Radon(SIZE, 24), torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    mask = masks.sparse_views(24, acceleration=4, seed=0)
    m = measure(A(x), mask, A, x, x[4:-4, 4:-4])
    assert m.operator is A and m.mask is mask and m.y_m.dtype == torch.float32
    assert torch.allclose(m.y_m, (A(x) * m.scale).masked_fill(~mask, 0))
    assert m.truth is not None and torch.allclose(m.truth, x * m.scale)
    assert m.target is not None and torch.allclose(m.target, m.truth[4:-4, 4:-4])
    assert measure(A(x), mask, A).truth is None
    with pytest.raises(ValueError, match=r"mask has shape \(7,\)"):
        measure(A(x), torch.ones(7).bool(), A)


def test_measured_rms_is_of_each_image() -> None:
    images = torch.stack([torch.full((4, 4), 0.5 + 0j), torch.full((4, 4), 3 + 4j)])
    assert measured_rms(images) == pytest.approx([0.5, 5.0])
