"""Named data sets -> stacks of axial slices, made once and kept in the cache.

Heads are turned upright, cut to one field of view and brought to one matrix size as a scanner would have it: by
cropping or padding k-space.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mcddpm.data import catalogue, legs
from mcddpm.data.phantoms import drawn
from mcddpm.data.readers import open_volume
from mcddpm.data.volume import Volume
from mcddpm.simulation import scans
from mcddpm.system import files

RECIPE = 1  # counts up when the preparation below changes, so that old caches are not taken for new ones
FIELD_OF_VIEW = 240.0  # mm
BRAIN = 125.0  # mm below the top of the head
FOREGROUND = 60.0  # cm^2


def prepare(name: str, split: str, size: int) -> Path:
    """The slices of a split as one memory-mapped .npy (N, size, size), made once; beside it, whose each slice is."""
    folder = catalogue.cache() / "slices"
    if name == "legs":
        chosen = catalogue.scans(name) if split in legs.PARTS else []
    else:
        chosen = [scan for scan in catalogue.scans(name) if scan.split == split]
    made_of = [(s.archive.sha256, s.member) for s in chosen]
    recipe = repr((RECIPE, FIELD_OF_VIEW, BRAIN, FOREGROUND, made_of, *([legs.PARTS] if name == "legs" else [])))
    path = folder / f"{name}-{split}-{size}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}.npy"
    if path.exists():
        return path
    if not chosen:
        raise ValueError(f"data set {name} has no split {split!r}")
    stacks, rows = [], []
    for scan, stack, indices in _stacks(name, split, chosen, size):
        stacks.append(stack)
        rows += [{"person": scan.person, "file": scan.name, "slice": index} for index in indices]
    # Several processes may prepare the same. Each file is whole when it is there, and the one that is looked for last.
    content = {"data": name, "split": split, "size": size, "slices": rows}
    files.write_text(path.with_suffix(".json"), json.dumps(content) + "\n")
    with files.whole(path) as part, part.open("wb") as whole:
        np.save(whole, np.concatenate(stacks))
    return path


def _stacks(
    name: str, split: str, chosen: list[catalogue.Scan], size: int
) -> Iterator[tuple[catalogue.Scan, np.ndarray, list[int]]]:
    for scan in chosen[:: 2 if name == "legs" else 1]:
        volume = _opened(name, scan)
        if name == "legs":
            phase = _opened(name, chosen[chosen.index(scan) + 1])
            yield scan, _with_phase(volume, phase, legs.PARTS[split], size), list(legs.PARTS[split])
            continue
        stack, indices = axial_slices(volume, size, whole=name == "chest")
        if name == "chest":  # Hounsfield units to attenuation along a pixel's width
            pixel = volume.geometry.spacing[2] * volume.shape[-1] / size
            stack = pixel * scans.attenuation(torch.from_numpy(stack)).numpy()
        yield scan, stack, indices


def _opened(name: str, scan: catalogue.Scan) -> Volume:
    file = catalogue.volume_path(name, scan)
    if not file.exists():
        raise ValueError(f"{file} is not here yet: mcddpm data get {name}")
    return open_volume(file)


def _with_phase(magnitude: Volume, phase: Volume, part: range, size: int) -> np.ndarray:
    """Complex slices in their whole field of view, made square with zeros."""
    top = np.percentile(np.stack([magnitude[k].numpy() for k in range(len(magnitude))]), 99.5)
    images = []
    for k in part:
        image = magnitude[k].numpy() * np.exp(1j * np.pi / legs.HALF_TURN * phase[k].numpy())
        pad = [((max(image.shape) - n) // 2, (max(image.shape) - n + 1) // 2) for n in image.shape]
        images.append(fourier_resize(np.pad(image, pad), size) / top)
    return np.stack(images).astype(np.complex64)


def axial_slices(volume: Volume, size: int, whole: bool = False) -> tuple[np.ndarray, list[int]]:
    """Axial slices through the brain (CT: all), 240 mm square, Fourier-cropped to size x size; and which they are."""
    data, (dz, dy, dx) = _canonical(volume)
    if whole:
        data, kept = data.clip(min=-1000), list(range(len(data)))  # -2048 marks what lies outside the scanner's field
    else:
        level = 0.1 * np.percentile(data, 99.5)
        area = (data > level).sum((1, 2)) * dy * dx / 100
        top = int(np.nonzero(area > FOREGROUND)[0].max())
        kept = [k for k in range(max(0, top - round(BRAIN / dz)), top + 1) if area[k] > FOREGROUND]
    crop = _fit(data, (dy, dx), None if whole else 0.1 * np.percentile(data, 99.5))
    images = np.stack([fourier_resize(crop(data[k]), size) for k in kept])
    images = images.real if whole else np.abs(images) / np.percentile(data, 99.5)
    return images.astype(np.float32), kept


def _canonical(volume: Volume) -> tuple[np.ndarray, tuple[float, float, float]]:
    """(z up, y to the front, x to the right) by swapping and flipping axes, and the spacing of each, in mm."""
    data = np.stack([volume[k].numpy() for k in range(len(volume))]).transpose(2, 1, 0)  # (column, row, slice)
    affine = np.eye(4) if volume.geometry.affine is None else volume.geometry.affine
    axes = np.abs(affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)).argmax(0)
    if sorted(axes) != [0, 1, 2]:
        raise ValueError(f"{volume.path}: its axes are too oblique to tell which is which")
    order = np.argsort(axes)
    data = data.transpose(order)
    steps = affine[:3, :3][[0, 1, 2], order]
    for axis, step in enumerate(steps):
        if step < 0:
            data = np.flip(data, axis)
    spacing = np.linalg.norm(affine[:3, :3], axis=0)[order]
    data = np.flip(data, 1).transpose(2, 1, 0)  # rows from front to back, as one looks at a head
    return np.ascontiguousarray(data), (float(spacing[2]), float(spacing[1]), float(spacing[0]))


def _fit(data: np.ndarray, spacing: tuple[float, float], level: float | None) -> Callable[[np.ndarray], np.ndarray]:
    """Crops and pads a slice to the field of view, around the middle of the foreground (or of the slice)."""
    sizes = [round(FIELD_OF_VIEW / s) if level is not None else n for s, n in zip(spacing, data.shape[1:], strict=True)]
    middles = [n // 2 for n in data.shape[1:]]
    if level is not None:
        for axis in (0, 1):
            inside = np.nonzero((data > level).any((0, 2 - axis)))[0]
            middles[axis] = int(inside.min() + inside.max()) // 2

    def crop(image: np.ndarray) -> np.ndarray:
        for axis, (size, middle) in enumerate(zip(sizes, middles, strict=True)):
            before = middle - size // 2
            pad = [(0, 0), (0, 0)]
            pad[axis] = (max(0, -before), max(0, before + size - image.shape[axis]))
            image = np.pad(image, pad).take(range(max(0, before), max(0, before) + size), axis)
        return image

    return crop


def fourier_resize(image: np.ndarray, size: int) -> np.ndarray:
    """Change the matrix size by cropping or padding k-space, keeping the intensity, as a scanner would have it."""
    kspace = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(image)))
    scale = size * size / image.size
    for axis in (0, 1):
        have = kspace.shape[axis]
        start = have // 2 - size // 2
        if start >= 0:
            kspace = kspace.take(range(start, start + size), axis)
        else:
            pad = [(0, 0), (0, 0)]
            pad[axis] = (-start, size - have + start)
            kspace = np.pad(kspace, pad)
    return np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(kspace))) * scale


class Slices:
    """Images (N, H, W), read one at a time from a memory-mapped .npy; complex64, or float32 for real-valued scans."""

    def __init__(self, images: np.ndarray, name: str) -> None:
        if images.ndim != 3 or 0 in images.shape[1:]:
            raise ValueError(f"{name} has shape {images.shape}, expected (slices, height, width)")
        if images.dtype.kind not in "fciu":
            raise ValueError(f"{name} has dtype {images.dtype}, expected real or complex numbers")
        if len(images) == 0:
            raise ValueError(f"{name} holds no slices: nothing to train on")
        self.images, self.name = images, name

    @classmethod
    def open(cls, path: str | Path) -> Slices:
        if not Path(path).is_file():
            raise ValueError(f"no file {path} with slices")
        try:
            images = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError) as error:
            raise ValueError(f"{path} cannot be read as slices: {error}") from error
        if not isinstance(images, np.ndarray):
            images.close()
            raise ValueError(f"{path} is an archive, expected one array in a .npy file")
        return cls(images, str(path))

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def sha256(self) -> str:
        """Of all values, so that a run can tell whether its data changed."""
        digest = hashlib.sha256(repr((self.images.shape, self.images.dtype.str)).encode())
        for image in self.images:
            digest.update(np.ascontiguousarray(image).data)
        return digest.hexdigest()

    @property
    def shape(self) -> tuple[int, int]:
        return self.images.shape[1], self.images.shape[2]

    @property
    def is_complex(self) -> bool:
        return self.images.dtype.kind == "c"

    def __getitem__(self, index: int) -> Tensor:
        image = np.array(self.images[index], dtype=np.complex64 if self.is_complex else np.float32)
        if not np.isfinite(image).all():
            raise ValueError(f"{self.name}, slice {index} holds NaN or infinite values")
        if not image.any():
            raise ValueError(f"{self.name}, slice {index} is zero everywhere")
        return torch.from_numpy(image)


# --- as a configuration says ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """What a model is trained on."""

    train: str = "drawn"
    """Slices to train on: a `.npy` file of images (N, H, W), complex or real; a named data set as
    `"brain:train:192"` (name, split, matrix size); or `"drawn"` for drawn heads."""
    validation: str = "drawn"
    """Slices to validate on, as `train`. Empty: no validation."""
    drawn_slices: int = 512
    """How many heads are drawn for training, if `train` is `drawn`."""
    drawn_size: int = 64
    """Their matrix size."""
    description: str = ""
    """What the images are. It is written into the model's card."""
    licence: str = ""
    """Under what terms the model may be used. It is written into the card."""


def open_slices(choice: Data, source: str, seed: int, count: int, real: bool) -> Slices:
    """What `data.train` or `data.validation` names. `count` and `real` are for slices that are drawn."""
    if source == "drawn":
        size = choice.drawn_size
        return Slices(drawn(count, size, seed, real), f"{count} drawn slices of {size} x {size}")
    name, _, rest = source.partition(":")
    if rest and name in catalogue.DATASETS:
        split, _, width = rest.partition(":")
        if not width.isdigit():
            raise ValueError(f"data {source!r} is not of the form NAME:SPLIT:SIZE, as brain:train:192")
        return Slices.open(prepare(name, split, int(width)))
    return Slices.open(source)
