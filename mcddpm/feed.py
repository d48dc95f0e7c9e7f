"""Slices -> under-sampled, scaled training examples, each decided by its seed alone.

The stream of examples is a function of (seed, position): epoch = position // slices, a slice of that epoch's shuffle, a
mask of the mix, all from their own generators. So any process can make any part of any batch, and nothing has to be
remembered to go on from the middle.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mcddpm import masks, registry, simulation, stacks
from mcddpm.config import Config, Simulation
from mcddpm.operators import Fourier, Operator, Radon, Sense


@dataclass(frozen=True)
class Batch:
    """y_m, y_c: (B, data), zero where the other lives, times `scale` (B,); mask: bool, (B, ...); slices used."""

    y_m: Tensor
    y_c: Tensor
    mask: Tensor
    scale: Tensor
    slices: list[int]

    def to(self, device: torch.device) -> Batch:
        y_m, y_c, mask = (v.to(device, non_blocking=True) for v in (self.y_m, self.y_c, self.mask))
        return Batch(y_m, y_c, mask, self.scale, self.slices)


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


class Stream:
    """Batches of under-sampled slices for an operator and a mix of masks."""

    def __init__(
        self,
        slices: Slices,
        A: Operator,
        families: Sequence[str],
        accelerations: Sequence[float],
        seed: int,
        simulate: Simulation | None = None,
        augment: bool = False,
        strip: int = 0,
        conditional: bool = True,
    ) -> None:
        self.slices, self.A, self.seed, self.simulate, self.augment = slices, A, seed, simulate, augment
        self.strip, self.conditional = strip, conditional
        self.mix = [(family, acceleration) for family in families for acceleration in accelerations]
        if not self.mix:
            raise ValueError("the mix of masks is empty: expected at least one family and one acceleration")
        if strip and (not isinstance(A, Fourier) or set(families) - set(masks.ALONG_LAST_AXIS)):
            raise ValueError(
                "training.strip needs operator fourier and masks of whole columns: only then are rows apart"
            )
        if not 0 <= strip <= slices.shape[0]:
            raise ValueError(f"training.strip is {strip}, expected 0 to the height of a slice, {slices.shape[0]}")
        self._order = lru_cache(maxsize=2)(self._shuffle)

    def _shuffle(self, epoch: int) -> np.ndarray:
        return np.random.RandomState(seed_of(self.seed, 0, epoch)).permutation(len(self.slices))

    def batch(self, positions: Sequence[int]) -> Batch:
        """The examples at these positions of the stream."""
        places = [divmod(position, len(self.slices)) for position in positions]
        chosen = [int(self._order(epoch)[place]) for epoch, place in places]
        seeds = [seed_of(self.seed, 1, epoch, index) for (epoch, _), index in zip(places, chosen, strict=True)]
        return self.measure(chosen, seeds)

    def measure(self, chosen: list[int], seeds: Sequence[int]) -> Batch:
        """These slices, each under-sampled by a mask of the mix as its seed decides."""
        images = [self._image(index, seed) for index, seed in zip(chosen, seeds, strict=True)]
        y = self.A(torch.stack([image for image, _ in images]))
        if images[0][1]:  # noise of the receivers: white in the data, and independent from coil to coil
            noise = [
                simulation.complex_noise(y.shape[1:], std, seed_of(s, 4))
                for (_, std), s in zip(images, seeds, strict=True)
            ]
            y = y + torch.stack(noise)
        mask = torch.stack([self._mask(seed, tuple(y.shape[-2:])) for seed in seeds])
        mask = mask.reshape(len(seeds), *[1] * (y.ndim - 3), *y.shape[-2:])
        masks.check(mask, y.shape, batched=True)
        y_m = y.masked_fill(~mask, 0)
        scale = 1 / self.A.pinv(y_m).abs().flatten(1).amax(1)  # the model's normalisation
        if self.strip:
            y, mask = self._cut(y, seeds), mask[:, : self.strip]
            y_m = y.masked_fill(~mask, 0)
        if not self.conditional:  # the mask gave the scale, as it will in use; the model is shown nothing of it
            mask, y_m = torch.zeros_like(mask), torch.zeros_like(y_m)
        by = scale.reshape(-1, *[1] * (y.ndim - 1))
        return Batch(y_m * by, y.masked_fill(mask, 0) * by, mask, scale, chosen)

    def _cut(self, y: Tensor, seeds: Sequence[int]) -> Tensor:
        """So many rows of each slice, from a place that its seed decides, as if they were all there is."""
        x, last = self.A.pinv(y), self.slices.shape[0] - self.strip
        tops = [np.random.RandomState(seed_of(seed, 5)).randint(last + 1) for seed in seeds]
        return self.A(torch.stack([image[top : top + self.strip] for image, top in zip(x, tops, strict=True)]))

    def _image(self, index: int, seed: int) -> tuple[Tensor, float]:
        """A slice, made complex if it is only a magnitude, augmented in training; and the std of the noise to add."""
        image, how = self.slices[index], self.simulate
        if how is None or self.slices.is_complex:
            return image, 0.0
        if self.augment and how.augment:
            change = {"shift": how.shift, "turn": how.turn, "zoom": how.zoom, "intensity": how.intensity}
            image = simulation.augment(image, seed_of(seed, 1), **change)
        if isinstance(self.A, Radon):
            return image, 0.0
        low, high = min(how.snr), max(how.snr)
        place = np.random.RandomState(seed_of(seed, 2)).uniform() if self.augment else 0.5
        std = simulation.noise_std(image, low ** (1 - place) * high**place)
        return simulation.scan(image, seed_of(seed, 3), phase=how.phase, snr=math.inf), std

    def _mask(self, seed: int, shape: tuple[int, ...]) -> Tensor:
        family, acceleration = self.mix[np.random.RandomState(seed).randint(len(self.mix))]
        return masks.get(family, shape, acceleration=acceleration, seed=seed).expand(shape)


def seed_of(*numbers: int) -> int:
    """One 32-bit seed for a place in the run, unrelated to those of other places."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def drawn(count: int, size: int, seed: int, real: bool = False) -> Slices:
    """Heads made of ellipses with texture, and (complex) a smooth phase: to try things out, not to publish."""
    rng = np.random.RandomState(seed)
    axis = (np.arange(size) - size / 2) / (size / 2)
    v, u = np.meshgrid(axis, axis, indexing="ij")
    images = np.zeros((count, size, size), dtype=np.float32 if real else np.complex64)
    for image in images:
        magnitude = np.zeros((size, size))
        height, width = rng.uniform(0.65, 0.9), rng.uniform(0.5, 0.75)
        for k in range(9):
            if k < 2:  # the skull and what is in it
                a, b, x, y, turn, value = height - 0.08 * k, width - 0.08 * k, 0.0, 0.0, 0.0, (1.0, -0.6)[k]
            else:
                a, b, turn = *rng.uniform(0.05, 0.3, 2), rng.uniform(0, np.pi)
                x, y, value = rng.uniform(-0.3, 0.3), rng.uniform(-0.4, 0.4), rng.uniform(-0.25, 0.35)
            p, q = (u - x) * np.cos(turn) + (v - y) * np.sin(turn), (v - y) * np.cos(turn) - (u - x) * np.sin(turn)
            magnitude += value / (1 + np.exp(np.clip(((p / b) ** 2 + (q / a) ** 2 - 1) * size / 4, -30, 30)))
        magnitude = np.clip(magnitude, 0, None)
        if real:
            image[:] = magnitude
        else:
            slope = rng.uniform(-1.5, 1.5, 6)
            phase = slope @ np.stack([np.ones_like(u), u, v, u * v, u * u, v * v]).reshape(6, -1)
            image[:] = magnitude * np.exp(1j * phase.reshape(size, size))
    return Slices(images, f"{count} drawn slices of {size} x {size}")


