"""What the best linear estimate costs in a call beside the network, and what stopping it early costs in PSNR.

Time: x_w, warm-started, and data consistency, each against the network's forward, at 224 x 224 with 8 coils. Ratios of
medians, measured in turns in one run.
PSNR: on the 13-coil scan (`mcddpm data get kspace`), flip angles 4, 7 and 10 at 4x and 8x, one call and the mean of
four samples: as it is, and with 80 steps in the place of x_w's 5. Positive: stopping costs so much.

    python benchmarks/linear_estimate.py
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from unittest import mock

import torch

from mcddpm import metrics
from mcddpm.data import catalogue
from mcddpm.data.protocols import PROTOCOLS
from mcddpm.data.readers import open_volume
from mcddpm.models import denoiser
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import load_model
from mcddpm.physics import masks
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.linear import AFTER, FIRST, LinearEstimate
from mcddpm.physics.measurement import Measurement
from mcddpm.physics.sense import Sense
from mcddpm.reconstruction.sample import reconstruct

SIZE, COILS, REPEATS = 224, 8, 9
MOST_TIME, MOST_LOSS = 1.5, 0.1
ANGLES, ACCELERATIONS = (3, 6, 9), (4, 8)


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


@torch.no_grad()
def time_ratios(samples: int, repeats: int = REPEATS) -> tuple[float, float]:
    """(x_w, data consistency) / the network's forward, for so many samples at once."""
    model = load_model()
    assert isinstance(model, Denoiser) and model.spectrum is not None
    A, mask = Sense(coil_maps(COILS, (SIZE, SIZE), 1)), masks.random_columns(SIZE, acceleration=4, seed=1)
    z, f = (torch.randn(samples, *shape, SIZE, SIZE, dtype=torch.complex64) for shape in ((COILS,), ()))
    estimate = LinearEstimate(A, z[:1] * mask, mask, 0.02, model.spectrum.power(f[:1]))
    images = torch.randn(samples, 4, SIZE, SIZE).contiguous(memory_format=torch.channels_last)
    sigma, time_ = torch.full((samples, 1, 1, 1), 0.1), torch.full((samples,), -200.0)
    actions = (
        lambda: model.network(images, time_, lambda f: torch.cat([f, f], 1)),
        lambda: estimate(z, sigma),
        lambda: estimate.consistent(f, sigma[:, 0]),
    )
    for action in actions:
        action()
    forward, x_w, consistent = (
        statistics.median(times) for times in zip(*([seconds(a) for a in actions] for _ in range(repeats)), strict=True)
    )
    return x_w / forward, consistent / forward


def losses() -> list[tuple[int, int, float, float]]:
    """(acceleration, flip angle, dB lost by stopping: one call, mean of four)"""
    (scan,) = catalogue.scans("kspace")
    volume = open_volume(catalogue.volume_path("kspace", scan))
    model = load_model()
    assert isinstance(model, Denoiser)
    rows = []
    for acceleration in ACCELERATIONS:
        for angle in ANGLES:
            m = PROTOCOLS["fastmri"](volume, angle, acceleration, None, None)
            with mock.patch.object(denoiser, "LinearEstimate", Settled):
                settled = quality(model, m)
            as_it_is = quality(model, m)
            rows.append((acceleration, angle, settled[0] - as_it_is[0], settled[1] - as_it_is[1]))
    return rows


class Settled(LinearEstimate):
    """Whose x_w takes eighty steps in each call; data consistency stays as it is."""

    def __call__(self, z: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        self.after = FIRST
        found = super().__call__(z, sigma)
        self.after = AFTER
        return found


def quality(model: Denoiser, m: Measurement) -> tuple[float, float]:
    assert m.truth is not None
    truth = m.truth.abs() / m.scale
    one, four = reconstruct(model, m, sampler="mean"), reconstruct(model, m, samples=4)
    return float(metrics.psnr(one.mean, truth)), float(metrics.psnr(four.mean, truth))


def main() -> int:
    print(f"{SIZE} x {SIZE}, {COILS} coils, {AFTER} steps, {torch.get_num_threads()} threads\n")
    print("| samples at once | x_w / forward | data consistency / forward |")
    print("|----------------:|--------------:|---------------------------:|")
    ratios = {samples: time_ratios(samples) for samples in (1, 4, 20)}
    for samples, (x_w, consistent) in ratios.items():
        print(f"| {samples:15d} | {x_w:13.2f} | {consistent:26.2f} |")
    print("\n| acceleration | flip angle | dB lost, one call | dB lost, mean of 4 |")
    print("|-------------:|-----------:|------------------:|-------------------:|")
    worst = -1.0
    for acceleration, angle, one, four in losses():
        print(f"| {acceleration:11d}x | {angle + 1:10d} | {one:17.2f} | {four:18.2f} |", flush=True)
        worst = max(worst, one, four)
    slowest = max(x_w for x_w, _ in ratios.values())
    print(f"\nlimits: {MOST_TIME:g} (reached: {slowest:.2f}) and {MOST_LOSS:g} dB (reached: {worst:.2f})")
    return int(slowest > MOST_TIME or worst > MOST_LOSS)


if __name__ == "__main__":
    sys.exit(main())
