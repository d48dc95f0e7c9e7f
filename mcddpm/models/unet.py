"""One U-Net family: the authors' network (so that their weights load), their plain U-Net, and our own default.

    UNet(in_channels, out_channels, ...)(x, time)     x: (B, in, H, W), time: (B,) or None -> (B, out, H, W)

An encoder of residual blocks with halving between levels, a middle, a decoder that sees the encoder's features again.
Attention where asked. The authors' network is `patch=1` with their settings; ours folds patch x patch pixels into
channels at the door (space-to-depth), which makes a step 4 or 16 times cheaper. Any image size: padded, then cropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Block = Callable[..., "ResidualBlock"]
Attend = Callable[[int], "Attention"]


class UNet(nn.Module):
    """`attention` lists the factors of down-sampling (1, 2, 4, ...) at which there is attention.

    heads: attention heads, or 0 to have ch // head_channels of them.  qkv_by_head: the order in which the authors'
    default packs q, k, v (head first); False is their "new" order.  time: False leaves out the time embedding.
    noise: whether it is also told a level of noise in the measurement.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        channels: int = 64,
        multipliers: Sequence[int] = (1, 2, 4),
        blocks: int = 1,
        attention: Sequence[int] = (4,),
        heads: int = 4,
        head_channels: int = 0,
        patch: int = 1,
        time: bool = True,
        noise: bool = False,
        scale_shift: bool = True,
        residual_resampling: bool = True,
        qkv_by_head: bool = True,
        groups: int = 32,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if min(channels, blocks, patch, groups) < 1 or not multipliers or min(multipliers) < 1:
            raise ValueError(
                f"a U-Net with channels={channels}, multipliers={tuple(multipliers)}, blocks={blocks}, patch={patch}, "
                f"groups={groups}: expected 1 or more of each"
            )
        if heads < 1 and head_channels < 1:
            raise ValueError(f"heads is {heads} and head_channels {head_channels}, expected one of them above 0")
        self.patch, self.depth = patch, len(multipliers)
        embedding = 4 * channels if time else 0
        self.frequencies = channels
        self.time = embedding_of(channels) if time else None
        self.noise = zero_last(embedding_of(channels)) if noise else None

        def block(c_in: int, c_out: int, resample: str = "") -> ResidualBlock:
            return ResidualBlock(c_in, c_out, embedding, scale_shift, groups, dropout, resample)

        def attend(c: int) -> Attention:
            return Attention(c, heads or c // head_channels, qkv_by_head, groups)

        widths = [multiplier * channels for multiplier in multipliers]
        resample = block if residual_resampling else None
        self.down = nn.ModuleList([Stage(nn.Conv2d(in_channels * patch**2, widths[0], 3, padding=1))])
        skips = self._encode(widths, blocks, block, attend, attention, resample)
        self.middle = Stage(block(widths[-1], widths[-1]), attend(widths[-1]), block(widths[-1], widths[-1]))
        self.up = nn.ModuleList()
        self._decode(widths, blocks, block, attend, attention, resample, skips)
        self.out_norm = norm(widths[0], groups)
        self.out_conv = zero(nn.Conv2d(widths[0], out_channels * patch**2, 3, padding=1))

    def _encode(
        self, widths: list[int], blocks: int, block: Block, attend: Attend, at: Sequence[int], resample: Block | None
    ) -> list[int]:
        """Residual blocks and halving between levels; returns the width of what each stage leaves for the decoder."""
        c, skips = widths[0], [widths[0]]
        for level, width in enumerate(widths):
            for _ in range(blocks):
                self.down.append(Stage(block(c, width), *([attend(width)] if 2**level in at else [])))
                c = width
                skips.append(c)
            if level < self.depth - 1:
                halve = resample(c, c, "down") if resample else nn.Conv2d(c, c, 3, stride=2, padding=1)
                self.down.append(Stage(halve))
                skips.append(c)
        return skips

    def _decode(
        self,
        widths: list[int],
        blocks: int,
        block: Block,
        attend: Attend,
        at: Sequence[int],
        resample: Block | None,
        skips: list[int],
    ) -> None:
        """The way back: each stage sees what the encoder left."""
        c = widths[-1]
        for level, width in reversed(list(enumerate(widths))):
            for i in range(blocks + 1):
                parts: list[nn.Module] = [block(c + skips.pop(), width)]
                c = width
                parts += [attend(c)] if 2**level in at else []
                if level and i == blocks:
                    parts.append(resample(c, c, "up") if resample else UpConvolution(c))
                self.up.append(Stage(*parts))

    def forward(self, x: Tensor, time: Tensor | None = None, noise: Tensor | None = None) -> Tensor:
        height, width = x.shape[-2:]
        x = self._pad(x)
        if self.patch > 1:
            x = F.pixel_unshuffle(x, self.patch)
        emb = None if self.time is None else embedded(self.time, time, self.noise, noise, self.frequencies)
        skips: list[Tensor] = []
        for stage in self.down:
            x = stage(x, emb)
            skips.append(x)
        x = self.middle(x, emb)
        for stage in self.up:
            x = stage(torch.cat([x, skips.pop()], dim=1), emb)
        x = self.out_conv(F.silu(self.out_norm(x)))
        if self.patch > 1:
            x = F.pixel_shuffle(x, self.patch)
        return x[..., :height, :width]

    def _pad(self, x: Tensor) -> Tensor:
        multiple = self.patch * 2 ** (self.depth - 1)
        bottom, right = (-x.shape[-2]) % multiple, (-x.shape[-1]) % multiple
        return F.pad(x, (0, right, 0, bottom)) if bottom or right else x


def embedding_of(channels: int) -> nn.Sequential:
    """Of a level: sinusoids -> 4 x channels features."""
    return nn.Sequential(nn.Linear(channels, 4 * channels), nn.SiLU(), nn.Linear(4 * channels, 4 * channels))


def zero_last(layers: nn.Sequential) -> nn.Sequential:
    """Layers that say nothing before they are trained: a network that knows one level may begin to learn of another."""
    for parameter in layers[-1].parameters():
        nn.init.zeros_(parameter)
    return layers


def embedded(
    of_time: nn.Sequential, time: Tensor | None, of_noise: nn.Sequential | None, noise: Tensor | None, size: int
) -> Tensor:
    """Features of the levels of noise that a network is told: of the diffusion, and of the measurement.  (B, 4 size)"""
    emb = of_time(sinusoids(time, size))
    if of_noise is not None:
        emb = emb + of_noise(sinusoids(noise, size))
    return F.silu(emb)


def sinusoids(time: Tensor | None, size: int) -> Tensor:
    """cos and sin of time at `size` / 2 frequencies from 1 down to nearly 1/10000.  (B,) -> (B, size)"""
    if time is None:
        raise ValueError("this network is told a level of noise, and was called without one")
    half = size // 2
    frequency = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32, device=time.device) / half)
    angle = time.float()[:, None] * frequency
    return F.pad(torch.cat([angle.cos(), angle.sin()], dim=1), (0, size % 2))


