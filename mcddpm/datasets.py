"""Volumes -> measurements, by protocol, and manifests that let a run be repeated.

A number depends on its protocol: what is cropped, what the truth is, which slices count, how they are scaled, which
mask they get. `paper` is what the authors do; `fastmri` takes the file's own matrix and target.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcddpm import masks, registry
from mcddpm.fetch import file_sha256
from mcddpm.operators import Fourier, Operator, Sense
from mcddpm.readers import Volume, open_volume


@dataclass(frozen=True)
class Measurement:
    """y_m: (data), zero off the mask, times `scale` = 1 / max|A+ y_M|; truth: complex, scaled alike, where known.

    target: the magnitude that a protocol compares with, scaled alike, where it is not |truth|; it may be a centre crop.
    """

    y_m: Tensor
    mask: Tensor
    scale: float
    operator: Operator
    truth: Tensor | None = None
    target: Tensor | None = None
    from_numpy: bool = False

    @classmethod
    def from_kspace(
        cls, kspace: Tensor | np.ndarray, mask: Tensor | np.ndarray | None = None, *, maps: Tensor | None = None
    ) -> Measurement:
        """Your own k-space, (H, W) or (coils, H, W), in the centred FFT; numpy or torch, and results come back alike.

        mask: True where sampled, (W,) or (H, W). Without one, what is exactly zero was not sampled. Coil maps (coils,
        H, W) are found from the centre of k-space unless given.
        """
        y = torch.as_tensor(kspace)
        if not y.is_complex() or y.ndim not in (2, 3):
            raise ValueError(
                f"kspace has dtype {y.dtype} and shape {tuple(y.shape)}, expected complex (H, W) or (coils, H, W)"
            )
        y = y.to(torch.complex64)
        if not torch.isfinite(y).all():
            raise ValueError("kspace holds NaN or infinite values")
        sampled = (y != 0).reshape(-1, *y.shape[-2:]).any(0) if mask is None else torch.as_tensor(mask).to(y.device)
        if mask is None and sampled.all():
            raise ValueError(
                "kspace is fully sampled and no mask was given; for a retrospective study pass one, "
                "as masks.random_columns(width, acceleration=4, seed=0)"
            )
        masks.check(sampled, y.shape)
        A: Operator = Fourier()
        if y.ndim == 3:
            y_m = y.masked_fill(~sampled, 0)
            A = Sense(maps_of(y_m, sampled) if maps is None else torch.as_tensor(maps).to(y))
        truth = None if mask is None or (y == 0).any() else A.pinv(y)
        return dataclasses.replace(measure(y, sampled, A, truth), from_numpy=isinstance(kspace, np.ndarray))


def measure(
    y: Tensor, mask: Tensor, A: Operator, truth: Tensor | None = None, target: Tensor | None = None
) -> Measurement:
    """Under-sample a measurement (data) and scale it."""
    masks.check_fits(mask, y.shape)
    y_m = y.masked_fill(~mask, 0)
    top = float(A.pinv(y_m).abs().max())
    if not top > 0:
        raise ValueError("the measured data are zero everywhere: nothing to reconstruct")
    truth, target = (None if x is None else x / top for x in (truth, target))
    return Measurement(y_m / top, mask, 1 / top, A, truth, target)


def measured_rms(zero_filled: Tensor) -> list[float]:
    """The rms of zero-filled images whose maximum is 1: how much energy was measured.  (B, H, W) -> B numbers"""
    return zero_filled.abs().square().mean((-2, -1)).sqrt().tolist()


# --- protocols ------------------------------------------------------------------------------------------------------

CENTER = {4: 0.08, 8: 0.04}


def measurement(
    path: str | Path,
    slice: int,
    protocol: str = "paper",
    acceleration: float = 4,
    mask: Tensor | None = None,
    *,
    kind: str | None = None,
    coil_axis: int | None = None,
) -> Measurement:
    """One slice of a scan as a protocol wants it. Without a mask: the protocol's own, seeded by file name and slice.

    kind, coil_axis: what the file does not say, as for `open_volume`.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}; known: {', '.join(PROTOCOLS)}")
    volume = open_volume(path, kind=kind, coil_axis=coil_axis)
    if not 0 <= slice < len(volume):
        raise ValueError(f"{path} has slices 0 to {len(volume) - 1}, there is no slice {slice}")
    if volume.kind != "kspace":
        raise ValueError(f"{path} holds images, protocol {protocol} needs k-space")
    if not volume[slice].any():
        raise ValueError(f"{path}, slice {slice} is zero everywhere")
    return PROTOCOLS[protocol](volume, slice, acceleration, mask)


