"""What an image of one head could have looked like: in another weighting, with other detail, elsewhere in the field.

    contrast(image, seed, wide)         T2-, PD-, FLAIR-like and unheard-of intensities from those of T1
    place(image, shape, seed, wide)     turned, moved, resized, a little distorted, on another matrix
    detail(image, seed, wide)           sharper, or with grain, fibres, spots
    bias(shape, seed, wide)             the smooth brightness that coils near the object leave

In this order: f of a resampled image is not what a scanner would have sampled, and detail is at the new pixels.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mcddpm.simulation.fields import blur, chance, field, high_value, log_uniform
from mcddpm.simulation.wide import Wide

# Where tissues of a T1 image lie, over the median of what is not air: air, skull, fluid, grey matter, white matter, fat
TISSUES = (0.0, 0.2, 0.5, 0.85, 1.25, 2.2)
# ... and how bright they are in other weightings.
WEIGHTINGS = {
    "T1": (0.0, 0.12, 0.22, 0.45, 0.65, 1.0),
    "T1, fat suppressed": (0.0, 0.08, 0.22, 0.5, 0.75, 0.3),
    "T1, inverted": (0.0, 0.1, 0.1, 0.3, 1.0, 0.8),
    "T2": (0.0, 0.06, 1.0, 0.52, 0.36, 0.55),
    "T2, fast spin echo": (0.0, 0.08, 1.0, 0.55, 0.4, 0.85),
    "T2*": (0.0, 0.1, 0.9, 0.62, 0.48, 0.4),
    "PD": (0.0, 0.1, 0.85, 0.95, 0.72, 0.65),
    "FLAIR": (0.0, 0.08, 0.1, 0.75, 0.58, 0.7),
    "STIR": (0.0, 0.08, 1.0, 0.7, 0.5, 0.1),
}
LEVELS = 1024
_LEVELS = torch.linspace(0, 2, LEVELS)
FLAT = 1e-4  # variance in a window, below which there is nothing to be straight along
AIR = 0.02  # of bright tissue: what is darker all around fades out, as the magnitude of noise is no signal
STEEP = 0.06  # change over two pixels of a voxel that is no longer taken for one tissue
BORDER = 6  # pixels over which an image that is cut off at its border ends
PASSED = 0.46  # cycles a pixel that shrinking keeps entirely; half a cycle is all that a matrix can hold


def contrast(image: Tensor, seed: int, wide: Wide) -> Tensor:
    """f(image) for a random smooth f with f(0) = 0; from 0 to about 1.  (H, W) -> (H, W)"""
    rng = np.random.RandomState(seed)
    v = image.float().clamp(min=0)
    v = (v / _bright(v)).clamp(max=3)
    parts = np.cumsum(wide.contrasts) / sum(wide.contrasts)
    kind = int(np.searchsorted(parts, rng.uniform()))
    if kind == 0:
        new = _read(_quiet(_LEVELS.pow(log_uniform(rng, wide.gamma))), v)
    else:
        curve, window, texture = _curve(v, kind, rng), log_uniform(rng, wide.fit), rng.uniform(0.2, 0.7)
        new = _straightened(v, _read(curve, v), window, texture if chance(rng, 0.5) else -texture)
    here = blur(v, 1.0).square()
    new = new * here / (here + AIR**2)
    return new / _bright(new)


def _bright(image: Tensor) -> float:
    """The value of bright tissue, not of the few brightest voxels."""
    return max(high_value(image, 0.995), 0.05 * float(image.max()), 1e-20)


def _curve(v: Tensor, kind: int, rng: np.random.RandomState) -> Tensor:
    """f at _LEVELS: of a known weighting (1), random and rising (2), random (3). Straight lines, then smoothed."""
    tissue = v[::2, ::2][v[::2, ::2] > 0.1]
    median = float(tissue.median()) if len(tissue) else 0.5
    at = median * np.array(TISSUES) * np.exp(0.08 * rng.normal(size=len(TISSUES)))
    at = np.maximum.accumulate(at)
    if kind == 1:
        names = list(WEIGHTINGS)
        high = np.array(WEIGHTINGS[names[rng.randint(len(names))]]) * np.exp(0.15 * rng.normal(size=len(TISSUES)))
    else:
        high = np.concatenate([[0], rng.uniform(0.03, 1, len(TISSUES) - 1)])
        if kind == 2:
            high = np.sort(high)
        elif rng.uniform() < 0.7:
            high[1] *= 0.2  # bone is dark in nearly all there is
    levels = _LEVELS.numpy()
    lines = np.interp(levels, np.append(at, 2 * at[-1]), np.append(high, high[-1] * rng.uniform(1, 1.5)))
    width = max(median, 0.3) * rng.uniform(0.06, 0.12) / (levels[1] - levels[0])
    reach = np.arange(-math.ceil(3 * width), math.ceil(3 * width) + 1)
    kernel = np.exp(-(reach**2) / (2 * width**2))
    odd = np.pad(lines, len(reach) // 2, mode="reflect", reflect_type="odd")  # so that f(0) stays 0
    return _quiet(torch.from_numpy(np.convolve(odd, kernel / kernel.sum(), "valid")).float())


def _quiet(curve: Tensor) -> Tensor:
    """Below some 5 % of the brightest tissue it is not steeper than 1, so that noise in air is not amplified."""
    tissue = ((_LEVELS - 0.03) / 0.06).clamp(0, 1)
    tissue = tissue.square() * (3 - 2 * tissue)
    return torch.lerp(torch.minimum(curve, _LEVELS), curve, tissue)


def _read(curve: Tensor, v: Tensor) -> Tensor:
    """f(v), between two levels by a straight line."""
    place = (v * ((LEVELS - 1) / 2)).clamp(max=LEVELS - 1.001)
    low = place.long()
    return torch.lerp(curve[low], curve[low + 1], place - low)


def _straightened(v: Tensor, new: Tensor, window: float, texture: float) -> Tensor:
    """a v + b, with a and b of weighted least squares to `new` in Gaussian windows of this std, themselves averaged.

    A voxel of two tissues is their mean in every weighting, but f of their mean is something else: T2 from T1 would
    have bright rims between skull and skin, which pass the intensity of fluid. Voxels of one tissue are where v is
    flat: they have the weight. (He et al., Guided image filtering, 2010.) Where f is flat too, as at its turning
    points, nothing would be left of an image but its borders: some of the old texture is put back.
    """
    up, left = (v.roll(-1, axis) - v.roll(1, axis) for axis in (0, 1))
    weight = 1 / (1 + (up.square() + left.square()) / STEEP**2)
    total, *sums = blur(torch.stack([weight, *(weight * f for f in (v, new, v * v, v * new))]), window)
    mean, mean_new, square, product = (part / total for part in sums)
    slope = (product - mean * mean_new) / ((square - mean * mean).clamp(min=0) + FLAT)
    offset = mean_new - slope * mean
    slope, offset = blur(torch.stack([slope, offset]), 0.6 * window)
    return (slope * v + offset + texture * (v - mean).clamp(-0.05, 0.05) * (v / 0.2).clamp(max=1)).clamp(0, 1.5)


def detail(image: Tensor, seed: int, wide: Wide) -> Tensor:
    """Sharpened, grained, spotted, or left as it is: detail that T1 heads do not have.  (H, W) -> (H, W)"""
    rng = np.random.RandomState(seed)
    sharpen, grain, blobs = (chance(rng, part) for part in (wide.sharpen, wide.grain, wide.blobs))
    if sharpen:
        image = (image + rng.uniform(0.2, 0.8) * (image - blur(image, log_uniform(rng, (0.8, 2.5))))).clamp(min=0)
    if grain:
        image = image * (1 + log_uniform(rng, (0.01, 0.06)) * _grain(_plane(image), rng)).clamp(min=0)
    if blobs:
        image = image.clone()
        for _ in range(rng.randint(1, 9)):
            _blob(image, rng)
    return image


def _grain(shape: tuple[int, int], rng: np.random.RandomState) -> Tensor:
    """White noise between two widths, unit variance; along one axis smoother, as fibres are."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(int(rng.randint(2**31))))
    k2 = [torch.fft.fftfreq(shape[0])[:, None].square(), torch.fft.rfftfreq(shape[1]).square()]
    fine = log_uniform(rng, (0.5, 1.5))
    along = [fine * log_uniform(rng, (1, 4)), fine]
    if chance(rng, 0.5):
        along.reverse()
    pass_band = torch.exp(-20 * (along[0] ** 2 * k2[0] + along[1] ** 2 * k2[1])) - torch.exp(
        -20 * 16 * fine**2 * (k2[0] + k2[1])
    )
    noise = torch.fft.irfft2(torch.fft.rfft2(noise) * pass_band.clamp(min=0), s=shape)
    return noise / noise.std()


