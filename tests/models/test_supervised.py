"""The paper's baseline: a U-Net that completes the zero-filled image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mcddpm.models.denoiser import to_channels
from mcddpm.models.supervised import Supervised
from mcddpm.models.unet import UNet
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.sense import Sense
from tests.problems import randn

MASK = torch.arange(8) % 3 == 0


class Recorder(nn.Module):
    """Stands in for the network: keeps what it was shown and answers with ones."""

    def forward(self, images: Tensor) -> Tensor:
        self.images = images
        return torch.ones_like(images)


@pytest.mark.parametrize("residual", [False, True])
def test_it_sees_the_zero_filled_image(residual: bool) -> None:
    y_m, A = randn(2, 8, 8) * MASK, Fourier()
    network = Recorder()
    x = Supervised(network, operator=A, residual=residual)(y_m, MASK)
    assert torch.allclose(network.images, to_channels(A.pinv(y_m)))
    assert torch.equal(x, (1 + 1j) + (A.pinv(y_m) if residual else torch.zeros(2, 8, 8)))


def test_several_coils_come_with_their_maps() -> None:
    A = Sense(coil_maps(3, (8, 8), seed=0))
    y_m = A(randn(2, 8, 8)) * MASK
    network = Recorder()
    model = Supervised(network, operator=None)
    assert model(y_m, MASK, A).shape == (2, 8, 8)
    assert torch.allclose(network.images, to_channels(A.pinv(y_m)))
    with pytest.raises(ValueError, match=r"pass A=Sense\(maps\)"):
        model(y_m, MASK)


def test_a_fresh_residual_network_returns_the_zero_filled_image() -> None:
    network = UNet(2, 2, channels=8, multipliers=(1,), heads=1, attention=(), time=False)
    y_m = randn(1, 8, 8) * MASK
    assert torch.allclose(Supervised(network, operator=Fourier(), residual=True)(y_m, MASK), Fourier().pinv(y_m))
