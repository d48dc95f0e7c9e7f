"""Receivers become virtual coils with white noise, nearly all of the signal, and maps that belong to them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mcddpm.physics.coils import calibration_block, maps_of
from mcddpm.physics.receivers import KEPT, MOST, Receivers, maps_from_centre, receivers_of
from mcddpm.physics.sense import Sense
from tests.problems import Heads, columns, head, off, randn, scanned

SIZE, COILS = 64, 8
MASK = columns(SIZE, 23)
GAINS = torch.tensor([0.5, 3.0, 1.0, 1.0, 2.0, 0.7, 1.4, 0.3])


def scan(spread: float, snr: float = 20.0) -> Heads:
    """Receivers with correlated noise, the last with `spread` times that of the first."""
    return scanned(head(SIZE), COILS, snr, spread, GAINS)


def combined(data: Heads, most: int = MOST, kept: float = KEPT, maps: Tensor | None = None) -> Receivers:
    return receivers_of(data.y * MASK, MASK, data.covariance, maps, most, kept)


# --- noise ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [1.0, 20.0])
def test_noise_is_white_with_one_std(spread: float) -> None:
    data = scan(spread)
    combine = combined(data)
    T, K = combine.combine.to(torch.complex128), data.covariance.to(torch.complex128)
    wanted = combine.noise**2 * torch.eye(len(T), dtype=torch.complex128)
    assert off(T @ K @ T.mH, wanted) < 1e-5
    assert off(K, K.diagonal().diag()) > 0.3, "it was not"
    assert off(T @ K.mT @ T.mH, wanted) > 0.3, "nor is it if coils are taken the other way around"


def test_noise_that_is_simulated_comes_out_white() -> None:
    """Real and imaginary parts too, each of the stated std: that of an image that coils of power 1 see, on average."""
    data = scan(4.0)
    combine, L = combined(data), torch.linalg.cholesky(data.covariance)
    eps = 2**0.5 * randn(COILS, 200, 200)
    noise = combine(torch.einsum("cd,dhw->chw", L, eps)).flatten(1)
    parts = torch.cat([noise.real, noise.imag])
    sample = parts @ parts.T / parts.shape[1] / combine.noise**2
    assert float((sample - torch.eye(len(parts))).abs().max()) < 0.03  # six of its own standard errors
    power = combine.maps.abs().square().sum(0)
    assert float(power.sum() / (power > 0).sum()) == pytest.approx(1, rel=1e-5)


def test_receivers_without_noise_stay_as_they_are() -> None:
    data = scan(1.0)
    y_m = data.y * MASK
    same = receivers_of(y_m, MASK, torch.zeros(COILS, COILS))
    assert torch.equal(same(data.y), data.y) and same.noise == 0
    assert torch.equal(same.maps, maps_from_centre(y_m, MASK))
    assert receivers_of(y_m, MASK, torch.zeros(COILS, COILS), data.maps).maps is data.maps


def test_a_receiver_without_noise_among_others_is_refused() -> None:
    data, K = scan(1.0), torch.eye(COILS)
    K[2, 2] = K[5, 5] = 0
    with pytest.raises(ValueError, match=r"receivers \[2, 5\] have no noise and others have some: leave them out"):
        receivers_of(data.y * MASK, MASK, K)


def test_receivers_that_see_the_same_noise_are_no_trouble() -> None:
    """A covariance without full rank: receivers twice, whose eigenvalues of zero are rounded to either side."""
    data = scan(1.0)
    twice = [*range(COILS), *range(5)]
    K = data.covariance[twice][:, twice]
    assert float(torch.linalg.eigvalsh(K.to(torch.complex128)).min()) < 0
    combine = receivers_of(data.y[twice] * MASK, MASK, K)
    image = Sense(combine.maps).pinv(combine(data.clean[twice])).abs()
    rss = (data.maps[twice] * data.x).abs().square().sum(0).sqrt()
    assert off(image[data.inside], rss[data.inside]) < 0.02


# --- signal ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [1.0, 20.0])
@pytest.mark.parametrize("kept", [KEPT, 0.9, 0.9999])
def test_the_fewest_directions_that_keep_the_energy(spread: float, kept: float) -> None:
    """Of the calibration lines, after whitening: tr(Y^H K^-1 Y) s^2 in all."""
    data = scan(spread)
    combine = combined(data, kept=kept)
    block = calibration_block(data.y * MASK, MASK)
    flat = block.flatten(1).to(torch.complex128)
    total = float((flat.conj() * torch.linalg.solve(data.covariance.to(flat), flat)).sum().real) * combine.noise**2
    share = combine(block).abs().square().sum((1, 2)).to(torch.float64).cumsum(0) / total
    assert share[-1] >= kept - 1e-5
    assert len(share) == 1 or share[-2] < kept, "one fewer would not do"
    assert len(share) <= COILS


def test_there_are_never_more_than_asked_for() -> None:
    """Those that are left are the strongest."""
    data = scan(1.0)
    few, more = combined(data, most=2), combined(data)
    assert few.combine.shape == (2, COILS) and few.maps.shape == (2, SIZE, SIZE) and len(more.combine) > 2
    strongest = more.combine[:2] * (few.noise / more.noise)  # each has a power of 1 on average
    assert torch.allclose(few.combine, strongest, rtol=1e-5)
    many = scanned(head(SIZE), 20, 20.0)
    assert len(receivers_of(many.y * MASK, MASK, many.covariance, kept=1.0).maps) == MOST < 20


def test_nothing_but_the_centre_is_looked_at() -> None:
    data = scan(4.0)
    combine, all_of_it = combined(data), receivers_of(data.y, MASK, data.covariance)
    assert torch.equal(combine.combine, all_of_it.combine) and torch.equal(combine.maps, all_of_it.maps)


# --- maps -----------------------------------------------------------------------------------------------------------


def test_given_maps_are_combined_as_the_data_are() -> None:
    data = scan(4.0)
    combine = combined(data, maps=data.maps)
    assert torch.allclose(combine.maps, torch.tensordot(combine.combine, data.maps, 1), atol=1e-5)
    assert off(Sense(combine.maps)(data.x), combine(data.clean)) < 1e-5
    assert off(Sense(combine.maps).pinv(combine(data.clean)).abs(), data.x.abs()) < 1e-5


@pytest.mark.parametrize("spread", [1.0, 4.0, 20.0])
def test_maps_belong_to_the_root_sum_of_squares_of_the_receivers(spread: float) -> None:
    """As they were, whatever their noise: of the worst receivers hardly anything is left in the virtual coils."""
    data = scan(spread)
    combine = combined(data)
    assert len(combine.maps) < COILS
    image = Sense(combine.maps).pinv(combine(data.clean)).abs()
    assert off(image[data.inside], data.rss[data.inside]) < 0.01
    length = combine.maps.abs().square().sum(0).sqrt()[data.inside]
    assert spread == 1 or float(length.std() / length.mean()) > 0.1, "maps of unit length would not do"


@pytest.mark.parametrize(
    ("centre", "patches", "near"), [(3, False, 0.2), (5, False, 0.1), (7, True, 0.03), (23, True, 0.01)]
)
def test_where_the_centre_is_small_maps_are_of_smooth_images(centre: int, patches: bool, near: float) -> None:
    """Patches of 3 x 3 take six lines."""
    data, mask = scan(1.0), columns(SIZE, centre)
    y_m = data.y * mask
    assert torch.equal(maps_from_centre(y_m, mask), maps_of(y_m, mask)) != patches
    combine = receivers_of(y_m, mask, data.covariance)
    image = Sense(combine.maps).pinv(combine(data.clean)).abs()
    assert off(image[data.inside], data.rss[data.inside]) < near
