"""Measurement -> Reconstruction: samples of the full scan, their mean and std, in the scale of what was measured.

    recon = reconstruct(load_model(), Measurement.from_kspace(kspace))
    recon.samples, recon.mean, recon.std

Every sample has a generator of its own, so sample 9 is the same alone or among twenty, whatever the batches.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcddpm import conformal, masks
from mcddpm import memory as budget
from mcddpm.datasets import Measurement, measured_rms
from mcddpm.denoiser import Denoiser
from mcddpm.feed import seed_of
from mcddpm.operators import Sense, kind_of, modality
from mcddpm.samplers import SAMPLERS, Callback, sample

SAMPLER, STEPS, SAMPLES = "dpmpp_2m_sde", 10, 20
MEMORY = 4e9  # bytes
MOST = 32  # samples at once: beyond it a batch is not faster

Array = Any  # numpy.ndarray or torch.Tensor, as the k-space was


@dataclass(frozen=True)
class Reconstruction:
    """samples: (N, H, W), complex for MRI; of one coil, their FFT is on M what was measured. calls: a sample's.

    mean and std are those of magnitudes |x| for MRI, as in the paper, and of values for CT; (H, W).
    """

    samples: Array
    calls: int
    warnings: tuple[str, ...] = ()
    scale: float = 1.0
    acceleration: float = math.nan
    how: str = ""
    operator: str = ""
    card: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        samples = torch.as_tensor(self.samples)
        shown = samples.abs() if samples.is_complex() else samples
        std = shown.std(0) if len(shown) > 1 else torch.full_like(shown[0], torch.nan)
        return self._alike(shown.mean(0)), self._alike(std)

    @property
    def mean(self) -> Array:
        return self._moments[0]

    @property
    def std(self) -> Array:
        """NaN if there is only one sample."""
        return self._moments[1]

    def interval(self, level: float = 0.9, surprise: float | None = None) -> tuple[Array, Array]:
        """The lower and the upper image between which the truth lies, averaged over slices, in a part `level` of the
        pixels: mean -+ factor std, with the factors that `mcddpm calibrate` found for this model. surprise: what a
        self-check of the scan said (`overall`): a scan that surprises the model gets wider intervals."""
        known = conformal.of_card(self.card)
        if len(self.samples) < 2:
            raise ValueError(f"there is {len(self.samples)} sample, which has no std: an interval takes 2 or more")
        if self.how != known.how:
            warnings.warn(f"intervals were fitted for {known.how}; these are {self.how}", stacklevel=2)
        usual = known.operator or self.card.get("self_check", {}).get("operator", self.operator)
        if self.operator != usual:
            why = f"intervals were fitted on scans by {modality(usual)}, this one is by {modality(self.operator)}"
            why += ": they do not follow the self-check" if surprise is not None else ""
            warnings.warn(why, stacklevel=2)
            surprise = None
        mean, std = (torch.as_tensor(image) * self.scale for image in (self.mean, self.std))
        by_count = known.by_count(level, len(self.samples))
        half = by_count * known.stretch(mean, std, level, self.acceleration, surprise) * std
        lower = (mean - half).clamp(min=0) if torch.as_tensor(self.samples).is_complex() else mean - half
        return self._alike(lower / self.scale), self._alike((mean + half) / self.scale)

    def _alike(self, values: Tensor) -> Array:
        return values.numpy() if isinstance(self.samples, np.ndarray) else values


@torch.no_grad()
def reconstruct(
    model: Denoiser,
    measurement: Measurement,
    *,
    samples: int = SAMPLES,
    steps: int = STEPS,
    sampler: str = SAMPLER,
    grid: str | None = None,
    seed: int = 0,
    memory: float | str = MEMORY,
    callback: Callback | None = None,
) -> Reconstruction:
    """Draw samples of the full scan. `sampler="mean"` is one call and one image: the model's posterior mean.

    grid: how steps are spread (uniform, log_sigma, karras); the paper's ancestral sampler takes them uniform in t, the
    others as the model says. memory: bytes, or as "2GB"; samples are drawn in batches that stay within it.
    """
    check(model, samples, steps, sampler, grid)
    unlike = why_unlike(model, measurement)
    for reason in unlike:
        warnings.warn(reason, stacklevel=2)
    device = next(model.parameters()).device
    A = measurement.operator
    A = A.to(device) if isinstance(A, Sense) else A
    y_m, mask = measurement.y_m.to(device)[None], measurement.mask.to(device)
    count = 1 if sampler == "mean" else samples
    allowed = budget.parse(memory) if isinstance(memory, str) else memory
    size = min(count, MOST, batch_size(model, y_m, mask, A, allowed))
    times = _times(model, steps, sampler, grid)
    images = []
    for first in range(0, count, size):
        seeds = [seed_of(seed, k) for k in range(first, min(first + size, count))]
        y = sample(
            lambda y, t: model.denoise(y, t, y_m.expand(len(y), *y_m.shape[1:]), mask, A),
            y_m,
            mask,
            model.schedule.to("cpu"),
            grid=times,
            seeds=seeds,
            sampler=sampler,
            callback=callback,
        )
        images.append((A.pinv(y) / measurement.scale).to(measurement.y_m.device))
    drawn = torch.cat(images)
    return Reconstruction(
        drawn.numpy() if measurement.from_numpy else drawn,
        SAMPLERS[sampler].calls(steps),
        tuple(unlike),
        measurement.scale,
        masks.acceleration(mask),
        conformal.how(count, sampler, steps, grid),
        kind_of(A),
        model.card,
    )


def _times(model: Denoiser, steps: int, sampler: str, grid: str | None) -> Tensor:
    return model.grid(steps, grid or ("uniform" if sampler == "ancestral" else None))


def check(model: Any, samples: int, steps: int, sampler: str, grid: str | None = None) -> Denoiser:
    """Refuse what cannot be done, before anything is; the model otherwise."""
    if not isinstance(model, Denoiser):
        raise ValueError(f"this model is a {type(model).__name__}, which draws no samples; expected a diffusion model")
    if not model.card.get("conditional", True):
        raise ValueError("this model is a prior, which is shown no measurement; it is for score-based methods")
    for name, value in (("samples", samples), ("steps", steps)):
        if value < 1:
            raise ValueError(f"{name} is {value}, expected 1 or more")
    if sampler not in SAMPLERS:
        raise ValueError(f"unknown sampler {sampler!r}; known: {', '.join(SAMPLERS)}")
    _times(model, steps, sampler, grid)
    return model


def batch_size(model: Denoiser, y_m: Tensor, mask: Tensor, A: Any, memory: float) -> int:
    """How many samples may be drawn at once. What one takes is measured once for every size of scan."""
    key = (tuple(y_m.shape), y_m.dtype, str(y_m.device))
    if key not in model.bytes_a_sample:
        one, t = torch.zeros_like(y_m), torch.tensor(1.0)
        model.denoise(one, t, y_m, mask, A)  # so that what is made once and kept does not count
        call = budget.peak_bytes(lambda: model.denoise(one, t, y_m, mask, A))
        state = 6 * one.element_size() * one.numel()  # y, the last two clean estimates, noise, what is made of them
        model.bytes_a_sample[key] = call + state
    fits = budget.batch_within(memory, model.bytes_a_sample[key], y_m.device)
    if fits < 1:
        warnings.warn(
            f"one sample of this size takes more than {memory / 1e9:.2g} GB; drawing one at a time all the same",
            stacklevel=3,
        )
    return max(fits, 1)


# --- is the scan one that the model was made for? -------------------------------------------------------------------


def why_unlike(model: Denoiser, measurement: Measurement) -> list[str]:
    """In what the scan differs from those the model was trained on: reasons to trust the result less."""
    card, A = model.card, measurement.operator
    kind = kind_of(A)
    if not card:
        return []
    reasons = []
    trained = card["operator"]["kind"]
    if "radon" in (kind, trained) and kind != trained:
        raise ValueError(
            f"this scan is measured by {modality(kind)}, the model is for {modality(trained)}: it cannot be used"
        )
    if kind != trained:
        reasons.append(f"the scan is by {modality(kind)}, the model was trained on {modality(trained)}")
    zero_filled = A.pinv(measurement.y_m)
    size, known = tuple(zero_filled.shape), tuple(card["operator"].get("trained_on", zero_filled.shape))
    if size != known:
        reasons.append(f"the matrix is {size[0]} x {size[1]}, the model was trained on {known[0]} x {known[1]}")
    mix = card.get("mask", {})
    reached = masks.acceleration(measurement.mask)
    if mix and not 0.7 * min(mix["accelerations"]) <= reached <= 1.4 * max(mix["accelerations"]):
        asked = " and ".join(f"{a:g}x" for a in mix["accelerations"])
        reasons.append(f"the scan is under-sampled {reached:.1f}x, the model was trained on {asked}")
    mask = measurement.mask
    plane = mask.ndim > 1 and bool((mask != mask[..., :1, :]).any())
    if mix and plane and not set(mix["families"]) & set(masks.IN_PLANE):
        rows = bool((mask == mask[..., :, :1]).all())
        told = "of rows: transpose the scan. The" if rows else "not of columns, the"
        reasons.append(f"the mask is made {told} model was trained on {', '.join(mix['families'])}")
    if kind != "radon":
        reasons += _off_centre(measurement.y_m)
    if "measured_rms" in card:
        low, high = card["measured_rms"]
        rms = measured_rms(zero_filled[None])[0]
        if not 0.8 * low <= rms <= 1.25 * high:
            reasons.append(
                f"the measured energy is unlike the training data's: the zero-filled image has an rms of {rms:.3f} of "
                f"its maximum, training images {low:.3f} to {high:.3f}"
            )
    return reasons


def _off_centre(y_m: Tensor) -> list[str]:
    """k-space as an FFT leaves it has its energy in the corners; images from it would be wrong, not just poor."""
    energy = y_m.abs().square().reshape(-1, *y_m.shape[-2:]).sum(0)
    reasons = []
    for name, line in (("rows", energy.sum(1)), ("columns", energy.sum(0))):
        n = len(line)
        outer = float(1 - line[n // 4 : n - n // 4].sum() / line.sum())
        if outer > 0.7:  # white noise has a half of it there, an image's k-space a few percent
            reasons.append(
                f"{100 * outer:.0f} % of the energy lies in the outer half of the {name}: is k-space not in the "
                "centred FFT? Then apply numpy.fft.fftshift to it"
            )
    return reasons
