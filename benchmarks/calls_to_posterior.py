"""The fewest denoiser calls with which each sampler comes within 2 % of the posterior, exactly computed.

The prior is that of examples/exact_gaussian.py on a smaller grid, with 4x random columns. Mean and pixel std of what a
sampler draws follow in closed form (GaussianPosterior.moments_of), so no Monte-Carlo error blurs the table:

    mean error = |mean - true mean| / |true std|        std error = |std - true std| / |true std|

"uniform" is the paper's grid, whole steps spread over t = 1 ... 1000. The other two run in sigma, from thirty times the
largest std that the posterior has along any axis to a third of the std below which lies a thousandth of its variance
(--wide: from a hundred times the largest to a fiftieth of that).

    python benchmarks/calls_to_posterior.py [--wide]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from examples.exact_gaussian import one_over_f_prior
from mcddpm.diffusion.gaussian import GaussianPosterior
from mcddpm.diffusion.samplers import SAMPLERS
from mcddpm.diffusion.schedules import Spacing, cosine
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier

SIZE = 24
MOST = 500
TOLERANCE = 0.02


def example() -> GaussianPosterior:
    A, prior = Fourier(), one_over_f_prior(SIZE)
    x = prior.draw(torch.Generator().manual_seed(0))
    mask = masks.random_columns(SIZE, acceleration=4, center_fraction=0.08, seed=0)
    return prior.posterior(A, A(x).masked_fill(~mask, 0), mask)


class Bench:
    def __init__(self, wide: bool = False) -> None:
        self.posterior = example()
        self.schedule = cosine(1000, beta_scale=0.5)
        self.mean, self.std = self.posterior.image_moments(self.posterior.y_mean, self.posterior.variances)
        variances = self.posterior.variances.sort().values
        small = variances[variances.cumsum(0) > 0.001 * variances.sum()][0]
        below, above = (150, 100) if wide else (3, 30)
        self.range = {"sigma_min": float(small.sqrt()) / below, "sigma_max": float(variances[-1].sqrt()) * above}

    def grid(self, n: int, spacing: str) -> Tensor:
        return self.schedule.grid(n, spacing, **({} if spacing == "uniform" else self.range))

    def error(self, sampler: partial[Tensor], n: int, spacing: str) -> float:
        """The larger of both errors with n steps."""
        moments = self.posterior.moments_of(sampler, self.grid(n, spacing), self.schedule)
        mean, std = self.posterior.image_moments(*moments)
        return float(max((mean - self.mean).norm(), (std - self.std).norm()) / self.std.norm())

    def fewest(self, sampler: partial[Tensor], spacing: str) -> int | None:
        """The n from which on the error stays within the tolerance: a lucky n, where errors cancel, does not count."""
        ladder = sorted({round(1.15**k) for k in range(45)} & set(range(1, MOST)) | {MOST})
        failing = [n for n in ladder if self.error(sampler, n, spacing) > TOLERANCE]
        if not failing or failing[-1] == MOST:
            return None if failing else ladder[0]
        low, high = failing[-1], ladder[ladder.index(failing[-1]) + 1]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.error(sampler, middle, spacing) > TOLERANCE else (low, middle)
        return high


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ancestral (beta_t)": ("ancestral", {"step_noise": "beta"}),
    "ancestral (tilde_beta_t)": ("ancestral", {"step_noise": "tilde_beta"}),
    "ddim": ("ddim", {}),
    "heun": ("heun", {}),
    "dpmpp_2m": ("dpmpp_2m", {}),
    "dpmpp_2m_sde": ("dpmpp_2m_sde", {}),
}


def table(bench: Bench) -> dict[tuple[str, str], int | None]:
    calls: dict[tuple[str, str], int | None] = {}
    for label, (name, settings) in VARIANTS.items():
        for spacing in get_args(Spacing):
            steps = bench.fewest(partial(SAMPLERS[name], **settings), spacing)
            calls[label, spacing] = None if steps is None else SAMPLERS[name].calls(steps)
    return calls


def main() -> int:
    bench = Bench(wide="--wide" in sys.argv[1:])
    calls = table(bench)
    print(
        f"denoiser calls until mean and std are within {TOLERANCE:.0%} of the posterior (n/a: more than {MOST} steps)\n"
    )
    print(f"| {'sampler':24} | {' | '.join(f'{s:>9}' for s in get_args(Spacing))} |")
    print(f"|{'-' * 26}|{'|'.join('-' * 10 + ':' for _ in get_args(Spacing))}|")
    for label in VARIANTS:
        row = (str(calls[label, spacing] or "n/a") for spacing in get_args(Spacing))
        print(f"| {label:24} | {' | '.join(f'{n:>9}' for n in row)} |")
    best = {label: min((n for s in get_args(Spacing) if (n := calls[label, s])), default=None) for label in VARIANTS}
    ancestral = min(n for label, n in best.items() if label.startswith("ancestral") and n)
    fast = best["dpmpp_2m"]
    assert fast is not None
    print(f"\ndpmpp_2m needs {fast} calls, ancestral at its best {ancestral}: a factor of {ancestral / fast:.1f}")
    return 0 if 10 * fast <= ancestral else 1


if __name__ == "__main__":
    sys.exit(main())
