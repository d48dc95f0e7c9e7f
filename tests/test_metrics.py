"""Metrics by hand, against scikit-image, and slice against volume."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from mcddpm import metrics


def images(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Three slices of different brightness and a noisy copy."""
    g = torch.Generator().manual_seed(seed)
    truth = torch.rand(3, 16, 20, generator=g, dtype=torch.float64) * torch.tensor([1.0, 2.0, 5.0])[:, None, None]
    return truth + 0.1 * torch.randn(truth.shape, generator=g, dtype=torch.float64), truth


def test_two_by_two_by_hand() -> None:
    truth, x = torch.tensor([[0.0, 3.0], [4.0, 0.0]]), torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    assert metrics.mse(x, truth) == pytest.approx(5 / 4)  # 1 + 4 over 4 pixels
    assert metrics.nmse(x, truth) == pytest.approx(5 / 25)
    assert metrics.psnr(x, truth) == pytest.approx(10 * math.log10(16 / 1.25))


def test_volume_by_hand() -> None:
    """The range of a volume is the maximum of all its slices, its error the mean over all."""
    truth = torch.tensor([[[0.0, 3.0], [4.0, 0.0]], [[0.0, 0.0], [0.0, 2.0]]])
    x = torch.tensor([[[1.0, 3.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    assert metrics.mse(x, truth, volume=True) == pytest.approx(6 / 8)
    assert metrics.nmse(x, truth, volume=True) == pytest.approx(6 / 29)
    assert metrics.psnr(x, truth, volume=True) == pytest.approx(10 * math.log10(16 * 8 / 6))
    assert metrics.psnr(x, truth)[1] == pytest.approx(10 * math.log10(4 * 4 / 1))


def test_as_scikit_image_has_them() -> None:
    x, truth = images()
    for k in range(3):
        top = float(truth[k].max())
        pair = truth[k].numpy(), x[k].numpy()
        assert metrics.psnr(x, truth)[k] == pytest.approx(peak_signal_noise_ratio(*pair, data_range=top), abs=1e-9)
        assert metrics.ssim(x, truth)[k] == pytest.approx(structural_similarity(*pair, data_range=top), abs=1e-9)
    whole = peak_signal_noise_ratio(truth.numpy(), x.numpy(), data_range=float(truth.max()))
    assert metrics.psnr(x, truth, volume=True) == pytest.approx(whole, abs=1e-9)
    each = [
        structural_similarity(t.numpy(), s.numpy(), data_range=float(truth.max()))
        for s, t in zip(x, truth, strict=True)
    ]
    assert metrics.ssim(x, truth, volume=True) == pytest.approx(np.mean(each), abs=1e-9)


def test_slice_and_volume_differ_where_brightness_does() -> None:
    x, truth = images()
    assert metrics.psnr(x, truth, volume=True) > metrics.psnr(x, truth).mean() + 3
    assert metrics.ssim(x, truth, volume=True) > metrics.ssim(x, truth).mean()
    flat = truth / truth.amax((1, 2), keepdim=True)
    noisy = flat + 0.1 * torch.ones_like(flat)
    assert metrics.psnr(noisy, flat, volume=True) == pytest.approx(float(metrics.psnr(noisy, flat).mean()))


def test_inside_a_region() -> None:
    """The range is the whole truth's maximum, outside the region here; windows reach out of it."""
    x, truth = (v[2] for v in images())
    where = torch.zeros_like(truth, dtype=torch.bool)
    where[2:9, 3:12] = True
    where[truth == truth.max()] = False
    found = metrics.inside(x, truth, where)
    error = float((x - truth)[2:9, 3:12].square().sum()) - float(
        (x - truth)[2:9, 3:12][~where[2:9, 3:12]].square().sum()
    )
    assert found["psnr"] == pytest.approx(10 * math.log10(float(truth.max()) ** 2 * int(where.sum()) / error))
    everywhere = structural_similarity(truth.numpy(), x.numpy(), data_range=float(truth.max()), full=True)[1]
    assert found["ssim"] == pytest.approx(everywhere[where.numpy()].mean()) and found["ssim"] != everywhere.mean()


@pytest.mark.parametrize("name", sorted(metrics.METRICS))
def test_other_shapes_are_refused(name: str) -> None:
    x, truth = images()
    with pytest.raises(ValueError, match=r"image has shape \(2, 16, 20\), truth \(3, 16, 20\)"):
        metrics.METRICS[name](x[:2], truth)
    with pytest.raises(ValueError, match=r"volume has shape \(16, 20\)"):
        metrics.METRICS[name](x[0], truth[0], volume=True)
