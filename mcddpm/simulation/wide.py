"""A simulation as wide as real MR scans: the ranges that everything is drawn from, the sampling and the SNR.

    head = appearance.contrast(magnitude, seed, wide)               another weighting
    head = appearance.place(head, matrix_size(seed, wide), seed, wide)   geometry
    looks = appearance.detail(head, seed, wide)                     what T1 heads do not have
    looks = looks * appearance.bias(shape, seed, wide)              the receivers' nearness
    x = torch.polar(looks, phases.phase(shape, looks, seed, wide))  the truth, complex
    y = maps * x; noise of covariance C                             loops.loops, loops.correlation, snr
    mask = sampling(shape, seed, wide)

Every function is decided by its arguments alone; give each example its own seed. All numbers below are choices, made
wide on purpose and checked by eye (benchmarks/simulation_pictures.py), not fitted to any scan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mcddpm.physics import masks
from mcddpm.physics.masks import MaskMix
from mcddpm.simulation.fields import chance, log_uniform
from mcddpm.system.seeds import seed_of

TRIES = 8  # masks of random columns reach an acceleration only on average: another is drawn if it is far off
FAR_OFF = 1.15
LEAST_COLUMNS = 2  # in the middle, so that there is something to see


@dataclass(frozen=True)
class Wide:
    """Ranges of a simulation that is as wide as real scans. A pair is a range; a single number is a chance or a top."""

    contrasts: tuple[float, ...] = (0.2, 0.45, 0.1, 0.25)
    """Parts with the contrast as it is (but for gamma), with that of a known weighting (T2, PD, FLAIR, ...), with a
    random rising one, and with any random one."""
    gamma: tuple[float, ...] = (0.6, 1.6)
    """Exponent of the intensities of those that stay as they are."""
    fit: tuple[float, ...] = (1.2, 1.8)
    """Width, in pixels, of the windows in which a new contrast is a straight function of the old one."""
    sharpen: float = 0.25
    """Part that is sharpened."""
    grain: float = 0.35
    """Part with a fine texture, of grains or fibres."""
    blobs: float = 0.2
    """Part with a few bright or dark spots: vessels, lesions, voids."""
    bias: tuple[float, ...] = (1.0, 5.0)
    """The largest value of the bias field over its smallest."""
    zoom: tuple[float, ...] = (0.7, 1.5)
    """Size of the object in the field of view, over its size as it was measured."""
    upright: float = 0.6
    """Part that is turned by quarters of a circle, and `turn` beside; all others by any angle."""
    turn: float = 12.0
    """Degrees that a patient's head may be tilted."""
    shift: float = 0.1
    """Largest shift, in parts of the field of view."""
    oblong: float = 1.3
    """Most length of a pixel over its width, where the matrix is oblong."""
    warp: float = 0.03
    """Largest smooth distortion, in parts of the field of view."""
    sizes: tuple[int, ...] = (160, 192, 224, 256, 288, 320, 384)
    """Heights and widths of the matrix."""
    square: float = 0.5
    """Part of the matrices that are square."""
    no_phase: float = 0.06
    """Part without phase."""
    constant_phase: float = 0.06
    """Part whose phase is one number."""
    phase: tuple[float, ...] = (0.1, 20.0)
    """Amplitude of each part of the phase, in radians."""
    steepest: float = 60.0
    """Most radians of phase in a field of view, of each part."""
    echo: tuple[float, ...] = (0.1, 12.0)
    """How far the echo is off the centre of k-space, in samples."""
    correlation: float = 0.5
    """Largest correlation of the noise of neighbouring coils."""
    coils: tuple[int, ...] = (1, 32)
    """Receivers."""
    single: float = 0.35
    """Part of the batches that are of one coil, beside those whose number of receivers is drawn as one."""
    virtual: int = 10
    """Most virtual coils that receivers are compressed to."""
    map_error: tuple[float, ...] = (0.003, 0.05)
    """Size of a smooth error of the coil maps, over the maps; the logarithm is uniform."""
    support: float = 0.7
    """Part of the scans of several coils whose maps are zero away from the object."""
    acceleration: tuple[float, ...] = (2.0, 12.0)
    """Accelerations; the logarithm is uniform."""
    center: tuple[float, ...] = (0.06, 0.9)
    """Part of all that is sampled which is in the fully sampled centre; the logarithm is uniform."""
    planes: float = 0.2
    """Part of the masks that are points of the k-space plane; the others are whole columns."""
    equispaced: float = 0.35
    """Part of the masks of columns that are equispaced; the others are random."""
    partial: float = 0.2
    """Part of the masks of columns that leave out one side of k-space (partial Fourier)."""
    partial_factor: tuple[float, ...] = (0.6, 0.9)
    """The part of k-space that partial Fourier leaves."""
    snr: tuple[float, ...] = (5.0, 100.0)
    """Signal-to-noise ratio, as `simulation.noise_std` has it; the logarithm is uniform."""

    @property
    def mask_mix(self) -> MaskMix:
        """What a card says of the masks."""
        families = ("random_columns", "equispaced_columns", "gaussian_2d", "poisson_disc")
        return MaskMix(families if self.planes else families[:2], (min(self.acceleration), max(self.acceleration)))


def matrix_size(seed: int, wide: Wide) -> tuple[int, int]:
    """Height and width of an image."""
    rng = np.random.RandomState(seed)
    height, width = (int(wide.sizes[rng.randint(len(wide.sizes))]) for _ in range(2))
    return (height, height) if chance(rng, wide.square) else (height, width)


