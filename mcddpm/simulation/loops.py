"""Receive coils by seed: maps of loops of wire around the object, and the correlation of their noise."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mcddpm.simulation.fields import chance, log_uniform
from mcddpm.simulation.wide import Wide

NODES = 32  # Chebyshev nodes along each axis, between which maps are interpolated
MODES = 8  # that a birdcage-like coil has at most
DRAWS = 4  # arrays that are tried until there is one that is not ABRUPT
ABRUPT = 0.5  # change of the vector of all sensitivities, of length 1, from node to node
NEAREST = 1.15  # of a coil, in half fields of view
WIRES = 16  # straight pieces of a loop
THICK = 0.2  # of a wire, in half fields of view; nearer, the field would be rougher than the nodes can tell


def loops(coils: int, shape: tuple[int, int], seed: int) -> Tensor:
    """Sensitivities of a random array of coils, (C, H, W) complex, sum of squares 1 everywhere. One coil is all 1.

    Loops see the transverse field that a current in them would make (reciprocity): S = B_x - i B_y, by Biot and Savart
    B = sum dl x r / |r|^3 over their wire. Some arrays are birdcage-like modes instead.
    """
    if coils < 1:
        raise ValueError(f"there are {coils} coils, expected 1 or more")
    if coils == 1:
        return torch.ones(1, *shape, dtype=torch.complex64)
    rng = np.random.RandomState(seed)
    sides = torch.tensor(shape) / max(shape)
    y, x = (side * _nodes() for side in sides)
    for _ in range(DRAWS):
        maps = _birdcage(coils, y, x, rng) if chance(rng, 0.15) and coils <= MODES else _wires(coils, y, x, rng)
        maps = maps / maps.abs().square().mean((1, 2), keepdim=True).sqrt()
        if _is_even(maps, y, x):
            break
    gains = np.exp(rng.normal(0, 0.3, coils) + 2j * math.pi * rng.uniform(size=coils))
    maps = maps * torch.from_numpy(gains).to(torch.complex64)[:, None, None]
    rows, columns = (_between(n).to(torch.complex64) for n in shape)
    fine = rows @ maps @ columns.T
    return fine * torch.view_as_real(fine).square().sum(0).sum(-1).clamp(min=1e-20).rsqrt()


def _is_even(maps: Tensor, y: Tensor, x: Tensor) -> bool:
    """Whether, in the middle, normalised maps change little from node to node: no place is blind to all coils."""
    unit = maps * torch.view_as_real(maps).square().sum(0).sum(-1).clamp(min=1e-20).rsqrt()
    inside = torch.hypot(y[:-1, None], x[:-1]) < 0.95
    down, across = unit[:, 1:, :-1] - unit[:, :-1, :-1], unit[:, :-1, 1:] - unit[:, :-1, :-1]
    steps = [torch.view_as_real(step).square().sum(0).sum(-1)[inside].max() for step in (down, across)]
    return float(max(steps)) < ABRUPT**2


def correlation(coils: int, seed: int, wide: Wide) -> Tensor:
    """A covariance of the coils' noise in each part, (C, C) complex, mean of the diagonal 1.

    diag(g) R diag(g)*: gains g of different size and phase; R_ij = rho^|i - j|, with |i - j| counted round the ring.
    """
    rng = np.random.RandomState(seed)
    rho = rng.uniform(0.01, max(0.01, wide.correlation))
    apart = np.abs(np.arange(coils)[:, None] - np.arange(coils))
    ring = rho ** np.minimum(apart, coils - apart)
    gains = np.exp(rng.normal(0, rng.uniform(0, 0.4), coils) + 2j * math.pi * rng.uniform(size=coils))
    covariance = gains[:, None] * ring * gains.conj()
    return torch.from_numpy(covariance / covariance.diagonal().real.mean()).to(torch.complex64)


def _wires(coils: int, y: Tensor, x: Tensor, rng: np.random.RandomState) -> Tensor:
    """B_x - i B_y at places (y, x), (C, Y, X); or B_z - i B_y, as for slices along the magnet's field."""
    across, down, through = _biot_savart(*_array(coils, rng), y, x)
    return torch.complex(through if chance(rng, 0.3) else across, -down)


