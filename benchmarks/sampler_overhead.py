"""What a sampler costs beside the network, on a 320 x 320 complex problem with a batch of 8.

Time: one step of `sample` with a denoiser that costs nothing, against the two FFTs that every denoiser contains (A+ on
the way in, A on the way out). A ratio, measured in one run, as the median of paired repetitions.
Memory: the most tensors of the state's size that are alive at once, beyond the state itself and the measurement.

    python benchmarks/sampler_overhead.py
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from mcddpm.diffusion import schedules
from mcddpm.diffusion.samplers import SAMPLERS, sample
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.system import memory

BATCH, SIZE, STEPS, REPEATS = 8, 320, 8, 9
MOST_TIME, MOST_TENSORS = 3.0, 3


def problem() -> tuple[Tensor, Tensor]:
    mask = masks.random_columns(SIZE, acceleration=4, center_fraction=0.08, seed=0)
    y = torch.randn(1, SIZE, SIZE, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    return y.masked_fill(~mask, 0), mask


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def time_ratio(sampler: str, repeats: int = REPEATS) -> float:
    """Time of a step / time of two FFTs."""
    y_m, mask = problem()
    schedule = schedules.cosine(1000, beta_scale=0.5)
    clean = torch.zeros(BATCH, SIZE, SIZE, dtype=torch.complex64)
    A, image = Fourier(), torch.randn(BATCH, SIZE, SIZE, dtype=torch.complex64)

    def run(steps: int) -> None:
        sample(lambda y, t: clean, y_m, mask, schedule, grid=schedule.grid(steps), seeds=range(BATCH), sampler=sampler)

    def many_ffts() -> None:
        for _ in range(STEPS):
            A.pinv(A(image))

    run(2)
    many_ffts()
    ratios = []
    for _ in range(repeats):  # the difference of two lengths leaves out what is done once a run
        step = (seconds(lambda: run(2 + STEPS)) - seconds(lambda: run(2))) / STEPS
        ratios.append(step / (seconds(many_ffts) / STEPS))
    return statistics.median(ratios)


def live_tensors(sampler: str) -> int:
    """Counted through a run of `sample`, noise and mask included. A denoiser's result counts, its inside does not."""
    y_m, mask = problem()
    schedule = schedules.cosine(1000, beta_scale=0.5)
    grid = schedule.grid(5)
    most = memory.peak_bytes(
        lambda: sample(
            lambda y, t: torch.zeros_like(y), y_m, mask, schedule, grid=grid, seeds=range(BATCH), sampler=sampler
        )
    )
    return most // (BATCH * SIZE * SIZE * y_m.element_size()) - 1


def main() -> int:
    print(f"{BATCH} x {SIZE} x {SIZE} complex64, {torch.get_num_threads()} threads\n")
    print("| sampler      | a step / two FFTs | tensors beyond the state |")
    print("|--------------|------------------:|-------------------------:|")
    over = []
    for name in SAMPLERS:
        if name == "mean":  # one call and no step
            continue
        ratio, tensors = time_ratio(name), live_tensors(name)
        print(f"| {name:12} | {ratio:17.2f} | {tensors:24d} |")
        if ratio > MOST_TIME or tensors > MOST_TENSORS:
            over.append(name)
    print(f"\nlimits: {MOST_TIME:g} and {MOST_TENSORS}" + (f"; over them: {', '.join(over)}" if over else ""))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