def coil_count(seed: int, wide: Wide) -> int:
    """How many coils; the logarithm is uniform."""
    low, high = min(wide.coils), max(wide.coils)
    return min(high, int(log_uniform(np.random.RandomState(seed), (low, high + 1))))


def snr(seed: int, wide: Wide) -> float:
    return log_uniform(np.random.RandomState(seed), wide.snr)


def sampling(shape: tuple[int, int], seed: int, wide: Wide) -> Tensor:
    """A random mask: bool, (W,) for whole columns, (H, W) for points of the plane."""
    rng = np.random.RandomState(seed)
    acceleration, center = log_uniform(rng, wide.acceleration), log_uniform(rng, wide.center)
    if chance(rng, wide.planes):
        return _points(shape, acceleration, min(center, 0.5), rng)
    for k in range(TRIES):
        mask = _columns(shape[1], acceleration, center, seed_of(seed, k), wide)
        if 1 / FAR_OFF < masks.acceleration(mask) / acceleration < FAR_OFF:
            break
    return mask


def _columns(width: int, acceleration: float, center: float, seed: int, wide: Wide) -> Tensor:
    """Random or equispaced columns (W,), of which one side may be left out for more of the others."""
    rng = np.random.RandomState(seed)
    left = 1.0
    if chance(rng, wide.partial):
        left = rng.uniform(min(wide.partial_factor), max(wide.partial_factor))
        left = min(1.0, max(left, 0.5 + center / acceleration))  # the centre stays whole
    family = masks.equispaced_columns if chance(rng, wide.equispaced) else masks.random_columns
    inner = max(1.0, acceleration * left)  # so that what is left reaches the acceleration
    low = min(max(round(width * center / acceleration), LEAST_COLUMNS), int(width / inner))
    mask = family(width, acceleration=inner, center_fraction=low / width, seed=int(rng.randint(2**31)))
    missing = round((1 - left) * width)
    mask[:missing] = False
    return _mirrored(mask) if chance(rng, 0.5) else mask


def _mirrored(mask: Tensor) -> Tensor:
    """k -> -k about the centre of k-space, at W // 2."""
    mirrored = mask.flip(-1)
    return mirrored if mask.shape[-1] % 2 else mirrored.roll(1, -1)


def _points(shape: tuple[int, int], acceleration: float, center: float, rng: np.random.RandomState) -> Tensor:
    """Points of the plane (H, W) that grow rarer from the centre: drawn independently, or kept apart."""
    seed, width = int(rng.randint(2**31)), log_uniform(rng, (0.4, 2))
    if chance(rng, 0.4):
        return masks.gaussian_2d(shape, acceleration=acceleration, center_fraction=center, width=width, seed=seed)
    return _apart(shape, acceleration, center, width, seed)


def _apart(shape: tuple[int, int], acceleration: float, center: float, width: float, seed: int) -> Tensor:
    """A jittered hexagonal lattice, from nearly regular to like Poisson discs, with density exp(-|k|^2 / (2 width^2)).

    `masks.poisson_disc` takes 0.3 s and more, this some 5 ms. A uniform lattice at radius s comes to lie at the radius
    r with s^2 = 2 width^2 (1 - exp(-r^2 / (2 width^2))), k in [-1, 1]^2.
    """
    rng = np.random.RandomState(seed)
    i, j = ((np.arange(n) - n // 2) / (n / 2) for n in shape)
    radius2 = i[:, None] ** 2 + j**2
    budget = max(1, round(radius2.size / acceleration))
    inner = np.argsort(radius2.ravel(), kind="stable")[: round(center * budget)]
    outer = np.exp(-radius2 / (2 * width**2)).mean()  # the part of the plane that the lattice covers, unwarped
    spacing = math.sqrt(4 * outer * 2 / math.sqrt(3) / ((1 - 0.7 * center) * budget))
    lattice = _lattice(math.ceil(2.2 * min(1.5, math.sqrt(2) * width) / spacing), rng)
    for _ in range(5):  # several points on one entry count once: closer, or farther, until the number is right
        mask = np.zeros(shape, dtype=bool)
        k = _rarer(spacing * lattice, width)
        rows, columns = (
            np.floor((part + 1) / 2 * n).astype(int) for part, n in zip((k.imag, k.real), shape, strict=True)
        )
        inside = (rows >= 0) & (rows < shape[0]) & (columns >= 0) & (columns < shape[1])
        mask[rows[inside], columns[inside]] = True
        mask.flat[inner] = True
        excess = mask.sum() / budget
        if abs(excess - 1) < 0.03:
            break
        spacing *= excess**0.7
    return torch.from_numpy(mask)


def _lattice(reach: int, rng: np.random.RandomState) -> np.ndarray:
    """Points i y + x at distances of 1, turned and jittered."""
    a, b = np.meshgrid(np.arange(-reach, reach + 1), np.arange(-reach, reach + 1), indexing="ij")
    z = np.exp(1j * rng.uniform(0, math.pi)) * (a + b * np.exp(1j * math.pi / 3)).ravel()
    z = z[abs(z) < reach]
    return z + 0.3 * rng.uniform(0.1, 1) * (rng.normal(size=z.size) + 1j * rng.normal(size=z.size))


def _rarer(z: np.ndarray, width: float) -> np.ndarray:
    """From uniform points to those that grow rarer from the centre."""
    far = abs(z) ** 2 / (2 * width**2)
    z, far = z[far < 1], far[far < 1]
    return z * np.sqrt(-np.log1p(-far) / np.maximum(far, 1e-12))