def mask_seed(path: Path, slice: int) -> int:
    """The authors' seed of a test slice: the number in file1000999.h5, times 100, plus the slice."""
    digits = path.stem.removeprefix("file")
    number = int(digits) if digits.isdigit() else int(hashlib.sha256(path.name.encode()).hexdigest()[:7], 16) // 100
    return (number * 100 + slice) % 2**32


def _own_mask(volume: Volume, slice: int, acceleration: float, width: int) -> Tensor:
    fraction = CENTER.get(int(acceleration), 0.32 / acceleration)
    seed = mask_seed(volume.path, slice)
    return masks.random_columns(width, acceleration=acceleration, center_fraction=fraction, seed=seed)


def _paper(volume: Volume, slice: int, acceleration: float, mask: Tensor | None) -> Measurement:
    """320 x 320, magnitude of reconstruction_rss with the phase of the inverse FFT, k-space computed from that."""
    if volume.coils:
        raise ValueError(f"{volume.path} has {volume.coils} coils, protocol paper is for single-coil files")
    A = Fourier()
    image = center_crop(A.pinv(volume[slice]), 320)
    rss = volume.reference("reconstruction_rss", slice)
    if rss is None:
        raise ValueError(f"{volume.path} has no reconstruction_rss, which protocol paper takes the magnitude from")
    if rss.shape != image.shape:
        raise ValueError(
            f"{volume.path}: reconstruction_rss has shape {tuple(rss.shape)}, expected {tuple(image.shape)}"
        )
    image = torch.polar(rss, image.angle())
    own = _own_mask(volume, slice, acceleration, 320) if mask is None else mask
    return measure(A(image), own, A, image)


def _fastmri(volume: Volume, slice: int, acceleration: float, mask: Tensor | None) -> Measurement:
    """The file's own matrix, k-space and target (rss for several coils, esc for one; its centre crop).

    A prospective file keeps its mask and has no truth. Columns that the scanner padded with zeros are not sampled, nor
    are those that were lost between others, which is told.
    """
    y = volume[slice]
    present = (y != 0).reshape(-1, y.shape[-1]).any(0)
    if mask is None and volume.inferred:
        mask = present  # every slice as it was sampled
    elif mask is None:
        mask = volume.mask if volume.mask is not None else _own_mask(volume, slice, acceleration, y.shape[-1])
    if len(lost := _lost(mask, present)):
        told = f"{len(lost)} columns that the mask calls measured hold nothing (the first is {lost[0]})"
        warnings.warn(f"{told}: taken as not sampled", stacklevel=2)
    mask = mask & present
    A: Operator = Sense(maps_of(y.masked_fill(~mask, 0), mask)) if volume.coils else Fourier()
    target = volume.reference("reconstruction_rss" if volume.coils else "reconstruction_esc", slice)
    return measure(y, mask, A, None if volume.mask is not None else A.pinv(y), target)


def _lost(mask: Tensor, present: Tensor) -> list[int]:
    """Columns of the mask that hold nothing although others on either side of them do: not padding."""
    empty = mask.reshape(-1, mask.shape[-1]).any(0) & ~present
    before, after = present.cumsum(0) > 0, present.flip(0).cumsum(0).flip(0) > 0
    lost: list[int] = (empty & before & after).nonzero().flatten().tolist()
    return lost


PROTOCOLS: dict[str, Callable[[Volume, int, float, Tensor | None], Measurement]] = {
    "paper": _paper,
    "fastmri": _fastmri,
}


def slices_of(volume: Volume, protocol: str) -> range:
    """The slices that count: `paper` drops the first and last five, which are mostly noise."""
    return range(5, len(volume) - 5) if protocol == "paper" else range(len(volume))


def center_crop(image: Tensor, size: int) -> Tensor:
    height, width = image.shape[-2:]
    if min(height, width) < size:
        raise ValueError(f"image is {height} x {width}, which cannot be cropped to {size} x {size}")
    top, left = (height - size) // 2, (width - size) // 2
    return image[..., top : top + size, left : left + size]


def maps_of(y_m: Tensor, mask: Tensor, lines: int = 24) -> Tensor:
    """Coil maps from the fully sampled centre: smooth coil images over their root sum of squares.  (C, H, W)

    Only measured data are used, at most `lines` x `lines` of them, so that the maps do not know the answer.
    """
    height, width = y_m.shape[-2:]
    blocks = [_center_block(mask.expand(height, width), rows, lines) for rows in range(1, min(lines, height) + 1)]
    sizes = max(blocks, key=lambda size: (min(size), size[0] * size[1]))
    if min(sizes) < 1:
        raise ValueError("the centre of k-space is not sampled: coil maps cannot be found from it")
    window = torch.zeros(height, width, device=y_m.device)
    rows, columns = (torch.hann_window(n + 2, periodic=False, device=y_m.device)[1:-1] for n in sizes)
    top, left = height // 2 - len(rows) // 2, width // 2 - len(columns) // 2
    window[top : top + len(rows), left : left + len(columns)] = rows[:, None] * columns
    images = Fourier().pinv(y_m * window)
    return images / images.abs().square().sum(0).sqrt().clamp(min=1e-20)


