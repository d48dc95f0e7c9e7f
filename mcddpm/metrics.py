"""Image quality on magnitude images, in the paper's definition: the range is the maximum of the truth."""

from __future__ import annotations

import torch
from torch import Tensor


def psnr(x: Tensor, truth: Tensor) -> Tensor:
    """10 log10(max(truth)^2 / mean squared error) of each slice, in dB.  (..., H, W) -> (...)"""
    if x.shape != truth.shape:
        raise ValueError(f"image has shape {tuple(x.shape)}, truth {tuple(truth.shape)}: expected the same")
    mse = (x - truth).square().mean((-2, -1))
    return 10 * torch.log10(truth.amax((-2, -1)).square() / mse)
