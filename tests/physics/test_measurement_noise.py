"""The noise of your own k-space: in every way that it can be given, read off the data, or none; and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm import Measurement
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import NOTHING, Noise, measure, measure_kspace
from mcddpm.physics.noise import known_exactly
from mcddpm.physics.sense import Sense
from tests.problems import Heads, head, off, randn, scanned, without_air

SIZE = 32
MASK = masks.random_columns(SIZE, acceleration=4, seed=0)
COILS = 4
SCALE = 300.0  # of the units of k-space
STD = 0.02 * SCALE
SNR = 20.0


def scan(coils: int = COILS, spread: float = 3.0) -> Heads:
    """Correlated noise, and more of it in some coils."""
    return scanned(SCALE * head(SIZE), coils, SNR, spread if coils > 1 else 1.0)


def stds(kind: str, covariance: Tensor) -> Noise:
    """Noise as it can be given."""
    by_entry = STD * (0.5 + torch.rand(COILS, SIZE, SIZE, generator=torch.Generator().manual_seed(3)))
    by_coil = covariance.diagonal().real.sqrt()
    return {
        "a number": STD,
        "one a coil": by_coil,
        "one a coil, in front of the plane": by_coil.reshape(-1, 1, 1),
        "by entry": by_entry,
        "by entry of the plane": by_entry[0],
        "covariance": covariance,
        "covariance in numpy": covariance.to(torch.complex128).numpy(),
    }[kind]


KINDS = (
    "a number",
    "one a coil",
    "one a coil, in front of the plane",
    "by entry",
    "by entry of the plane",
    "covariance",
    "covariance in numpy",
)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_measured_is_off_by_the_noise_that_it_says(kind: str) -> None:
    """(y_m - M A x) / s is white, of std 1 in each part; where the noise is of one level, in all directions."""
    data = scan()
    noise = stds(kind, data.covariance)
    eps = 2**0.5 * randn(COILS, SIZE, SIZE, seed=5)
    if kind.startswith("covariance"):
        eps = torch.einsum("cd,dhw->chw", torch.linalg.cholesky(data.covariance), eps)
    else:
        s = torch.as_tensor(noise)
        eps = eps * (s.reshape(-1, 1, 1) if s.ndim == 1 else s)
    mask = torch.ones(SIZE, dtype=torch.bool)
    m = Measurement.from_kspace(data.clean + eps, mask, maps=data.maps, noise=noise)
    assert m.noise_from == "given" and m.noise.dtype == torch.float32
    z = (m.y_m - m.operator(data.x * m.scale)) / m.noise
    parts = torch.cat([z.real, z.imag]).flatten(1)
    assert float((parts @ parts.T / parts.shape[1] - torch.eye(len(parts))).abs().max()) < 0.15  # 4.8 standard errors
    assert float(parts.square().mean()) == pytest.approx(1, abs=0.06)  # of 4096 numbers a coil


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_scaled_with_the_data(kind: str) -> None:
    """noise_level is what was given, of what is whitened its rms; of one coil, or by entry, it is scaled with the data.
    The units of k-space do not matter."""
    data = scan()
    noise = stds(kind, data.covariance)
    m = Measurement.from_kspace(data.y, MASK, maps=data.maps, noise=noise)
    s = torch.as_tensor(noise)
    if kind.startswith("covariance"):
        s = s.diagonal().real.mean().sqrt()
    elif kind.startswith("one a coil"):
        s = s.square().mean().sqrt()
    assert m.noise.shape == s.shape and m.noise_level == pytest.approx(float(s.square().mean().sqrt()), rel=1e-4)
    if kind.startswith("by entry"):
        assert torch.allclose(m.noise / m.scale, s.float(), rtol=1e-4)
    larger = noise * (1e4 if kind.startswith("covariance") else 100)  # type: ignore[operator]
    other = Measurement.from_kspace(100 * data.y, MASK, maps=data.maps, noise=larger)
    assert off(other.noise, m.noise) < 1e-4 and off(other.operator.pinv(other.y_m), m.operator.pinv(m.y_m)) < 1e-4


@pytest.mark.parametrize("noise", [STD, np.float32(STD), np.full((SIZE, SIZE), STD), torch.full((SIZE, SIZE), STD)])
def test_the_noise_of_one_coil(noise: Noise) -> None:
    data = scan(1)
    m = Measurement.from_kspace(data.y[0], MASK, noise=noise)
    assert m.noise.shape == np.shape(noise) and torch.allclose(m.noise / m.scale, torch.tensor(STD))
    assert isinstance(m.operator, Fourier) and m.noise_from == "given"
    assert torch.equal(m.y_m, Measurement.from_kspace(data.y[0], MASK, noise=0).y_m)


def test_noise_of_several_coils_is_white_and_a_map_is_left_as_it_is() -> None:
    """What cannot be whitened keeps its coils."""
    data = scan()
    white = Measurement.from_kspace(data.y, MASK, maps=data.maps, noise=data.covariance)
    assert white.noise.ndim == 0 and not torch.allclose(white.y_m / white.scale, data.y * MASK, rtol=1e-2)
    assert white.truth is not None and off(white.truth / white.scale, data.x) < 0.1
    by_entry = Measurement.from_kspace(data.y, MASK, maps=data.maps, noise=stds("by entry", data.covariance))
    assert torch.allclose(by_entry.y_m / by_entry.scale, data.y * MASK, rtol=1e-5)
    assert isinstance(by_entry.operator, Sense) and torch.equal(by_entry.operator.maps, data.maps)


# --- noise that is not given ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acceleration", [4, 8])
@pytest.mark.parametrize("coils", [1, 8])
def test_noise_is_read_off_the_air(coils: int, acceleration: int) -> None:
    data = scanned(SCALE * head(192), coils, SNR)
    mask = masks.random_columns(192, acceleration=acceleration, seed=1)
    m = Measurement.from_kspace(data.y if coils > 1 else data.y[0], mask)
    assert m.noise_from == "air" and m.noise.ndim == 0
    assert m.noise_level == pytest.approx(float(data.covariance.diagonal().real.mean().sqrt()), rel=0.1)


@pytest.mark.parametrize("coils", [1, 8])
@pytest.mark.parametrize("why", ["no air", "plane"])
def test_without_it_noise_is_at_most_what_is_farthest_out(coils: int, why: str) -> None:
    x, snr = (without_air(head(192)), 50.0) if why == "no air" else (head(192), 5.0)
    data = scanned(SCALE * x, coils, snr)
    shape = (data.y.shape[-2], data.y.shape[-1])
    mask = masks.gaussian_2d(shape, acceleration=4, seed=0) if why == "plane" else masks.random_columns(192, seed=1)
    m = Measurement.from_kspace(data.y if coils > 1 else data.y[0], mask)
    assert m.noise_from == "at most" and m.noise.ndim == 0
    assert 0.97 < float(m.noise / m.scale / data.covariance.diagonal().real.mean().sqrt()) < 1.25


# --- none -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0, 0.0, np.zeros(()), torch.zeros(SIZE, SIZE), np.zeros((1, SIZE, SIZE))])
def test_without_noise_what_was_measured_is_kept_to_the_bit(noise: Noise) -> None:
    several = scan()
    kept = Measurement.from_kspace(several.y, MASK, maps=several.maps, noise=noise)
    wanted = measure(several.y, MASK, Sense(several.maps), Sense(several.maps).pinv(several.y))
    pairs = [(kept, wanted)]
    if np.ndim(noise) < 3:
        one = Measurement.from_kspace(several.y[0], MASK, noise=noise)
        pairs.append((one, measure(several.y[0], MASK, Fourier(), Fourier().pinv(several.y[0]))))
    for m, wanted in pairs:
        assert torch.equal(m.y_m, wanted.y_m) and m.scale == wanted.scale
        assert m.truth is not None and wanted.truth is not None and torch.equal(m.truth, wanted.truth)
        assert not m.noise.any() and (known_exactly(MASK, m.noise) == MASK).all()
    assert isinstance(kept.operator, Sense) and torch.equal(kept.operator.maps, several.maps)


def test_a_part_without_noise_is_known_exactly() -> None:
    y, noise = scan(1).y[0], torch.full((SIZE, SIZE), STD)
    noise[: SIZE // 2] = 0
    m = Measurement.from_kspace(y, MASK, noise=noise)
    known = known_exactly(m.mask, m.noise)
    assert known[: SIZE // 2].equal(MASK.expand(SIZE // 2, SIZE)) and not known[SIZE // 2 :].any()


# --- denoising ------------------------------------------------------------------------------------------------------


def test_a_full_scan_can_be_denoised() -> None:
    """Where its noise is told; without, there is nothing to do."""
    y, everything = scan(1).y[0], torch.ones(SIZE, dtype=torch.bool)
    for mask in (None, everything):
        m = Measurement.from_kspace(y, mask, noise=STD)
        assert m.mask.all() and off(m.y_m / m.scale, y) < 1e-6 and float(m.noise / m.scale) == pytest.approx(STD)
        for noise in (0, torch.zeros(SIZE, SIZE)):
            with pytest.raises(ValueError, match="mask samples everything"):
                Measurement.from_kspace(y, mask, noise=noise)
    with pytest.raises(ValueError, match="to denoise it, pass its noise"):
        Measurement.from_kspace(y)
    with pytest.raises(ValueError, match="mask samples everything"):
        Measurement.from_kspace(y, everything)


# --- what is refused, and numpy -------------------------------------------------------------------------------------

BAD_VALUES = "noise holds values that are negative, complex or not finite, expected std in each part"


@pytest.mark.parametrize(
    ("coils", "noise", "message"),
    [
        (1, -0.1, BAD_VALUES),
        (1, float("nan"), BAD_VALUES),
        (1, float("inf"), BAD_VALUES),
        (1, 0.1j, BAD_VALUES),
        (1, torch.ones(SIZE, SIZE, dtype=torch.complex64), BAD_VALUES),
        (COILS, torch.tensor([0.1, 0.1, -0.1, 0.1]), BAD_VALUES),
        (COILS, torch.full((COILS, COILS), torch.nan), BAD_VALUES),
        (COILS, np.full((COILS, SIZE, SIZE), np.nan), BAD_VALUES),
        (1, torch.ones(5), r"noise has shape \(5,\), k-space \(32, 32\): expected a number, one an entry$"),
        (
            1,
            torch.ones(COILS, COILS),
            r"noise has shape \(4, 4\), k-space \(32, 32\): expected a number, one an entry$",
        ),
        (1, torch.ones(1, SIZE, SIZE), r"noise has shape \(1, 32, 32\), k-space \(32, 32\)"),
        (COILS, torch.ones(3), r"noise has shape \(3,\), k-space \(4, 32, 32\): .*, one a coil, or their covariance"),
        (COILS, torch.eye(3), r"noise has shape \(3, 3\), k-space \(4, 32, 32\)"),
        (COILS, torch.ones(3, SIZE, SIZE), r"noise has shape \(3, 32, 32\), k-space \(4, 32, 32\)"),
        (COILS, torch.eye(COILS).roll(1, 0), "noise is not a covariance: expected a Hermitian matrix"),
        (COILS, torch.eye(COILS) - 0.5, "noise is not a covariance"),
        (COILS, torch.tensor([0.1, 0.0, 0.1, 0.0]), r"receivers \[1, 3\] have no noise and others have some"),
    ],
)
def test_noise_that_cannot_be(coils: int, noise: Noise, message: str) -> None:
    y = randn(COILS, SIZE, SIZE)
    with pytest.raises(ValueError, match=message):
        Measurement.from_kspace(y if coils > 1 else y[0], MASK, noise=noise)


@pytest.mark.parametrize("noise", [None, 0, 0.1])
def test_maps_and_masks_that_do_not_fit(noise: Noise | None) -> None:
    """Whatever the noise."""
    y = randn(COILS, SIZE, SIZE)
    shapes = (3, SIZE, SIZE), (COILS, 8, 8), (SIZE, SIZE)
    for shape, data in (*((shape, y) for shape in shapes), (y.shape, y[0]), ((SIZE, SIZE), y[0])):
        maps, message = torch.ones(shape), f"maps have shape {tuple(shape)}, kspace has {tuple(data.shape)}"
        with pytest.raises(ValueError, match=re.escape(message)):
            Measurement.from_kspace(data, MASK, maps=maps, noise=noise)
    with pytest.raises(ValueError, match=r"mask has shape \(5,\)"):
        Measurement.from_kspace(y, torch.ones(5).bool(), noise=noise)
    with pytest.raises(ValueError, match=r"mask has dtype torch.float32, expected torch.bool"):
        Measurement.from_kspace(y, torch.ones(SIZE), noise=noise)
    with pytest.raises(ValueError, match=f"{NOTHING}|mask samples nothing"):
        Measurement.from_kspace(y, torch.zeros(SIZE).bool(), noise=noise)


@pytest.mark.parametrize("kind", ["a number", "one a coil", "by entry", "covariance"])
def test_numpy_is_as_torch(kind: str) -> None:
    data = scan()
    noise = stds(kind, data.covariance)
    array = noise.numpy() if isinstance(noise, Tensor) else noise
    torches = Measurement.from_kspace(data.y, MASK, maps=data.maps, noise=noise)
    arrays = Measurement.from_kspace(data.y.numpy(), MASK.numpy(), maps=data.maps.numpy(), noise=array)  # type: ignore[arg-type]
    assert arrays.from_numpy and not torches.from_numpy
    assert isinstance(arrays.noise, Tensor) and torch.equal(arrays.noise, torches.noise)
    assert torch.equal(arrays.y_m, torches.y_m) and arrays.scale == torches.scale


def test_where_the_noise_is_known_from_is_said() -> None:
    data = scan()
    assert measure_kspace(data.y, MASK, noise=STD, noise_from="noise scan").noise_from == "noise scan"
    assert measure_kspace(data.y, MASK, noise=STD).noise_from == "given"
    assert measure(data.y, MASK, Sense(data.maps)).noise_from == "none"


# --- odd receivers --------------------------------------------------------------------------------------------------


def test_one_coil_is_one_coil_with_or_without_an_axis() -> None:
    """To the bit: no maps, which would be zero in air."""
    data = scan(1)
    for noise in (0, STD, None):
        with_axis, without = (Measurement.from_kspace(y, MASK, noise=noise) for y in (data.y, data.y[0]))
        assert isinstance(with_axis.operator, Fourier) and torch.equal(with_axis.y_m, without.y_m)
        assert torch.equal(with_axis.noise, without.noise) and with_axis.noise_from == without.noise_from


def test_receivers_that_measured_nothing_are_left_out() -> None:
    data = scan()
    y = torch.cat([data.y, torch.zeros(2, SIZE, SIZE)])[[0, 4, 1, 2, 5, 3]]
    m, without = Measurement.from_kspace(y, MASK), Measurement.from_kspace(data.y, MASK)
    (notice,) = m.notices
    assert notice.text == "receivers that measured nothing are left out: 1, 4" and not without.notices
    assert torch.allclose(m.operator.pinv(m.y_m), without.operator.pinv(without.y_m), atol=1e-5)
