"""Slices -> under-sampled, scaled training examples, each decided by its seed alone.

The stream of examples is a function of (seed, position): epoch = position // slices, a slice of that epoch's shuffle, a
mask of the mix, all from their own generators. So any process can make any part of any batch, and nothing has to be
remembered to go on from the middle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mcddpm.data.slices import Slices
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.noise import known_exactly
from mcddpm.physics.operator import Operator
from mcddpm.physics.sense import Sense
from mcddpm.simulation import scans
from mcddpm.simulation.scans import Simulation
from mcddpm.system.seeds import seed_of


@dataclass(frozen=True)
class Batch:
    """y_m: what was measured, (B, data), zero off the mask; y_c: what is to be found, zero where y_m is known exactly;
    both times `scale` (B,). mask: bool, (B, ...); noise: the std of y_m in each part, (B, 1, ...); slices used; A: the
    operator that they were all measured by."""

    y_m: Tensor
    y_c: Tensor
    mask: Tensor
    scale: Tensor
    slices: list[int]
    noise: Tensor
    A: Operator

    @property
    def known(self) -> Tensor:
        return known_exactly(self.mask, self.noise)

    @property
    def y_0(self) -> Tensor:
        """The full scan that is the truth."""
        return torch.where(self.known, self.y_m, self.y_c)

    def __getitem__(self, k: int) -> Batch:
        """One example, as a batch."""
        k = range(len(self.slices))[k]  # refuses what is not there, at which `for` stops
        at = slice(k, k + 1)
        y_m, y_c, mask, scale, noise = (v[at] for v in (self.y_m, self.y_c, self.mask, self.scale, self.noise))
        return Batch(y_m, y_c, mask, scale, self.slices[at], noise, part_of(self.A, at))

    def to(self, device: torch.device) -> Batch:
        y_m, y_c, mask, noise = (v.to(device, non_blocking=True) for v in (self.y_m, self.y_c, self.mask, self.noise))
        return Batch(y_m, y_c, mask, self.scale, self.slices, noise, self.A.to(device))


def part_of(A: Operator, at: slice) -> Operator:
    """The operator of some examples: maps may be each example's own."""
    return Sense(A.maps[at]) if isinstance(A, Sense) and A.maps.ndim == 4 else A