def norm(channels: int, groups: int) -> nn.GroupNorm:
    """So many groups, or as many as divide the layer. (One channel a group would forget the image's brightness.)"""
    return nn.GroupNorm(math.gcd(groups, channels), channels)


def zero(layer: nn.Conv2d) -> nn.Conv2d:
    """Start as zero: each residual block begins as the identity."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class Stage(nn.ModuleList):
    """Layers in a row; the residual blocks among them get the time embedding."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(layers)

    def forward(self, x: Tensor, emb: Tensor | None) -> Tensor:
        for layer in self:
            x = layer(x, emb) if isinstance(layer, ResidualBlock) else layer(x)
        return x


class ResidualBlock(nn.Module):
    """norm-SiLU-conv, time as scale and shift (or added), norm-SiLU-conv, plus x; may halve or double the grid."""

    def __init__(
        self, c_in: int, c_out: int, embedding: int, scale_shift: bool, groups: int, dropout: float, resample: str
    ) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(c_in, groups), nn.Conv2d(c_in, c_out, 3, padding=1)
        self.scale_shift, self.resample = scale_shift, resample
        self.embed = nn.Linear(embedding, 2 * c_out if scale_shift else c_out) if embedding else None
        self.norm2, self.conv2 = norm(c_out, groups), zero(nn.Conv2d(c_out, c_out, 3, padding=1))
        self.dropout = nn.Dropout(dropout)
        self.skip = nn.Identity() if c_in == c_out else nn.Conv2d(c_in, c_out, 1)

    def _resample(self, x: Tensor) -> Tensor:
        if self.resample == "down":
            return F.avg_pool2d(x, 2)
        if self.resample == "up":
            return F.interpolate(x, scale_factor=2, mode="nearest")
        return x

    def forward(self, x: Tensor, emb: Tensor | None) -> Tensor:
        h = self.conv1(self._resample(F.silu(self.norm1(x))))
        if self.embed is None:
            h = self.norm2(h)
        else:
            shift = self.embed(emb)[:, :, None, None].to(h.dtype)
            if self.scale_shift:
                scale, shift = shift.chunk(2, dim=1)
                h = self.norm2(h) * (1 + scale) + shift
            else:
                h = self.norm2(h + shift)
        h = self.conv2(self.dropout(F.silu(h)))
        return self.skip(self._resample(x)) + h


class UpConvolution(nn.Module):
    """Nearest-neighbour doubling, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))


class Attention(nn.Module):
    """Self-attention over all pixels, plus x."""

    def __init__(self, channels: int, heads: int, qkv_by_head: bool, groups: int) -> None:
        super().__init__()
        if heads < 1 or channels % heads:
            raise ValueError(f"{channels} channels do not split into {heads} attention heads")
        self.heads, self.qkv_by_head = heads, qkv_by_head
        self.norm = norm(channels, groups)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        B, C, H, W = x.shape
        tokens = self.norm(x).flatten(2).mT  # (B, HW, C)
        split = (self.heads, 3) if self.qkv_by_head else (3, self.heads)
        qkv = self.qkv(tokens).unflatten(2, (*split, C // self.heads))
        q, k, v = qkv.unbind(3 if self.qkv_by_head else 2)  # each (B, HW, heads, C / heads)
        attended = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        h = self.out(attended.transpose(1, 2).flatten(2))
        return x + h.mT.reshape(B, C, H, W)
