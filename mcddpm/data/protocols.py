"""Volumes -> measurements, by protocol, and manifests that let a run be repeated.

A number depends on its protocol: what is cropped, what the truth is, which slices count, how they are scaled, which
mask they get. `paper` is what the authors do; `fastmri` takes the file's own matrix and target.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mcddpm.data.readers import open_volume
from mcddpm.data.volume import Volume, VolumeKind
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import Measurement, Noise, NoiseSource, measure_kspace
from mcddpm.system import files
from mcddpm.system.progress import Notice
from mcddpm.system.seeds import number_of

CENTER = {4: 0.08, 8: 0.04}


def measurement(
    path: str | Path,
    slice: int,
    protocol: str = "paper",
    acceleration: float = 4,
    mask: Tensor | None = None,
    *,
    kind: VolumeKind | None = None,
    coil_axis: int | None = None,
    noise: Noise | None = None,
) -> Measurement:
    """One slice of a scan as a protocol wants it. Without a mask: the protocol's own, seeded by file name and slice.

    kind, coil_axis: what the file does not say, as for `open_volume`. noise: as for `Measurement.from_kspace`.
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
    return PROTOCOLS[protocol](volume, slice, acceleration, mask, noise)


def mask_seed(path: Path, slice: int) -> int:
    """The authors' seed of a test slice: the number in file1000999.h5, times 100, plus the slice."""
    digits = path.stem.removeprefix("file")
    number = int(digits) if digits.isdigit() else number_of(path.name, 7) // 100
    return (number * 100 + slice) % 2**32


def _own_mask(volume: Volume, slice: int, acceleration: float, width: int) -> Tensor:
    fraction = CENTER.get(int(acceleration), 0.32 / acceleration)
    seed = mask_seed(volume.path, slice)
    return masks.random_columns(width, acceleration=acceleration, center_fraction=fraction, seed=seed)


def _paper(volume: Volume, slice: int, acceleration: float, mask: Tensor | None, noise: Noise | None) -> Measurement:
    """320 x 320, magnitude of reconstruction_rss with the phase of the inverse FFT, k-space computed from that. It has
    no noise unless it is given: the paper's assumption."""
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
    return measure_kspace(A(image), own, noise=0.0 if noise is None else noise, truth=image)


def _fastmri(volume: Volume, slice: int, acceleration: float, mask: Tensor | None, noise: Noise | None) -> Measurement:
    """The file's own matrix, k-space and target (rss for several coils, esc for one; its centre crop).

    A prospective file keeps its mask and has no truth. Columns that the scanner padded with zeros are not sampled, nor
    are those that were lost between others, which is told. Noise: what is given, what the file's noise scan says, or
    what the measured data say.
    """
    y = volume[slice]
    if mask is not None:
        masks.check_fits(mask, y.shape)
    present = (y != 0).reshape(-1, y.shape[-1]).any(0)
    if mask is None and volume.inferred:
        mask = present  # every slice as it was sampled
    elif mask is None:
        mask = volume.mask if volume.mask is not None else _own_mask(volume, slice, acceleration, y.shape[-1])
    notices: tuple[Notice, ...] = ()
    if len(lost := _lost(mask, present)):
        message = f"{len(lost)} columns that the mask calls measured hold nothing (the first is {lost[0]})"
        notices = (Notice("lost columns", f"{message}: taken as not sampled"),)
    mask = mask & present
    target = volume.reference("reconstruction_rss" if volume.coils else "reconstruction_esc", slice)
    source: NoiseSource = "given"
    if noise is None and volume.noise is not None:
        noise, source = volume.noise if volume.coils else volume.noise[0, 0].real.sqrt(), "noise scan"
    measured = measure_kspace(y, mask, noise=noise, noise_from=source, whole=volume.mask is None, target=target)
    return replace(measured, notices=(*notices, *measured.notices))


def _lost(mask: Tensor, present: Tensor) -> list[int]:
    """Columns of the mask that hold nothing although others on either side of them do: not padding."""
    empty = mask.reshape(-1, mask.shape[-1]).any(0) & ~present
    before, after = present.cumsum(0) > 0, present.flip(0).cumsum(0).flip(0) > 0
    lost: list[int] = (empty & before & after).nonzero().flatten().tolist()
    return lost


PROTOCOLS: dict[str, Callable[[Volume, int, float, Tensor | None, Noise | None], Measurement]] = {
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
        digest = files.sha256(path)
        for index in slices_of(volume, protocol):
            entries.append(Entry(path.name, digest, index, protocol, acceleration, mask_seed(path, index)))
    if not entries:
        raise ValueError(
            f"no slices left of {len(paths)} files (protocol {protocol}, acquisition {acquisition or 'any'})"
        )
    return entries


def write_manifest(path: Path, entries: list[Entry]) -> str:
    """Write a manifest; returns its sha256, which names the run's data in every result."""
    text = json.dumps([asdict(entry) for entry in entries], indent=1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    files.write_json(path, {"sha256": digest, "slices": json.loads(text)})
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
    if not path.is_file() or files.sha256(path) != entry.sha256:
        raise ValueError(f"{path} is not the file of the manifest")
    if mask_seed(path, entry.slice) != entry.seed:
        raise ValueError(
            f"{entry.file}, slice {entry.slice} had mask seed {entry.seed}, which is not the protocol's own"
        )
    return measurement(path, entry.slice, entry.protocol, entry.acceleration)