def _center_block(mask: Tensor, rows: int, lines: int) -> tuple[int, int]:
    """(rows, columns) of the widest fully sampled block of so many rows in the middle of k-space."""
    height, width = mask.shape
    top = height // 2 - rows // 2
    gap = (~mask[top : top + rows].all(0)).nonzero().squeeze(1) - width // 2
    reach = int(gap.abs().min()) if len(gap) else width // 2
    return rows, min(lines, 2 * reach - 1)


# --- manifests ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One slice of a run: enough to make the same measurement again."""

    file: str
    sha256: str
    slice: int
    protocol: str
    acceleration: float
    seed: int


def manifest(paths: list[Path], protocol: str, acceleration: float, acquisition: str = "") -> list[Entry]:
    """All slices that count of these files, of one acquisition (CORPD_FBK, CORPDFS_FBK) if asked."""
    entries = []
    for path in paths:
        volume = open_volume(path)
        if acquisition and volume.acquisition != acquisition:
            continue
        digest = sha256_of(path)
        for index in slices_of(volume, protocol):
            entries.append(Entry(path.name, digest, index, protocol, acceleration, mask_seed(path, index)))
    if not entries:
        raise ValueError(
            f"no slices left of {len(paths)} files (protocol {protocol}, acquisition {acquisition or 'any'})"
        )
    return entries


def sha256_of(path: Path) -> str:
    """A file's, found once for as long as it keeps its time and size: files are large, and asked for slice by slice."""
    found = path.stat()
    return _sha256(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4096)
def _sha256(path: Path, time: int, size: int) -> str:
    return file_sha256(path)


def write_manifest(path: Path, entries: list[Entry]) -> str:
    """Write a manifest; returns its sha256, which names the run's data in every result."""
    text = json.dumps([asdict(entry) for entry in entries], indent=1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps({"sha256": digest, "slices": json.loads(text)}, indent=1) + "\n")
    part.rename(path)
    return digest


def read_manifest(path: Path) -> list[Entry]:
    try:
        content = json.loads(path.read_text())
        text = json.dumps(content["slices"], indent=1)
        if hashlib.sha256(text.encode()).hexdigest() != content["sha256"]:
            raise ValueError(f"{path} was changed: its sha256 does not fit")
        return [Entry(**entry) for entry in content["slices"]]
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a manifest: {error}") from error


def repeat(entry: Entry, folder: Path) -> Measurement:
    """The measurement that an entry describes, if the file is still the same."""
    path = folder / entry.file
    if not path.is_file() or sha256_of(path) != entry.sha256:
        raise ValueError(f"{path} is not the file of the manifest")
    if mask_seed(path, entry.slice) != entry.seed:
        raise ValueError(
            f"{entry.file}, slice {entry.slice} had mask seed {entry.seed}, which is not the protocol's own"
        )
    return measurement(path, entry.slice, entry.protocol, entry.acceleration)


# --- in words -------------------------------------------------------------------------------------------------------


def describe(name: str) -> list[dict[str, Any]]:
    """What a data set consists of, row by row: for `mcddpm data info`."""
    return [
        {
            "person": scan.person,
            "split": scan.split,
            "what": scan.what,
            "licence": scan.licence,
            "cite": registry.CITATIONS[scan.archive.package],
            "package": scan.archive.package,
            "member": scan.member,
            "here": registry.volume_path(name, scan).exists(),
        }
        for scan in registry.scans(name)
    ]


def summary(volume: Volume) -> str:
    """What a file holds, in words, after reading every slice of it."""
    top = 0.0
    for index in range(len(volume)):
        largest = float(volume[index].abs().max())
        if volume.kind == "kspace" and largest == 0:
            raise ValueError(f"{volume.path}, slice {index} is zero everywhere")
        top = max(top, largest)
    height, width = volume.shape[-2:]
    coils = f", {volume.coils} coils" if volume.coils else ""
    sampled = "" if volume.mask is None else f", {masks.acceleration(volume.mask):.2f}x under-sampled"
    extra = "".join(f", {name}" for name in (volume.acquisition, *volume.references) if name)
    what = f"{volume.kind}, {len(volume)} slices of {height} x {width}{coils}{sampled}{extra}"
    return f"{volume.path}: {what}; up to {top:.4g}"
