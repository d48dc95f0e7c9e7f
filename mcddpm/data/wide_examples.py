"""Magnitude slices -> training examples as wide as real scans: any contrast, geometry, phase, coils, mask and noise.

As for `examples.Stream`, an example is decided by the seed and its position. The examples of a batch share a matrix
size and a number of coils, which the position of the first decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mcddpm.data.examples import Batch, Order
from mcddpm.data.slices import Slices
from mcddpm.physics.fourier import Fourier, fft
from mcddpm.physics.noise import known_exactly
from mcddpm.physics.operator import Operator
from mcddpm.physics.receivers import directions, whitening
from mcddpm.physics.sense import Sense
from mcddpm.simulation import appearance, phases, scans
from mcddpm.simulation.fields import chance, log_uniform
from mcddpm.simulation.loops import correlation, loops
from mcddpm.simulation.wide import Wide, coil_count, matrix_size, sampling, snr
from mcddpm.system.seeds import seed_of

TYPICAL = (224, 224)
JITTER = 0.1  # of the noise that is told: it is an estimate in use
COARSE = 5  # places along an axis that decide an error of coil maps


class Frame(NamedTuple):
    """What the examples of a batch share. coils: as they are used, after compression; 1 is one coil without maps."""

    shape: tuple[int, int]
    coils: int


class Example(NamedTuple):
    """x: (H, W); y: the noisy scan, (H, W) or (C, H, W); maps: as they are estimated; std of the noise."""

    x: Tensor
    y: Tensor
    maps: Tensor | None
    mask: Tensor
    std: float


class WideStream:
    """Batches of under-sampled slices, each another scan. exact: the part of one-coil examples without noise."""

    def __init__(self, slices: Slices, wide: Wide, seed: int, exact: float) -> None:
        if slices.is_complex:
            raise ValueError(f"{slices.name} is complex: simulation.wide takes magnitudes, to which it gives a phase")
        self.slices, self.wide, self.seed, self.exact = slices, wide, seed, exact
        self.order = Order(len(slices), seed)

    def batch(self, positions: Sequence[int]) -> Batch:
        """The examples at these positions of the stream."""
        return self.measure(*self.order.at(positions))

    def typical(self, count: int) -> list[Batch]:
        """Examples of one size and one coil, by which the power of images is measured."""
        count = min(count, len(self.slices))
        every = [round(k * (len(self.slices) - 1) / max(count - 1, 1)) for k in range(count)]
        frame = Frame(TYPICAL, 1)
        return [self.measure([index], [seed_of(self.seed, 3, index)], frame) for index in every]

    def measure(self, chosen: Sequence[int], seeds: Sequence[int], frame: Frame | None = None) -> Batch:
        """These slices, each measured as its seed decides, in the frame that the first seed decides."""
        frame = frame or self._frame(seeds[0])
        made = [self._example(self.slices[index], seed, frame) for index, seed in zip(chosen, seeds, strict=True)]
        A: Operator = Fourier()
        if frame.coils > 1:
            A = Sense(torch.stack([example.maps for example in made]))  # type: ignore[misc]
        y, x = (torch.stack([getattr(example, key) for example in made]) for key in ("y", "x"))
        mask = torch.stack([example.mask.expand(frame.shape) for example in made])
        mask = mask.reshape(len(made), *[1] * (y.ndim - 3), *frame.shape)
        noise = torch.tensor([self._stated(e.std, s, frame) for e, s in zip(made, seeds, strict=True)])
        noise = noise.reshape(-1, *[1] * (y.ndim - 1))
        truth, y_m = torch.where(noise > 0, A(x), y), y.masked_fill(~mask, 0)
        scale = 1 / A.pinv(y_m).abs().flatten(1).amax(1)
        by = scale.reshape(noise.shape)
        y_c = truth.masked_fill(known_exactly(mask, noise), 0)
        return Batch(y_m * by, y_c * by, mask, scale, list(chosen), noise * by, A)

    def _frame(self, seed: int) -> Frame:
        rng = np.random.RandomState(seed_of(seed, 10))
        coils = coil_count(seed_of(seed, 11), self.wide)
        virtual = rng.randint(2, min(coils, self.wide.virtual) + 1) if coils > 1 else 1
        return Frame(matrix_size(seed_of(seed, 12), self.wide), 1 if chance(rng, self.wide.single) else int(virtual))

    def _stated(self, std: float, seed: int, frame: Frame) -> float:
        """The noise as it is known: about right, or none in a part of the scans by one coil."""
        rng = np.random.RandomState(seed_of(seed, 13))
        exact = frame.coils == 1 and chance(rng, self.exact)
        return 0.0 if exact else std * float(np.exp(JITTER * rng.normal()))

    def _example(self, magnitude: Tensor, seed: int, frame: Frame) -> Example:
        wide, shape = self.wide, frame.shape
        image = appearance.contrast(magnitude, seed_of(seed, 20), wide)
        image = appearance.place(image, shape, seed_of(seed, 21), wide)
        image = appearance.detail(image, seed_of(seed, 22), wide) * appearance.bias(shape, seed_of(seed, 23), wide)
        x = torch.polar(image, phases.phase(shape, image, seed_of(seed, 24), wide))
        if not image.max() > 0:
            return self._example(magnitude, seed_of(seed, 25), frame)
        std = scans.noise_std(image, snr(seed_of(seed, 26), wide))
        mask = sampling(shape, seed_of(seed, 27), wide)
        if frame.coils == 1:
            return Example(x, fft(x) + scans.complex_noise(shape, std, seed_of(seed, 28)), None, mask, std)
        maps = self._coils(x, seed_of(seed, 29), frame)
        y = fft(maps * x) + scans.complex_noise(tuple(maps.shape), std, seed_of(seed, 28))
        return Example(x, y, self._estimated(maps, image, seed_of(seed, 30)), mask, std)

    def _coils(self, x: Tensor, seed: int, frame: Frame) -> Tensor:
        """Virtual coils with white noise, of more receivers whose noise is correlated.  (C', H, W)"""
        count = max(frame.coils, coil_count(seed_of(seed, 0), self.wide))
        maps = loops(count, frame.shape, seed_of(seed, 1))
        whiten = whitening(correlation(count, seed_of(seed, 2), self.wide).to(torch.complex128))[0].to(maps.dtype)
        coarse = torch.einsum("vc,chw->vhw", whiten, (maps * x)[:, ::4, ::4])
        keep = directions(coarse, frame.coils, 2.0)  # all that were asked for, whatever they hold
        return torch.einsum("vc,chw->vhw", keep.mH @ whiten, maps)

    def _estimated(self, maps: Tensor, image: Tensor, seed: int) -> Tensor:
        """Maps as they are estimated: a little wrong, smoothly, and known near the object only in part of the scans."""
        rng = np.random.RandomState(seed)
        error = torch.from_numpy(rng.normal(size=(2 * len(maps), 1, COARSE, COARSE))).float()
        error = functional.interpolate(error, tuple(image.shape), mode="bicubic", align_corners=True)
        size = log_uniform(rng, self.wide.map_error) * float(maps.abs().square().mean().sqrt())
        maps = maps + size * torch.complex(error[: len(maps), 0], error[len(maps) :, 0])
        if chance(rng, self.wide.support):
            return maps * near(image)
        return maps


def near(image: Tensor) -> Tensor:
    """Where there is something, and some pixels around: bool, (H, W)."""
    reach = max(image.shape) // 24
    there = (image > 0.05 * image.max()).float()[None, None]
    return functional.max_pool2d(there, 2 * reach + 1, 1, reach)[0, 0] > 0