def _biot_savart(centre: Tensor, inwards: Tensor, radius: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """B_x, B_y, B_z of loops at places (y, x) of the plane z = 0, (C, Y, X): the sum of dl x r / |r|^3 over WIRES."""
    turn = torch.arange(WIRES) * (2 * math.pi / WIRES)
    across = torch.linalg.cross(inwards, torch.tensor([0.3, 0.5, 0.8]).expand_as(inwards), dim=-1)
    across = across / across.norm(dim=-1, keepdim=True)
    along = torch.linalg.cross(inwards, across, dim=-1)
    # (C, WIRES, 3): where a piece of wire is, and where it points.
    out = across[:, None] * turn.cos()[:, None] + along[:, None] * turn.sin()[:, None]
    tangent = along[:, None] * turn.cos()[:, None] - across[:, None] * turn.sin()[:, None]
    wire = centre[:, None] + radius[:, None, None] * out
    wx, wy, to_z = wire[..., 0], wire[..., 1], -wire[..., 2]  # (C, WIRES)
    square_y = (y - wy[..., None]).square() + (to_z.square() + THICK**2)[..., None]
    square = square_y[..., None] + (x - wx[..., None]).square()[..., None, :]  # (C, WIRES, Y, X)
    weight = (square.rsqrt() / square).flatten(2)
    dx, dy, dz = tangent.unbind(-1)
    # dl x r is a constant of the piece of wire, plus others times x and y: the sums are one product of matrices.
    parts = torch.stack([dx, dy, dz, dy * to_z + dz * wy, -dx * to_z - dz * wx, dy * wx - dx * wy], 1)
    dx, dy, dz, b_x, b_y, b_z = (parts @ weight).unflatten(2, (len(y), len(x))).unbind(1)
    return b_x - dz * y[:, None], b_y + dz * x, b_z + dx * y[:, None] - dy * x


def _array(coils: int, rng: np.random.RandomState) -> tuple[Tensor, Tensor, Tensor]:
    """Centres (C, 3), unit vectors into the object (C, 3), and radii (C,) of loops; x, y, z in half fields of view."""
    places = math.ceil(coils * rng.uniform(1, 1.6))  # some of which are empty
    kept = np.sort(rng.permutation(places)[:coils])
    rings = rng.randint(1, 1 + min(4, max(1, coils // 4)))
    arc = 2 * math.pi if chance(rng, 0.75) else rng.uniform(0.6, 1.2) * math.pi  # all around, or on one side
    angle = rng.uniform(0, 2 * math.pi) + arc * (kept + rng.normal(0, 0.15, coils)) / places
    away = np.maximum(NEAREST, log_uniform(rng, (1.1, 2.2)) * np.exp(rng.normal(0, rng.uniform(0, 0.2), coils)))
    height = ((kept % rings) - (rings - 1) / 2) * rng.uniform(0.4, 0.9) + rng.normal(0, 0.1, coils) + rng.normal(0, 0.2)
    centre = np.stack([away * np.cos(angle), away * np.sin(angle), height], -1)
    aim = rng.normal(0, 0.25, (coils, 3)) - centre
    spacing = arc * away * rings / places
    radius = np.clip(spacing * rng.uniform(0.4, 0.8), 0.1, 0.9) * np.exp(rng.normal(0, 0.1, coils))
    inwards = aim / np.linalg.norm(aim, axis=-1, keepdims=True)
    return torch.from_numpy(centre).float(), torch.from_numpy(inwards).float(), torch.from_numpy(radius).float()


def _birdcage(coils: int, y: Tensor, x: Tensor, rng: np.random.RandomState) -> Tensor:
    """Modes of a cylinder, ((x + i y) / r)^m for m = 0, 1, -1, 2, ..., mixed with one another a little."""
    centre, r = rng.normal(0, 0.1, 2), rng.uniform(0.9, 1.3)
    z = torch.complex((x + centre[0]).expand(len(y), -1), (y + centre[1])[:, None].expand(-1, len(x))) / r
    modes = torch.stack([(z if m % 2 else z.conj()) ** ((m + 1) // 2) for m in range(coils)])
    mix = np.eye(coils) + rng.uniform(0, 0.5) * (rng.normal(size=(coils, coils)) + 1j * rng.normal(size=(coils, coils)))
    return torch.einsum("vc,chw->vhw", torch.from_numpy(mix).to(torch.complex64), modes)


def _nodes() -> Tensor:
    """Where Chebyshev polynomials are sampled, -1 ... 1."""
    return -torch.cos(math.pi * (torch.arange(NODES) + 0.5) / NODES)


def _between(count: int) -> Tensor:
    """From values at the nodes to values at `count` pixels, (count, NODES): exact for polynomials of degree < NODES."""
    at_nodes = torch.arccos(_nodes().double())
    at_pixels = torch.arccos(2 * (torch.arange(count, dtype=torch.float64) + 0.5) / count - 1)
    degree = torch.arange(NODES, dtype=torch.float64)
    forwards = torch.cos(at_nodes[:, None] * degree) * (2 - (degree == 0).double()) / NODES
    return (torch.cos(at_pixels[:, None] * degree) @ forwards.T).float()
