"""Image quality on magnitude images, in the paper's definition: the range is the maximum of the truth.

Each takes (..., H, W) and gives one number a slice, or, with volume=True, takes (S, H, W) and gives one number for the
whole volume, whose range is the maximum over all its slices: that is fastMRI's definition, and the paper's table. The
two differ by decibels: a number without the word slice or volume beside it is not a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def mse(x: Tensor, truth: Tensor, volume: bool = False) -> Tensor:
    """mean |x - truth|^2"""
    _check(x, truth, volume)
    return (x - truth).square().mean(_axes(volume))


def nmse(x: Tensor, truth: Tensor, volume: bool = False) -> Tensor:
    """|x - truth|^2 / |truth|^2"""
    _check(x, truth, volume)
    return (x - truth).square().sum(_axes(volume)) / truth.square().sum(_axes(volume))


def psnr(x: Tensor, truth: Tensor, volume: bool = False) -> Tensor:
    """10 log10(max(truth)^2 / mse), in dB"""
    error = mse(x, truth, volume)
    return 10 * torch.log10(truth.amax(_axes(volume)).square() / error)


def ssim(x: Tensor, truth: Tensor, volume: bool = False) -> Tensor:
    """scikit-image's structural similarity (7 x 7 windows in the slice); a volume's is the mean over its slices."""
    from skimage.metrics import structural_similarity

    _check(x, truth, volume)
    slices, truths = (v.reshape(-1, *v.shape[-2:]).double().cpu().numpy() for v in (x, truth))
    tops = np.full(len(truths), truths.max()) if volume else truths.max((1, 2))
    values = [structural_similarity(t, s, data_range=top) for s, t, top in zip(slices, truths, tops, strict=True)]
    result = torch.tensor(values, dtype=torch.float64)
    return result.mean() if volume else result.reshape(x.shape[:-2])


def inside(x: Tensor, truth: Tensor, where: Tensor) -> dict[str, float]:
    """PSNR and SSIM of a slice (H, W) over the pixels that count, the range still being the maximum of the truth: air
    holds noise alone, and SSIM asks an image to have as much of it as the truth."""
    from skimage.metrics import structural_similarity

    _check(x, truth, False)
    top, error = float(truth.max()), float((x - truth)[where].double().square().mean())
    images = (v.double().cpu().numpy() for v in (truth, x))
    everywhere = structural_similarity(*images, data_range=top, full=True)[1]
    return {
        "psnr": 10 * math.log10(top**2 / error) if error else math.inf,
        "ssim": float(everywhere[where.cpu().numpy()].mean()),
    }


METRICS: dict[str, Callable[..., Tensor]] = {"psnr": psnr, "ssim": ssim, "nmse": nmse, "mse": mse}


def _axes(volume: bool) -> tuple[int, ...]:
    return (-3, -2, -1) if volume else (-2, -1)


def _check(x: Tensor, truth: Tensor, volume: bool) -> None:
    if x.shape != truth.shape:
        raise ValueError(f"image has shape {tuple(x.shape)}, truth {tuple(truth.shape)}: expected the same")
    if volume and x.ndim != 3:
        raise ValueError(f"volume has shape {tuple(x.shape)}, expected (slices, H, W)")
