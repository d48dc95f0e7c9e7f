"""A page of simulated scans to be judged by eye: what `mcddpm.simulation.wide` makes of the validation heads.

    mcddpm data get brain
    python benchmarks/simulation_pictures.py OUT.png [--first SEED]

Of each example: magnitude, phase (one turn from black to black), the image of one coil with its noise, and the mask.
Above it: the matrix, coils, acceleration and SNR.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mcddpm.data.slices import Slices, prepare
from mcddpm.physics import masks
from mcddpm.simulation import appearance, loops, phases, scans, wide
from mcddpm.simulation.fields import high_value
from mcddpm.simulation.wide import Wide
from mcddpm.system.seeds import seed_of

ROWS, ACROSS, PANELS = 8, 3, 4
SOURCE = 192


@dataclass(frozen=True)
class Example:
    """magnitude, phase: of the truth, (H, W); coils: what each sees, noise and all, (C, H, W); mask: (W,) or (H, W)."""

    magnitude: Tensor
    phase: Tensor
    coils: Tensor
    mask: Tensor
    snr: float

    @property
    def title(self) -> str:
        height, width = self.magnitude.shape
        coils = "1 coil" if len(self.coils) == 1 else f"{len(self.coils)} coils"
        return f"{height} x {width}, {coils}, {masks.acceleration(self.mask):.1f}x, SNR {self.snr:.0f}"


def example(magnitude: Tensor, seed: int, ranges: Wide) -> Example:
    """All of the simulation, in its order."""
    seeds = [seed_of(seed, k) for k in range(12)]
    head = appearance.contrast(magnitude, seeds[0], ranges)
    shape = wide.matrix_size(seeds[1], ranges)
    head = appearance.detail(appearance.place(head, shape, seeds[2], ranges), seeds[3], ranges)
    head = head * appearance.bias(shape, seeds[4], ranges)
    phase = phases.phase(shape, head, seeds[5], ranges)
    count, snr = wide.coil_count(seeds[6], ranges), wide.snr(seeds[7], ranges)
    maps, covariance = loops.loops(count, shape, seeds[8]), loops.correlation(count, seeds[9], ranges)
    noise = scans.complex_noise((count, *shape), scans.noise_std(head, snr), seeds[10])
    noise = torch.einsum("cd,dhw->chw", torch.linalg.cholesky(covariance), noise)
    return Example(head, phase, maps * torch.polar(head, phase) + noise, wide.sampling(shape, seeds[11], ranges), snr)


def pictures(path: Path, examples: list[Example]) -> None:
    figure = Figure(figsize=(1.3 * ACROSS * PANELS, 1.45 * ROWS), facecolor="white")
    figure.subplots_adjust(left=0.005, right=0.995, bottom=0.005, top=0.985, wspace=0.03, hspace=0.13)
    axes = figure.subplots(ROWS, ACROSS * PANELS)
    for axis in axes.flat:
        axis.axis("off")
    for k, shown in enumerate(examples):
        row, first = k // ACROSS, k % ACROSS * PANELS
        coil = shown.coils[0].abs()
        panels: list[tuple[Tensor, str, float, float]] = [
            (shown.magnitude, "gray", 0, 1.1 * high_value(shown.magnitude, 0.995)),
            (shown.phase.remainder(2 * np.pi), "twilight", 0, 2 * np.pi),
            (coil, "gray", 0, 1.1 * high_value(coil, 0.995)),
            (shown.mask.expand(shown.magnitude.shape), "gray", 0, 1),
        ]
        for axis, (image, colours, low, high) in zip(axes[row, first : first + PANELS], panels, strict=True):
            axis.imshow(image, cmap=colours, vmin=low, vmax=high)
        axes[row, first].set_title(shown.title, fontsize=7, loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first", type=int, default=0, help="seed of the first example")
    asked = parser.parse_args()
    heads, ranges = Slices.open(prepare("brain", "validation", SOURCE)), Wide()
    seeds = range(asked.first, asked.first + ROWS * ACROSS)
    start = time.perf_counter()
    examples = [example(heads[seed_of(seed, 12) % len(heads)], seed, ranges) for seed in seeds]
    print(f"{1000 * (time.perf_counter() - start) / len(examples):.0f} ms an example, of all sizes and coils")
    pictures(asked.out, examples)
    print(asked.out)


if __name__ == "__main__":
    main()