class Order:
    """Which slice stands at each position of a stream, and its seed there: every epoch is another shuffle."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self._epoch = lru_cache(maxsize=2)(self._shuffle)

    def at(self, positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """The slices, and their seeds."""
        places = [divmod(position, self.count) for position in positions]
        chosen = [int(self._epoch(epoch)[place]) for epoch, place in places]
        return chosen, [seed_of(self.seed, 1, epoch, index) for (epoch, _), index in zip(places, chosen, strict=True)]

    def _shuffle(self, epoch: int) -> np.ndarray:
        return np.random.RandomState(seed_of(self.seed, 0, epoch)).permutation(self.count)


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
        noisy: bool = False,
    ) -> None:
        """noisy: the truth is the image without the noise of the receivers, but for a part of the examples that are
        known exactly (`simulate.exact`); otherwise it is the scan as it was measured, as in the paper."""
        self.slices, self.A, self.seed, self.simulate, self.augment = slices, A, seed, simulate, augment
        self.strip, self.conditional, self.noisy = strip, conditional, noisy
        self.mix = [(family, acceleration) for family in families for acceleration in accelerations]
        if not self.mix:
            raise ValueError("the mix of masks is empty: expected at least one family and one acceleration")
        if strip and (not isinstance(A, Fourier) or set(families) - set(masks.ALONG_LAST_AXIS)):
            raise ValueError(
                "training.strip needs operator fourier and masks of whole columns: only then are rows apart"
            )
        if not 0 <= strip <= slices.shape[0]:
            raise ValueError(f"training.strip is {strip}, expected 0 to the height of a slice, {slices.shape[0]}")
        self.order = Order(len(slices), seed)

    def batch(self, positions: Sequence[int]) -> Batch:
        """The examples at these positions of the stream."""
        return self.measure(*self.order.at(positions))

    def typical(self, count: int) -> list[Batch]:
        """Some examples, of which the range of energies and the power of images are measured."""
        return [self.batch([k]) for k in range(min(len(self.slices), count))]

    def measure(self, chosen: Sequence[int], seeds: Sequence[int]) -> Batch:
        """These slices, each under-sampled by a mask of the mix as its seed decides."""
        images = [self._image(index, seed) for index, seed in zip(chosen, seeds, strict=True)]
        y = self.A(torch.stack([image for image, _ in images]))
        noise, truth = torch.zeros(len(seeds), *[1] * (y.ndim - 1)), y
        if images[0][1]:  # noise of the receivers: white in the data, and independent from coil to coil
            eps = [
                scans.complex_noise(y.shape[1:], std, seed_of(s, 4)) for (_, std), s in zip(images, seeds, strict=True)
            ]
            y = y + torch.stack(eps)
            stds = [0.0 if self._is_exact(s) else std for (_, std), s in zip(images, seeds, strict=True)]
            noise = torch.tensor(stds).reshape(noise.shape)
            truth = torch.where(noise > 0, truth, y)
        mask = torch.stack([self._mask(seed, tuple(y.shape[-2:])) for seed in seeds])
        mask = mask.reshape(len(seeds), *[1] * (y.ndim - 3), *y.shape[-2:])
        masks.check(mask, y.shape, batched=True)
        y_m = y.masked_fill(~mask, 0)
        scale = 1 / self.A.pinv(y_m).abs().flatten(1).amax(1)  # the model's normalisation
        if self.strip:
            y, truth, mask = self._cut(y, seeds), self._cut(truth, seeds), mask[:, : self.strip]
            y_m = y.masked_fill(~mask, 0)
        if not self.conditional:  # the mask gave the scale, as it will in use; the model is shown nothing of it
            mask, y_m = torch.zeros_like(mask), torch.zeros_like(y_m)
        by = scale.reshape(-1, *[1] * (y.ndim - 1))
        y_c = truth.masked_fill(known_exactly(mask, noise), 0)
        return Batch(y_m * by, y_c * by, mask, scale, list(chosen), noise * by, self.A)

    def noise_of(self, index: int, seed: int) -> float:
        """The std of the noise that `measure` adds to this slice, in each part, before it is scaled."""
        return self._image(index, seed)[1]

    def _is_exact(self, seed: int) -> bool:
        """Whether the truth of this example is what was measured, noise and all."""
        if not self.noisy or self.simulate is None:
            return True
        return self.augment and np.random.RandomState(seed_of(seed, 6)).uniform() < self.simulate.exact

    def _cut(self, y: Tensor, seeds: Sequence[int]) -> Tensor:
        """So many rows of each slice, from a place that its seed decides, as if they were all there is."""
        x, last = self.A.pinv(y), self.slices.shape[0] - self.strip
        tops = [np.random.RandomState(seed_of(seed, 5)).randint(last + 1) for seed in seeds]
        return self.A(torch.stack([image[top : top + self.strip] for image, top in zip(x, tops, strict=True)]))

    def _image(self, index: int, seed: int) -> tuple[Tensor, float]:
        """A slice, made complex if it is only a magnitude, augmented in training; and the std of the noise to add."""
        image, how = self.slices[index], self.simulate
        if how is None or (self.slices.is_complex and not self.noisy):
            return image, 0.0
        if self.slices.is_complex:
            return image, self._std(image.abs(), seed, how)
        if self.augment and how.augment:
            change = {"shift": how.shift, "turn": how.turn, "zoom": how.zoom, "intensity": how.intensity}
            image = scans.augment(image, seed_of(seed, 1), **change)
        if self.A.kind == "radon":
            return image, 0.0
        std = self._std(image, seed, how)
        return scans.scan(image, seed_of(seed, 3), phase=how.phase, snr=math.inf), std

    def _std(self, magnitude: Tensor, seed: int, how: Simulation) -> float:
        """Of the noise, at an SNR from the range."""
        low, high = min(how.snr), max(how.snr)
        place = np.random.RandomState(seed_of(seed, 2)).uniform() if self.augment else 0.5
        return scans.noise_std(magnitude, low ** (1 - place) * high**place)

    def _mask(self, seed: int, shape: tuple[int, ...]) -> Tensor:
        family, acceleration = self.mix[np.random.RandomState(seed).randint(len(self.mix))]
        return masks.get(family, shape, acceleration=acceleration, seed=seed).expand(shape)
