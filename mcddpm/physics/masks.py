"""Under-sampling masks M: True where a measurement is taken.

Column and view masks have shape (width,) and broadcast along the last axis of the data; plane masks have shape (H, W).
Every family takes a seed and leaves the global generators alone. `acceleration(mask)` is the factor that was reached:
random columns hit it only on average, as fastMRI defines them. `get` accepts a family's name or a user's mask file.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)


def acceleration(mask: Tensor) -> float:
    """The acceleration reached: entries / sampled entries."""
    return mask.numel() / int(mask.sum())


# --- columns of k-space ---------------------------------------------------------------------------------------------


def random_columns(width: int, *, acceleration: float = 4, center_fraction: float | None = None, seed: int) -> Tensor:
    """fastMRI's random mask, bit for bit: a centre band, and every other column with equal probability.

    The probability is chosen so that width / acceleration columns are expected, centre included.
    """
    low, start = _center_band(width, acceleration, center_fraction)
    probability = (width / acceleration - low) / max(width - low, 1)
    mask = np.random.RandomState(seed).uniform(size=width) < probability
    mask[start : start + low] = True
    return _finish(mask, "random_columns", acceleration)


def equispaced_columns(
    width: int, *, acceleration: float = 4, center_fraction: float | None = None, seed: int
) -> Tensor:
    """fastMRI's equispaced mask: a centre band, and a comb from a random offset.

    The comb's spacing is widened so that, with the centre band, the acceleration asked for is reached.
    """
    low, start = _center_band(width, acceleration, center_fraction)
    spacing = acceleration * (width - low) / (width - low * acceleration) if width > low * acceleration else width
    offset = np.random.RandomState(seed).randint(0, max(round(spacing), 1))
    mask = np.zeros(width, dtype=bool)
    mask[np.around(np.arange(offset, width - 1, spacing)).astype(int)] = True
    mask[start : start + low] = True
    return _finish(mask, "equispaced_columns", acceleration)


def _center_band(width: int, acceleration: float, center_fraction: float | None) -> tuple[int, int]:
    """Columns in the fully sampled centre and the first of them; 8 % at 4x and 4 % at 8x unless told."""
    _check_acceleration(acceleration)
    if width < 1:
        raise ValueError(f"width is {width}, expected 1 column or more")
    fraction = 0.32 / acceleration if center_fraction is None else center_fraction
    if not 0 <= fraction <= 1:
        raise ValueError(f"center_fraction is {fraction}, expected a share between 0 and 1")
    low = round(width * fraction)
    if low > width / acceleration:
        raise ValueError(
            f"the centre band of {low} columns (center_fraction {fraction:g}) is wider than the "
            f"{width / acceleration:g} of {width} columns that acceleration {acceleration:g} leaves; "
            f"lower center_fraction to {1 / acceleration:g} or less"
        )
    return low, (width - low + 1) // 2


# --- points of the k-space plane ------------------------------------------------------------------------------------


def gaussian_2d(
    shape: Sequence[int], *, acceleration: float = 4, center_fraction: float = 0.04, width: float = 0.25, seed: int
) -> Tensor:
    """Points drawn without replacement with density exp(-|k|^2 / (2 width^2)), k in [-1, 1]^2; exact acceleration.

    A disc with `center_fraction` of the budget's points around the centre is always sampled.
    """
    if not width > 0:
        raise ValueError(f"width is {width}, expected a value above 0")
    radius = _radius(shape)
    budget = _budget(radius.size, acceleration)
    # Gumbel's trick: the largest log-density + Gumbel noise are a draw without replacement.
    score = -(radius**2) / (2 * width**2) + np.random.RandomState(seed).gumbel(size=radius.shape)
    score[_center_disc(radius, center_fraction, budget)] = np.inf
    mask = np.zeros(radius.size, dtype=bool)
    mask[np.argsort(-score, axis=None, kind="stable")[:budget]] = True
    return _finish(mask.reshape(radius.shape), "gaussian_2d", acceleration)


def poisson_disc(
    shape: Sequence[int], *, acceleration: float = 4, center_fraction: float = 0.04, slope: float = 2.0, seed: int
) -> Tensor:
    """Points at least r (1 + slope |k|) apart, in random order until none fits; r is solved for the acceleration.

    A disc with `center_fraction` of the budget's points around the centre is always sampled.
    """
    radius = _radius(shape)
    budget = _budget(radius.size, acceleration)
    center = _center_disc(radius, center_fraction, budget)
    rng = np.random.RandomState(seed)
    order = rng.permutation(radius.size)
    # A random place within each pixel: bare grid distances (1, sqrt 2, 2, ...) would leave rings in the density.
    place = np.indices(radius.shape) + rng.uniform(-0.5, 0.5, size=(2, *radius.shape))
    # Discs thrown at random settle at 0.7 / r^2 points a pixel: bisect around that, as the count falls with r.
    low, high = 0.0, 2 * math.sqrt(0.7 * np.mean(1 / (1 + slope * radius) ** 2) * acceleration)
    best = np.ones(radius.shape, dtype=bool)
    for _ in range(16):
        r = (low + high) / 2
        mask = _throw_darts(order, place, r * (1 + slope * radius)) | center
        if abs(int(mask.sum()) - budget) < abs(int(best.sum()) - budget):
            best = mask
        if abs(int(mask.sum()) - budget) <= 0.01 * budget:
            break
        low, high = (r, high) if mask.sum() > budget else (low, r)
    return _finish(best, "poisson_disc", acceleration)


def _throw_darts(order: np.ndarray, place: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """Accept points in the given order unless an accepted one lies within its spacing."""
    free = np.ones(spacing.shape, dtype=bool)
    taken = np.zeros(spacing.shape, dtype=bool)
    for i, j in zip(*np.unravel_index(order, spacing.shape), strict=True):
        if not free[i, j]:
            continue
        taken[i, j] = True
        r = spacing[i, j]
        reach = math.ceil(r) + 1
        box = np.s_[max(0, i - reach) : i + reach + 1, max(0, j - reach) : j + reach + 1]
        free[box] &= (place[0][box] - place[0, i, j]) ** 2 + (place[1][box] - place[1, i, j]) ** 2 >= r * r
    return taken


def radial(shape: Sequence[int], *, acceleration: float = 4, seed: int) -> Tensor:
    """Evenly turned spokes through the centre, on the nearest grid points; the seed turns the whole star.

    As many spokes as come closest to the acceleration.
    """
    _check_acceleration(acceleration)
    height, width = _plane(shape)
    turn = np.random.RandomState(seed).uniform(0, math.pi)
    budget = _budget(height * width, acceleration)
    masks = (_star(height, width, spokes, turn) for spokes in range(1, 2 * (height + width)))
    best = _star(height, width, 1, turn)
    for mask in masks:  # more spokes, more points: stop once past the budget
        if abs(int(mask.sum()) - budget) <= abs(int(best.sum()) - budget):
            best = mask
        if mask.sum() > budget:
            break
    return _finish(best, "radial", acceleration)


def _star(height: int, width: int, spokes: int, turn: float) -> np.ndarray:
    angle = turn + math.pi * np.arange(spokes)[:, None] / spokes
    # Half a pixel a step, in units of the half axes, so that spokes reach the border of non-square planes too.
    r = np.linspace(-1, 1, 2 * max(height, width) + 1)[None, :]
    i = np.rint(height // 2 + r * np.sin(angle) * height / 2).astype(int)
    j = np.rint(width // 2 + r * np.cos(angle) * width / 2).astype(int)
    inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
    mask = np.zeros((height, width), dtype=bool)
    mask[i[inside], j[inside]] = True
    return mask


def _plane(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"shape is {tuple(shape)}, expected (height, width) of 1 or more each")
    return int(shape[0]), int(shape[1])


def _radius(shape: Sequence[int]) -> np.ndarray:
    """|k| with the centre of our FFT at 0 and the nearer edges at 1."""
    height, width = _plane(shape)
    i = (np.arange(height) - height // 2) / max(height / 2, 1)
    j = (np.arange(width) - width // 2) / max(width / 2, 1)
    return np.hypot(i[:, None], j[None, :])


def _center_disc(radius: np.ndarray, center_fraction: float, budget: int) -> np.ndarray:
    """The entries nearest to the centre, as many as this share of the budget."""
    if not 0 <= center_fraction <= 1:
        raise ValueError(f"center_fraction is {center_fraction}, expected a share of the sampled points, 0 to 1")
    disc = np.zeros(radius.size, dtype=bool)
    disc[np.argsort(radius, axis=None, kind="stable")[: round(center_fraction * budget)]] = True
    return disc.reshape(radius.shape)


def _budget(entries: int, acceleration: float) -> int:
    _check_acceleration(acceleration)
    if entries < 1:
        raise ValueError(f"there are {entries} entries to sample, expected 1 or more")
    return max(1, round(entries / acceleration))


# --- views of a CT scan ---------------------------------------------------------------------------------------------


def sparse_views(views: int, *, acceleration: float = 4, seed: int) -> Tensor:
    """Every acceleration-th view, from a random first one."""
    count = _budget(views, acceleration)
    offset = np.random.RandomState(seed).uniform(0, views / count)
    mask = np.zeros(views, dtype=bool)
    mask[np.floor(offset + np.arange(count) * views / count).astype(int) % views] = True
    return _finish(mask, "sparse_views", acceleration)


def limited_angle(views: int, *, acceleration: float = 4, seed: int) -> Tensor:
    """One unbroken arc of views with a random start; it may wrap, as view theta + 180 is view theta mirrored."""
    count = _budget(views, acceleration)
    start = np.random.RandomState(seed).randint(views)
    mask = np.zeros(views, dtype=bool)
    mask[(start + np.arange(count)) % views] = True
    return _finish(mask, "limited_angle", acceleration)


# --- by name, or from a file ----------------------------------------------------------------------------------------

ALONG_LAST_AXIS: dict[str, Callable[..., Tensor]] = {
    "random_columns": random_columns,
    "equispaced_columns": equispaced_columns,
    "sparse_views": sparse_views,
    "limited_angle": limited_angle,
}
IN_PLANE: dict[str, Callable[..., Tensor]] = {
    "gaussian_2d": gaussian_2d,
    "poisson_disc": poisson_disc,
    "radial": radial,
}
MASKS = {**ALONG_LAST_AXIS, **IN_PLANE}


def get(name: str | Path, shape: Sequence[int], **settings: Any) -> Tensor:
    """A mask for data of this (trailing) shape: a family of MASKS with its settings, or a user's file.

    A file holds its own sampling, so settings such as acceleration and seed are not read for it.
    """
    if str(name) in ALONG_LAST_AXIS:
        return ALONG_LAST_AXIS[str(name)](shape[-1], **settings)
    if str(name) in IN_PLANE:
        return IN_PLANE[str(name)](tuple(shape[-2:]), **settings)
    if Path(name).suffix:
        return load(name, shape)
    raise ValueError(f"unknown mask {str(name)!r}; known: {', '.join(MASKS)}, or a .npy, .npz, .h5 or .txt file")


def load(path: str | Path, shape: Sequence[int]) -> Tensor:
    """A mask from .npy, .npz or .h5 (entry `mask`) or .txt: booleans, or numbers that are all 0 or 1."""
    path = Path(path)
    values = _read(path)
    if values.dtype != bool:
        if not np.isin(values, (0, 1)).all():
            raise ValueError(f"{path} holds values other than 0 and 1, expected a boolean mask")
        values = values.astype(bool)
    mask = torch.from_numpy(values)
    try:
        check(mask, shape)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    log.info("%s: acceleration %.2f", path, acceleration(mask))
    return mask


def _read(path: Path) -> np.ndarray:
    if not path.is_file():
        raise ValueError(f"no mask file {path}")
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return archive["mask"]
        if path.suffix in (".h5", ".hdf5"):
            import h5py

            with h5py.File(path) as file:
                return np.asarray(file["mask"])
        if path.suffix == ".txt":
            return np.loadtxt(path)
    except (OSError, KeyError, ValueError, EOFError) as error:
        raise ValueError(f"{path} holds no readable mask: {error}") from error
    raise ValueError(f"{path} has ending {path.suffix!r}, expected .npy, .npz, .h5 or .txt")


def check_fits(mask: Tensor, shape: Sequence[int]) -> None:
    """Refuse a mask that is not boolean or does not broadcast to `shape`."""
    if mask.dtype != torch.bool:
        raise ValueError(f"mask has dtype {mask.dtype}, expected torch.bool (True where sampled)")
    try:
        fits = torch.broadcast_shapes(mask.shape, tuple(shape)) == torch.Size(shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"mask has shape {tuple(mask.shape)}, expected one that broadcasts to data {tuple(shape)}")


def check(mask: Tensor, shape: Sequence[int], batched: bool = False, empty: bool = False) -> None:
    """Also refuse one that samples nothing (unless it may: `empty`) or everything; `batched`: for any measurement along
    the first axis."""
    check_fits(mask, shape)
    each = mask.flatten(1) if batched and mask.ndim == len(shape) else mask.reshape(1, -1)
    if not empty and not each.any(1).all():
        raise ValueError("mask samples nothing, expected at least one measured entry")
    if each.all(1).any():
        raise ValueError("mask samples everything, so nothing is left to draw; expected some unmeasured entries")


def _check_acceleration(acceleration: float) -> None:
    if not (math.isfinite(acceleration) and acceleration >= 1):
        raise ValueError(f"acceleration is {acceleration}, expected a factor of 1 or more")


def _finish(mask: np.ndarray, family: str, asked: float) -> Tensor:
    """The mask as a tensor, with what was asked and reached in the log."""
    result = torch.from_numpy(mask)
    if not result.any():
        raise ValueError(
            f"{family} sampled nothing at acceleration {asked:g} of {mask.size}; lower it or change the seed"
        )
    log.info("%s: acceleration %.2f asked, %.2f reached", family, asked, acceleration(result))
    return result


# --- in a configuration ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskMix:
    """Each slice of each epoch gets one of the families at one of the accelerations, by its seed."""

    families: tuple[str, ...] = ("random_columns",)
    """Families of masks, or mask files. Each slice of each epoch gets one of them, by its seed."""
    accelerations: tuple[float, ...] = (4.0, 8.0)
    """Accelerations. Each slice of each epoch gets one of them."""
