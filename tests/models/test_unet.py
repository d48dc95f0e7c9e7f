"""The U-Net family: the paper's size, any size of image, and attention against its definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mcddpm.models.unet import Attention, UNet, sinusoids
from tests.problems import randn


def test_parameter_count_at_the_papers_setting() -> None:
    with torch.device("meta"):
        network = UNet(4, 2, channels=128, multipliers=(1, 1, 2, 2, 4), blocks=2, attention=(16,), heads=4)
    assert sum(p.numel() for p in network.parameters()) == 86_325_634


def wake(network: nn.Module) -> nn.Module:
    """Fresh blocks end in zeros; random ones let everything through."""
    g = torch.Generator().manual_seed(0)
    for p in network.parameters():
        with torch.no_grad():
            p.copy_(0.2 * torch.randn(p.shape, generator=g))
    return network


@pytest.mark.parametrize("patch", [1, 2, 4])
@pytest.mark.parametrize("size", [(16, 16), (17, 30), (5, 9), (1, 1)])
def test_any_size(size: tuple[int, int], patch: int) -> None:
    network = wake(UNet(3, 2, channels=8, multipliers=(1, 2), attention=(2,), heads=2, patch=patch))
    y = network(randn(2, 3, *size, dtype=torch.float32), torch.tensor([1.0, 2.0]))
    assert y.shape == (2, 2, *size) and torch.isfinite(y).all()


def test_padding_does_not_change_a_size_that_fits() -> None:
    network = wake(UNet(2, 2, channels=8, multipliers=(1, 2), attention=(), heads=2))
    x, t = randn(1, 2, 8, 12, dtype=torch.float32), torch.ones(1)
    padded = nn.functional.pad(x[..., :11], (0, 1))
    assert torch.allclose(network(x[..., :11], t), network(padded, t)[..., :11], atol=1e-5)


@pytest.mark.parametrize("by_head", [True, False])
def test_attention_is_softmax_of_scaled_products(by_head: bool) -> None:
    layer = wake(Attention(8, 2, by_head, 4))
    x = randn(1, 8, 3, 2, dtype=torch.float32, seed=1)
    tokens = layer.norm(x).flatten(2)[0].T
    packed = tokens @ layer.qkv.weight.T + layer.qkv.bias  # (6, 24)
    out = torch.zeros(6, 8)
    for head in range(2):
        rows = slice(12 * head, 12 * head + 12) if by_head else None
        qkv = packed[:, rows].split(4, 1) if by_head else [packed[:, 8 * k + 4 * head :][:, :4] for k in range(3)]
        q, k, v = qkv
        out[:, 4 * head : 4 * head + 4] = torch.softmax(q @ k.T / 2.0, dim=1) @ v
    expected = x + (out @ layer.out.weight.T + layer.out.bias).T.reshape(1, 8, 3, 2)
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_time_reaches_the_output_and_every_weight_gets_a_gradient() -> None:
    for scale_shift in (True, False):
        for residual in (True, False):
            network = wake(
                UNet(
                    2,
                    1,
                    channels=8,
                    multipliers=(1, 2),
                    heads=2,
                    groups=2,
                    scale_shift=scale_shift,
                    residual_resampling=residual,
                )
            )
            x = randn(2, 2, 8, 8, dtype=torch.float32)
            a, b = network(x, torch.tensor([1.0, 1.0])), network(x, torch.tensor([1.0, 500.0]))
            assert torch.allclose(a[0], b[0], atol=1e-5) and not torch.allclose(a[1], b[1], atol=1e-3)
            a.square().sum().backward()
            assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_sinusoids() -> None:
    expected = Tensor([[1.0, 1.0, 0.0, 0.0]])
    assert torch.allclose(sinusoids(torch.zeros(1), 4), expected)
    angle = torch.tensor([3.0, 0.03])
    assert torch.allclose(sinusoids(torch.tensor([3.0]), 4)[0], torch.cat([angle.cos(), angle.sin()]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: UNet(2, 2, multipliers=()), "expected 1 or more of each"),
        (lambda: UNet(2, 2, channels=6, multipliers=(1,), heads=4), "6 channels do not split into 4 attention heads"),
        (lambda: UNet(2, 2, channels=8, heads=2)(torch.zeros(1, 2, 8, 8)), "told a level of noise, and was called"),
    ],
)
def test_wrong_settings_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