def _blob(image: Tensor, rng: np.random.RandomState) -> None:
    """An ellipse inside the object, brighter or darker, with an edge of about a pixel. In place."""
    height, width = image.shape
    inside = (image > 0.15).nonzero()
    if len(inside) == 0:
        return
    i, j = inside[rng.randint(len(inside))].tolist()
    radius, oblong, angle = log_uniform(rng, (1, 10)), log_uniform(rng, (0.5, 1)), rng.uniform(0, math.pi)
    reach = math.ceil(radius) + 4
    box = np.s_[max(0, i - reach) : i + reach + 1, max(0, j - reach) : j + reach + 1]
    y = torch.arange(height)[box[0], None] - i
    x = torch.arange(width)[None, box[1]] - j
    along, across = y * math.cos(angle) + x * math.sin(angle), x * math.cos(angle) - y * math.sin(angle)
    depth = radius * (1 - torch.hypot(along / radius, across / (radius * oblong)))  # pixels from the edge, about
    part = torch.sigmoid(depth / rng.uniform(0.4, 1.2))
    image[box] = image[box] * (1 + part * (rng.uniform(-0.9, 0) if chance(rng, 0.4) else rng.uniform(0, 1.2)))


def bias(shape: tuple[int, int], seed: int, wide: Wide) -> Tensor:
    """A smooth positive field with mean 1 (H, W): the falloff of a few coils, 1 / (1 + d^2 / r^2)^(3/2), and waves."""
    rng = np.random.RandomState(seed)
    i, j = (torch.arange(n)[:, None] / n - 0.5 for n in shape)
    near = torch.zeros(shape)
    for _ in range(rng.randint(1, 5)):
        angle, away, size = rng.uniform(0, 2 * math.pi), rng.uniform(0.5, 1.2), rng.uniform(0.3, 1)
        d2 = (i - away * math.sin(angle)) ** 2 + (j.T - away * math.cos(angle)) ** 2
        near += rng.uniform(0.3, 1) * (1 + d2 / size**2) ** -1.5
    log = near.log() / near.log().std() + rng.uniform(0, 1) * field(shape, rng, rng.uniform(0.3, 0.8))
    log = (log - log.min()) / (log.max() - log.min()) * math.log(log_uniform(rng, wide.bias))
    result = log.exp()
    return result / result.mean()


