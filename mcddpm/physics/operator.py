"""Measuring operators A: image x -> measurement y.

Each operator is linear and has these calls, for real or complex tensors with any leading batch dimensions:

    A(x)           y = A x
    A.adjoint(y)   A^H y, exactly: <A x, y> = <x, A^H y>
    A.pinv(y)      a left inverse: A.pinv(A(x)) = x (Fourier, Sense), or close to it (Radon)
    A.to(device)   the same operator, with what it holds on that device

`image_shape` and `data_shape` are the trailing shapes of x and y; None means that any size is taken.
The last axis of y is the one that masks under-sample: columns of k-space, views of a sinogram. `kind` is what cards
and configurations call it, `label` what people do.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

Shape = tuple[int, ...]
Kind = Literal["fourier", "sense", "radon"]
LABELS: dict[str, str] = {"fourier": "MRI with one coil", "sense": "MRI with several coils", "radon": "CT"}


@runtime_checkable
class Operator(Protocol):
    """What the rest of the package knows of a scanner."""

    @property
    def kind(self) -> Kind: ...
    @property
    def label(self) -> str: ...
    @property
    def image_shape(self) -> Shape | None: ...
    @property
    def data_shape(self) -> Shape | None: ...

    def __call__(self, x: Tensor) -> Tensor: ...
    def adjoint(self, y: Tensor) -> Tensor: ...
    def pinv(self, y: Tensor) -> Tensor: ...
    def to(self, device: torch.device | str) -> Operator: ...


def check_shape(what: str, tensor: Tensor, shape: Shape | None, ndim: int = 2) -> None:
    if tensor.ndim < ndim or 0 in tensor.shape[tensor.ndim - ndim :]:
        raise ValueError(f"{what} has shape {tuple(tensor.shape)}, expected (..., H, W) with H and W above zero")
    if shape is not None and tuple(tensor.shape[-len(shape) :]) != shape:
        raise ValueError(f"{what} has shape {tuple(tensor.shape)}, expected (..., {', '.join(map(str, shape))})")


def check_precision(what: str, tensor: Tensor) -> None:
    known = (torch.float32, torch.float64, torch.complex64, torch.complex128)
    if tensor.dtype not in known:
        raise ValueError(f"{what} has dtype {tensor.dtype}, expected one of: {', '.join(map(str, known))}")
