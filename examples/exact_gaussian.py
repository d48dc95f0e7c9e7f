"""MC-DDPM with the exact answer beside it.

The prior is Gaussian with a 1/f^2 spectrum (the spectrum of natural images) inside a disc. Its posterior is known, and
so is the denoiser that a network would have to learn. An image drawn from it is under-sampled 4x in k-space, 20 samples
are drawn with the package's own samplers, and their mean and spread are put beside the true ones.

    python examples/exact_gaussian.py [--out demo] [--sampler dpmpp_2m] [--steps 20] [--samples 20] [--seed 0]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor

from mcddpm.diffusion import schedules
from mcddpm.diffusion.gaussian import GaussianPosterior, GaussianPrior
from mcddpm.diffusion.samplers import SAMPLERS, sample
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.plots import Panel, panels

SIZE = 64


def one_over_f_prior(size: int) -> GaussianPrior:
    """x = w * (blurred white noise): spectrum 1/f^2 in power, w a disc with a soft edge, and a constant mean in it.

    The disc makes neighbouring k-space columns depend on each other, as the edge of a head does; without it the
    unmeasured columns would be independent of the measured ones, and there would be nothing to infer.
    """
    k = torch.arange(size, dtype=torch.float64) - size // 2
    frequency = torch.hypot(k[:, None], k[None, :]).clamp(min=1)
    radius = torch.hypot(k[:, None] / 0.40, k[None, :] / 0.34) / size
    window = torch.sigmoid((1 - radius) * 40)
    inside = (window > 0.01).flatten().nonzero().squeeze(1)
    A = Fourier()
    pixels = torch.zeros(len(inside), size * size, dtype=torch.complex128)
    pixels[torch.arange(len(inside)), inside] = 1
    white = pixels.reshape(-1, size, size)
    factor = window * A.adjoint(A(white) / frequency)
    scale = 0.25 / factor.abs().square().sum(0).sqrt().max()
    return GaussianPrior(mean=window.to(torch.complex128), factor=scale * factor)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def psnr(x: Tensor, truth: Tensor) -> float:
    return 10 * math.log10(float(truth.max() ** 2 / (x - truth).square().mean()))


def true_moments_of_magnitude(posterior: GaussianPosterior) -> tuple[Tensor, Tensor]:
    """Mean and std of |x| under the exact posterior. A pixel is circular complex Gaussian, so |x| has Rice's law:

    E|x| = s sqrt(pi/2) ((1 + q) I0(q/2) + q I1(q/2)) exp(-q/2), q = |mean|^2 / 2 s^2, and E|x|^2 = |mean|^2 + 2 s^2.
    """
    power, s = posterior.x_mean.abs().square(), posterior.x_std.clamp(min=1e-12)
    q = power / (2 * s**2)
    i0, i1 = torch.special.i0e(q / 2), torch.special.i1e(q / 2)
    mean = s * math.sqrt(math.pi / 2) * ((1 + q) * i0 + q * i1)
    return mean, (power + 2 * s**2 - mean**2).clamp(min=0).sqrt()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--sampler", choices=[name for name in SAMPLERS if name != "mean"], default="dpmpp_2m")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.samples < 2 or args.steps < 1:
        parser.error("a std needs 2 samples or more, and a sampler 1 step or more")

    A = Fourier()
    prior = one_over_f_prior(SIZE)
    x = prior.draw(torch.Generator().manual_seed(args.seed))
    mask = masks.random_columns(SIZE, acceleration=4, center_fraction=0.08, seed=args.seed + 16)
    y_m = A(x).masked_fill(~mask, 0)
    print(f"{SIZE} x {SIZE} image, {int(mask.sum())} of {SIZE} k-space columns: {masks.acceleration(mask):.1f}x faster")
    print("computing the exact posterior ...")
    posterior = prior.posterior(A, y_m, mask)
    true_mean, true_std = true_moments_of_magnitude(posterior)

    schedule = schedules.cosine(1000, beta_scale=0.5)
    grid = schedule.grid(args.steps, "log_sigma", sigma_min=0.01, sigma_max=100.0)
    y = sample(
        posterior.denoiser(schedule),
        y_m[None],
        mask,
        schedule,
        grid=grid,
        seeds=range(args.samples),
        sampler=args.sampler,
    )
    draws = A.pinv(y).abs()
    mean, std = draws.mean(0), draws.std(0)
    truth, zero_filled = x.abs(), A.pinv(y_m).abs()
    untouched = all(torch.equal(one[:, mask], y_m[:, mask]) for one in y)

    calls = SAMPLERS[args.sampler].calls(args.steps)
    print(f"{args.samples} samples with {args.sampler}, {calls} denoiser calls each")
    print(f"measured k-space untouched: {untouched}")
    print("PSNR against the truth:")
    for name, image in (("zero-filled", zero_filled), ("one sample", draws[0]), ("mean of samples", mean)):
        print(f"    {name:20} {psnr(image, truth):.2f} dB")
    print(f"    {'true posterior mean':20} {psnr(true_mean, truth):.2f} dB")
    by_chance = float(true_std.norm() / math.sqrt(args.samples) / true_mean.norm())
    print(f"sample mean to true posterior mean: {relative(mean, true_mean):.4f} relative, {by_chance:.4f} by chance")
    by_chance = 1 / math.sqrt(2 * (args.samples - 1))
    print(f"sample std to true posterior std:   {relative(std, true_std):.4f} relative, {by_chance:.4f} by chance")
    print(f"std averaged over the image:        {std.mean() / true_std.mean():.4f} of the true one")

    top, spread = float(truth.max()), float(true_std.max())
    figure = args.out / "exact_gaussian.png"
    panels(
        figure,
        [
            [
                Panel("truth", truth.numpy(), 0, top),
                Panel(f"mean of {args.samples} samples", mean.numpy(), 0, top),
                Panel("true posterior mean", true_mean.numpy(), 0, top),
            ],
            [
                Panel("zero-filled", zero_filled.numpy(), 0, top),
                Panel(f"std of {args.samples} samples", std.numpy(), 0, spread, "magma"),
                Panel("true posterior std", true_std.numpy(), 0, spread, "magma"),
            ],
        ],
        title=f"{masks.acceleration(mask):.1f}x under-sampled, {args.sampler}, {calls} denoiser calls a sample",
    )
    print(f"look at {figure}")


if __name__ == "__main__":
    main()