# --- as a configuration says ----------------------------------------------------------------------------------------


def open_slices(settings: Config, source: str, salt: int) -> Slices:
    data = settings.data
    if source == "drawn":
        seed, real = seed_of(settings.training.seed, 5, salt), settings.operator.kind == "radon"
        return drawn(data.drawn_slices if salt == 1 else 16, data.drawn_size, seed, real)
    name, _, rest = source.partition(":")
    if rest and name in registry.DATASETS:
        split, _, size = rest.partition(":")
        if not size.isdigit():
            raise ValueError(f"data {source!r} is not of the form NAME:SPLIT:SIZE, as brain:train:192")
        return Slices.open(stacks.prepare(name, split, int(size)))
    return Slices.open(source)


def _maps(source: str, shape: tuple[int, int], seed: int) -> Tensor:
    """Coil maps (C, H, W) from a .npy, or "simulated:C"."""
    name, _, coils = source.partition(":")
    if name == "simulated" and coils.isdigit():
        return simulation.coil_maps(int(coils), shape, seed_of(seed, 7))
    if not Path(source).is_file():
        raise ValueError(
            f'operator sense needs operator.maps: a .npy of coil maps (C, H, W), or "simulated:8"; got {source!r}'
        )
    return torch.from_numpy(np.load(source, allow_pickle=False)).to(torch.complex64)


def stream_of(settings: Config, slices: Slices, augment: bool = False, strip: int = 0) -> Stream:
    choice, mix = settings.operator, settings.mask
    A: Operator
    if choice.kind == "fourier":
        A = Fourier()
    elif choice.kind == "radon":
        if slices.is_complex:
            raise ValueError(f"{slices.name} is complex, but operator radon measures real images")
        A = Radon(slices.shape, choice.views)
    elif choice.kind == "sense":
        A = Sense(_maps(choice.maps, slices.shape, settings.training.seed))
        if A.image_shape != slices.shape:
            raise ValueError(f"the maps in {choice.maps} are for {A.image_shape}, the slices are {slices.shape}")
    else:
        raise ValueError(f"unknown operator {choice.kind!r}; known: fourier, sense, radon")
    seed, how = settings.training.seed, settings.simulation
    conditional = settings.model.conditional
    return Stream(slices, A, mix.families, mix.accelerations, seed, how, augment, strip, conditional)
