"""The paper's baseline: a U-Net that completes a zero-filled image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mcddpm.models.denoiser import chosen_operator, from_channels, to_channels
from mcddpm.physics.operator import Operator

if TYPE_CHECKING:
    from mcddpm.models.card import ModelCard


class Supervised(nn.Module):
    """A U-Net that maps the zero-filled image to the full one, without diffusion: the paper's baseline.

    residual: it gives what is to be added to the zero-filled image (ours), not the image (the authors').
    """

    def __init__(self, network: nn.Module, *, operator: Operator | None, residual: bool = False) -> None:
        super().__init__()
        self.network, self.operator, self.residual = network, operator, residual
        self.card: ModelCard | None = None
        self.folder: Path | None = None

    def forward(self, y_m: Tensor, mask: Tensor, A: Operator | None = None) -> Tensor:
        """(B, data) -> (B, H, W)"""
        A = chosen_operator(A, self.operator)
        x = A.pinv(y_m)
        f = from_channels(self.network(to_channels(x).contiguous(memory_format=torch.channels_last)).float())
        return x + f if self.residual else f
