"""Noise of a measurement: its std by entry, what is known without any, and how much there is in a scan.

y_m = M (A x + s eps): s is the std in each real and imaginary part, a number or (data), in the units of y_m. Entries
with s = 0 are known to the bit, as in the paper.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WINDOWS = (12, 8, 6, 4)  # one row of the field of view in so many is taken for air
EVEN = 1.06  # a larger window is taken if its energy is not above that of the smallest by more
LEAST_ROWS, LEAST_COLUMNS = 8, 6
FEW = 8  # numbers for each coil
UNEVEN = 2.6  # mean of the coils: of noise about 1; a single coil of a real scan may have 6
FLAT = 1.25  # signal falls with the distance from the centre of k-space; noise does not


class Unknown(ValueError):
    """A scan that does not tell its noise."""


def known_exactly(mask: Tensor, noise: Tensor | float) -> Tensor:
    """Where the scan was measured without noise: bool, as `mask` or larger."""
    return mask & (torch.as_tensor(noise, device=mask.device) == 0)


def covariance(y_m: Tensor, mask: Tensor) -> Tensor:
    """Of the noise of the coils, in each part, from the air beside the head.  (C, H, W), whole columns -> (C, C)

    Columns are transformed along the readout, which is fully sampled, to rows of the field of view. The window of rows
    with least energy holds noise alone, if anything does: then its energy is the same in all columns. The larger it is
    the better, as the least of few numbers is too small. Columns of the centre, which leak most, are left out.
    `Unknown` if there is signal everywhere.
    """
    width = y_m.shape[-1]
    columns = mask.clone() if mask.ndim == 1 else _whole_columns(mask)
    columns &= (torch.arange(width, device=mask.device) - width // 2).abs() >= width // 8
    if int(columns.sum()) < LEAST_COLUMNS:
        raise Unknown(f"{int(columns.sum())} columns outside the centre are too few to find the noise: give --noise")
    lines = torch.fft.ifftshift(y_m[..., columns], dim=-2)
    rows = torch.fft.fftshift(torch.fft.ifft(lines, dim=-2, norm="ortho"), dim=-2)  # (C, H, columns)
    energy = rows.abs().square().mean(-1)
    filled = (energy > 1e-6 * energy.median(1, keepdim=True).values).all(0)  # what was padded with zeros is no air
    rows, energy = rows[:, filled], energy[:, filled]
    if rows.shape[1] < 2 * LEAST_ROWS:
        raise Unknown("nearly all rows are empty, so that the noise cannot be found: give --noise")
    air = rows[:, _quietest((energy / energy.quantile(0.1, dim=1, keepdim=True)).mean(0))]
    _check_flat(air, (torch.arange(width, device=mask.device) - width // 2).abs()[columns])
    flat = air.flatten(1)
    filled_part = (y_m[..., columns] != 0).any(0).any(-1).float().mean()  # of rows that are zero, no noise comes here
    result = flat @ flat.mH / (2 * flat.shape[1] * filled_part)
    coils, count = flat.shape
    if count < FEW * coils:  # too few numbers: they would tell of directions without noise
        return torch.diag(result.diagonal())
    return result * count / (count - coils)  # so that whitened noise has the std that it says, not less


def at_most(y_m: Tensor, mask: Tensor) -> Tensor:
    """An upper bound of each coil's std in each part, from the measured quarter that is farthest from the centre: its
    noise, and what signal there is.  (C, H, W) -> (C,)

    By the median of |y|, which is sqrt(2 log 2) s for noise alone and hardly feels a few strong entries. Entries of
    exactly zero were not measured, but padded.
    """
    i, j = ((torch.arange(n, device=mask.device) - n // 2) / n for n in y_m.shape[-2:])
    radius = torch.hypot(i[:, None], j).masked_fill(~(mask & (y_m != 0).any(0)), -1)
    measured = radius[radius >= 0]
    outer = y_m[:, radius >= measured.quantile(0.75)].abs() if measured.numel() < 2**24 else y_m[:, radius > 0.5].abs()
    median = torch.where(outer > 0, outer, torch.nan).nanmedian(1).values
    return (median / math.sqrt(2 * math.log(2))).nan_to_num()


def of_counts(y: Tensor, photons: float) -> Tensor:
    """CT: the std of a line integral y = -log(N / N_0) that was counted with N_0 photons a ray: s^2 = e^y / N_0."""
    if not photons > 0:
        raise ValueError(f"there are {photons} photons a ray, expected some")
    return (y.exp() / photons).sqrt()


def _quietest(energy: Tensor) -> Tensor:
    """Numbers of the rows of the window with least energy; air goes round the edge of the field of view."""
    place, least = torch.zeros(0), 0.0
    for part in WINDOWS:
        count = max(LEAST_ROWS, len(energy) // part)
        means = torch.cat([energy, energy[: count - 1]]).unfold(0, count, 1).mean(1)
        if len(place) and float(means.min()) > EVEN * least:
            break
        least = least or float(means.min())
        place = (torch.arange(count, device=energy.device) + means.argmin()) % len(energy)
    return place


def _whole_columns(mask: Tensor) -> Tensor:
    """(..., H, W) -> (W,): columns that are measured from end to end."""
    return mask.reshape(-1, *mask.shape[-2:]).all(0).all(0)


def _check_flat(air: Tensor, distance: Tensor) -> None:
    inner = distance <= distance.float().median()
    energy = air.abs().square().mean((0, 1))
    ratio = float(energy[inner].mean() / energy[~inner].mean())
    if ratio > FLAT:
        raise Unknown(f"there is signal in every row (it falls {ratio:.1f}-fold along k-space): give --noise")
    by_column = air.abs().square().mean(1)  # (C, columns); means of n numbers of noise vary by 1 / n of their square
    uneven = float((by_column.var(1) / by_column.mean(1).square()).mean()) * air.shape[1]
    if uneven > UNEVEN:
        raise Unknown(
            f"there is signal in every row (columns differ {uneven:.1f} times as much as noise): give --noise"
        )
