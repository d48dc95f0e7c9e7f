"""Is the scan one that the model was made for?"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mcddpm.models.card import ModelCard
from mcddpm.models.denoiser import Denoiser
from mcddpm.physics import masks
from mcddpm.physics.measurement import Measurement, measured_rms
from mcddpm.physics.operator import LABELS
from mcddpm.system.progress import Notice


def mismatches(model: Denoiser, measurement: Measurement) -> tuple[Notice, ...]:
    """In what the scan differs from those the model was trained on: reasons to trust the result less."""
    card, A = model.card, measurement.operator
    if card is None:
        return ()
    trained = card.operator.kind
    if "radon" in (A.kind, trained) and A.kind != trained:
        raise ValueError(f"this scan is measured by {A.label}, the model is for {LABELS[trained]}: it cannot be used")
    result = [] if card.operator.knows(A.kind) else [_operator(A.label, LABELS[trained])]
    zero_filled = A.pinv(measurement.y_m)
    result += [*_size(zero_filled, card), *_mask(measurement.mask, card)]
    result += _off_centre(measurement.y_m) if A.kind != "radon" else []
    return (*result, *_energy(zero_filled, card))


def _operator(scan: str, trained: str) -> Notice:
    return Notice("operator", f"the scan is by {scan}, the model was trained on {trained}")


def _size(zero_filled: Tensor, card: ModelCard) -> Iterator[Notice]:
    size, known = tuple(zero_filled.shape), card.operator.trained_on or tuple(zero_filled.shape)
    if sizes := card.operator.sizes:
        if not 0.8 * min(sizes) <= min(size) <= max(size) <= 1.25 * max(sizes):
            sides = f"sides of {min(sizes)} to {max(sizes)}"
            yield Notice("matrix", f"the matrix is {size[0]} x {size[1]}, the model was trained on {sides}")
    elif size != known:
        yield Notice("matrix", f"the matrix is {size[0]} x {size[1]}, the model was trained on {known[0]} x {known[1]}")


def _mask(mask: Tensor, card: ModelCard) -> Iterator[Notice]:
    if card.mask is None:
        return
    reached, accelerations = masks.acceleration(mask), card.mask.accelerations
    if not 0.7 * min(accelerations) <= reached <= 1.4 * max(accelerations):
        asked = " and ".join(f"{a:g}x" for a in accelerations)
        yield Notice("acceleration", f"the scan is under-sampled {reached:.1f}x, the model was trained on {asked}")
    plane = mask.ndim > 1 and bool((mask != mask[..., :1, :]).any())
    if plane and not set(card.mask.families) & set(masks.IN_PLANE):
        rows = bool((mask == mask[..., :, :1]).all())
        message = "of rows: transpose the scan. The" if rows else "not of columns, the"
        yield Notice("mask", f"the mask is made {message} model was trained on {', '.join(card.mask.families)}")


def _off_centre(y_m: Tensor) -> list[Notice]:
    """k-space as an FFT leaves it has its energy in the corners; images from it would be wrong, not just poor."""
    energy = y_m.abs().square().reshape(-1, *y_m.shape[-2:]).sum(0)
    result = []
    for name, line in (("rows", energy.sum(1)), ("columns", energy.sum(0))):
        n = len(line)
        outer = float(1 - line[n // 4 : n - n // 4].sum() / line.sum())
        if outer > 0.7:  # white noise has a half of it there, an image's k-space a few percent
            message = f"{100 * outer:.0f} % of the energy lies in the outer half of the {name}: is k-space not in the"
            message += " centred FFT? docs/how-to/prepare-kspace.md says how to bring it there"
            result.append(Notice("off centre", message))
    return result


def _energy(zero_filled: Tensor, card: ModelCard) -> Iterator[Notice]:
    if not card.measured_rms:
        return
    low, high = card.measured_rms
    rms = measured_rms(torch.as_tensor(zero_filled)[None])[0]
    if not 0.8 * low <= rms <= 1.25 * high:
        yield Notice(
            "energy",
            f"the measured energy is unlike the training data's: the zero-filled image has an rms of {rms:.3f} of "
            f"its maximum, training images {low:.3f} to {high:.3f}",
        )