def place(image: Tensor, shape: tuple[int, int], seed: int, wide: Wide) -> Tensor:
    """The image turned, mirrored, moved, resized and a little warped, on a matrix of this shape.  -> shape

    Pixel t of the result shows the source at s = J t + b + warp (from their centres). What the new matrix cannot hold
    is taken out of the source's k-space first: k cycles a pixel there are J^T k here. Outside of the source is air.
    """
    rng = np.random.RandomState(seed)
    source = _plane(image)
    J = _jacobian(source, shape, rng, wide)
    b = torch.from_numpy(rng.uniform(-wide.shift, wide.shift, 2) * source).float()
    image = _band_limited(image.float() * _ending(source), J)
    i, j = (torch.arange(n) - (n - 1) / 2 for n in shape)
    s = torch.stack([J[a, 0] * i[:, None] + J[a, 1] * j + b[a] for a in range(2)])
    size = wide.warp * rng.uniform() * max(source) / 2
    if size:
        s += size * torch.stack([field(shape, rng, 0.3), field(shape, rng, 0.3)])
    # grid_sample's coordinates run from -1 to 1 along each axis, columns first.
    grid = torch.stack([2 * s[1] / source[1], 2 * s[0] / source[0]], -1)
    moved = torch.nn.functional.grid_sample(
        image[None, None], grid[None], mode="bicubic", padding_mode="zeros", align_corners=False
    )
    return moved[0, 0].clamp(min=0)


def _jacobian(source: tuple[int, int], shape: tuple[int, int], rng: np.random.RandomState, wide: Wide) -> Tensor:
    """J: pixels of the source for a step in each direction of the result, (2, 2)."""
    step = math.sqrt(source[0] * source[1] / (shape[0] * shape[1])) / log_uniform(rng, wide.zoom)
    ratio = np.clip((shape[0] / shape[1]) ** rng.uniform(), 1 / wide.oblong, wide.oblong)
    oblong = math.sqrt(ratio)  # pixels are longer where the matrix is short, so that less is cut off
    steps = torch.diag(torch.tensor([step / oblong, step * oblong]))
    angle = rng.uniform(-math.pi, math.pi)
    if chance(rng, wide.upright):
        angle = rng.randint(4) * math.pi / 2 + math.radians(rng.uniform(-wide.turn, wide.turn))
    cos, sin, mirror = math.cos(angle), math.sin(angle), 1.0 if chance(rng, 0.5) else -1.0
    return torch.tensor([[cos, -sin * mirror], [sin, cos * mirror]], dtype=torch.float32) @ steps


def _band_limited(image: Tensor, J: Tensor) -> Tensor:
    """Without what pixels of J cannot hold, on each of the new axes as an acquisition has it."""
    shape = _plane(image)
    if J.abs().sum(0).max() < 1.001:
        return image
    k, l = torch.fft.fftfreq(shape[0])[:, None], torch.fft.rfftfreq(shape[1])
    keep = torch.ones(())
    for a in range(2):
        over = (((J[0, a] * k + J[1, a] * l).abs() - PASSED) / (0.5 - PASSED)).clamp(0, 1)
        keep = keep * (1 + torch.cos(math.pi * over)) / 2
    return torch.fft.irfft2(torch.fft.rfft2(image) * keep, s=shape)


def _ending(shape: tuple[int, int]) -> Tensor:
    """1, falling to 0 over the last pixels of each side: what touches the border must not end in a wall."""
    sides = [torch.minimum(torch.arange(n), n - 1 - torch.arange(n)) + 0.5 for n in shape]
    rows, columns = (torch.sin(math.pi / 2 * (side / BORDER).clamp(max=1)).square() for side in sides)
    return rows[:, None] * columns


def _plane(image: Tensor) -> tuple[int, int]:
    return image.shape[-2], image.shape[-1]
