"""A cascade: small U-Nets in a row that see, between them, what the measurement says of the estimate so far.

    Cascade(in_channels, out_channels, ...)(x, time, refine)     x: (B, in, H, W) -> f: (B, out, H, W)

refine(f) -> (B, 2 out, H, W) is the denoiser's: the image that f stands for, made consistent with what was measured,
and the part of f that had to go for that. Each stage gets the inputs, that, and the features of the stage before, and
corrects f. The first one is told what f = 0 stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcddpm.models.unet import ResidualBlock, embedded, embedding_of, norm, zero, zero_last

Refine = Callable[[Tensor], Tensor]


class Cascade(nn.Module):
    """stages: how many; blocks: residual blocks on each side of each level; multipliers: widths of the levels."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stages: int,
        channels: int = 48,
        multipliers: Sequence[int] = (1, 2),
        blocks: int = 1,
        patch: int = 4,
        groups: int = 8,
        dropout: float = 0.0,
        noise: bool = False,
    ) -> None:
        super().__init__()
        if min(stages, channels, blocks, patch, groups) < 1 or not multipliers or min(multipliers) < 1:
            raise ValueError(
                f"a cascade with stages={stages}, channels={channels}, multipliers={tuple(multipliers)}, "
                f"blocks={blocks}, patch={patch}, groups={groups}: expected 1 or more of each"
            )
        self.out_channels, self.patch, self.channels, self.depth = out_channels, patch, channels, len(multipliers)
        embedding, width = 4 * channels, multipliers[0] * channels
        self.time = embedding_of(channels)
        self.noise = zero_last(embedding_of(channels)) if noise else None
        self.stages = nn.ModuleList(
            nn.ModuleDict(
                {
                    "enter": nn.Conv2d((in_channels + 2 * out_channels) * patch**2, width, 1),
                    "levels": Level([m * channels for m in multipliers], blocks, embedding, groups, dropout),
                    "norm": norm(width, groups),
                    "leave": zero(nn.Conv2d(width, out_channels * patch**2, 3, padding=1)),
                }
            )
            for _ in range(stages)
        )

    def forward(self, x: Tensor, time: Tensor, refine: Refine, noise: Tensor | None = None) -> Tensor:
        emb = embedded(self.time, time, self.noise, noise, self.channels)
        f = torch.zeros_like(x[:, : self.out_channels])
        h: Tensor | float = 0.0
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleDict)
            seen = torch.cat([x, refine(f).to(x)], dim=1).contiguous(memory_format=torch.channels_last)
            h = stage["levels"](h + stage["enter"](self._fold(seen)), emb)
            f = f + self._unfold(stage["leave"](F.silu(stage["norm"](h))), x)
        return f

    def _fold(self, x: Tensor) -> Tensor:
        """Padded to what the levels can halve; patch x patch pixels become channels."""
        multiple = self.patch * 2 ** (self.depth - 1)
        bottom, right = (-x.shape[-2]) % multiple, (-x.shape[-1]) % multiple
        return F.pixel_unshuffle(F.pad(x, (0, right, 0, bottom)) if bottom or right else x, self.patch)

    def _unfold(self, h: Tensor, like: Tensor) -> Tensor:
        return F.pixel_shuffle(h, self.patch)[..., : like.shape[-2], : like.shape[-1]].to(like.dtype)


class Level(nn.Module):
    """Residual blocks, the coarser levels between them, and blocks again; the coarser is added to the finer."""

    def __init__(self, widths: Sequence[int], blocks: int, embedding: int, groups: int, dropout: float) -> None:
        super().__init__()
        width, *coarser = widths

        def block(c_in: int, c_out: int, resample: str = "") -> ResidualBlock:
            return ResidualBlock(c_in, c_out, embedding, True, groups, dropout, resample)

        self.before = nn.ModuleList(block(width, width) for _ in range(blocks))
        if not coarser:
            return
        self.down, self.up = block(width, coarser[0], "down"), block(coarser[0], width, "up")
        self.coarser = Level(coarser, blocks, embedding, groups, dropout)
        self.after = nn.ModuleList(block(width, width) for _ in range(blocks))

    def forward(self, h: Tensor, emb: Tensor) -> Tensor:
        for block in self.before:
            h = block(h, emb)
        if hasattr(self, "coarser"):
            h = h + self.up(self.coarser(self.down(h, emb), emb), emb)
            for block in self.after:
                h = block(h, emb)
        return h
