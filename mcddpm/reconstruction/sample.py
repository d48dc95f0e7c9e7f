"""Measurement -> Reconstruction: samples of the full scan, their mean and std, in the scale of what was measured.

    recon = reconstruct(load_model(), Measurement.from_kspace(kspace))
    recon.samples, recon.mean, recon.std

Every sample has a generator of its own, so sample 9 is the same alone or among twenty, whatever the batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from mcddpm.diffusion.samplers import Callback, sample
from mcddpm.models.denoiser import Denoiser, Seen
from mcddpm.physics.measurement import Measurement
from mcddpm.physics.noise import known_exactly
from mcddpm.reconstruction.mismatch import mismatches
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system import memory as budget
from mcddpm.system.progress import Notice
from mcddpm.system.seeds import seed_of

MEMORY = 4e9  # bytes
MOST = 32  # samples at once: beyond it a batch is not faster


@torch.no_grad()
def reconstruct(
    model: Denoiser,
    measurement: Measurement,
    plan: DrawPlan = DrawPlan(),  # noqa: B008 (frozen)
    *,
    memory: float | str = MEMORY,
    callback: Callback | None = None,
    **changes: Any,
) -> Reconstruction:
    """Draw samples of the full scan. `sampler="mean"` is one call and one image: the model's posterior mean.

    changes: to the plan, as samples=20, steps=10, sampler="heun", grid="karras", seed=1. memory: bytes, or as "2GB";
    samples are drawn in batches that stay within it. callback: sees every step (`samplers.Snapshot`).
    """
    plan = _changed(plan, changes)
    check(model, plan)
    noise, doubtful = noise_for(model, measurement)
    notices = (*mismatches(model, measurement), *doubtful)
    device = next(model.parameters()).device
    A, noise = measurement.operator.to(device), noise.to(device)
    y_m, mask = measurement.y_m.to(device)[None], measurement.mask.to(device)
    allowed = budget.parse(memory) if isinstance(memory, str) else memory
    seen, known = model.see(y_m, mask, A, noise), known_exactly(mask, noise)
    size, tight = batch_size(model, seen, allowed)
    grid = model.grid(plan.steps, plan.spacing, noise)
    images = []
    for first in range(0, plan.samples, size):
        seeds = [seed_of(plan.seed, k) for k in range(first, min(first + size, plan.samples))]
        y = sample(
            model.conditioned_on(seen),
            y_m.masked_fill(~known, 0),
            known,
            model.schedule.to("cpu"),
            grid=grid,
            seeds=seeds,
            sampler=plan.sampler,
            callback=callback,
            around=y_m if noise.any() else None,
        )
        images.append(A.pinv(y))
    weights = model.card.sha256 if model.card else ""
    more = {"notices": (*notices, *tight), "plan": plan, "weights": weights}
    if noise.any():
        level = measurement.noise_level or float(noise.square().mean().sqrt()) / measurement.scale
        more |= {"noise": level, "noise_from": measurement.noise_from}
    return Reconstruction.of(measurement, torch.cat(images), plan.calls, **more)


def noise_for(model: Denoiser, measurement: Measurement) -> tuple[Tensor, tuple[Notice, ...]]:
    """The noise that is used: none by a network that predicts eps, nor, unless it was given, by one that was trained to
    keep what was measured: of one coil, or of several if it was trained on several."""
    noise, source = measurement.noise, measurement.noise_from
    as_trained = measurement.operator.kind == "fourier" or (model.card and model.card.operator.kind == "sense")
    keeps = not model.knows_noise and as_trained and source != "given"
    if keeps or model.parameterisation == "eps" or not noise.any():
        if model.parameterisation == "eps" and source == "given" and noise.any():
            message = "the model predicts eps, so that it keeps what was measured: the noise that was given is not used"
            return torch.zeros_like(noise), (Notice("noise", message),)
        return torch.zeros_like(noise), ()
    if measurement.operator.kind == "fourier" and not model.knows_noise:
        message = "the model was trained to keep what was measured: with noise that is given it denoises beyond what it"
        return noise, (Notice("noise", f"{message} has learned, and no calibration of it is for that"),)
    if source != "at most":
        return noise, ()
    message = "the scan has no air to tell its noise from: taken as the level of outermost k-space, which may be too"
    return noise, (Notice("noise", f"{message} much; --noise gives it"),)


def _changed(plan: DrawPlan, changes: dict[str, Any]) -> DrawPlan:
    known = [f.name for f in fields(DrawPlan)]
    if unknown := [name for name in changes if name not in known]:
        raise TypeError(f"reconstruct has no setting {', '.join(unknown)}; known: {', '.join(known)}, memory, callback")
    return replace(plan, **changes)


def check(model: Any, plan: DrawPlan) -> Denoiser:
    """Refuse what cannot be done, before anything is; the model otherwise."""
    if not isinstance(model, Denoiser):
        raise ValueError(f"this model is a {type(model).__name__}, which draws no samples; expected a diffusion model")
    if model.card is not None and not model.card.conditional:
        raise ValueError("this model is a prior, which is shown no measurement; it is for score-based methods")
    model.grid(plan.steps, plan.spacing)
    return model


def batch_size(model: Denoiser, seen: Seen, memory: float) -> tuple[int, tuple[Notice, ...]]:
    """How many samples may be drawn at once, and a notice if even one is too large. What one takes is measured once for
    every size of scan."""
    y_m, denoise = seen.y_m, model.conditioned_on(seen)
    key = (tuple(y_m.shape), y_m.dtype, str(y_m.device), seen.linear is None)
    if key not in model.bytes_a_sample:
        one, t = torch.zeros_like(y_m), torch.tensor(1.0)
        call: Callable[[], Tensor] = lambda: denoise(one, t)  # noqa: E731
        call()  # so that what is made once and kept does not count
        state = 6 * one.element_size() * one.numel()  # y, the last two clean estimates, noise, what is made of them
        model.bytes_a_sample[key] = budget.peak_bytes(call) + state
    fits = min(budget.batch_within(memory, model.bytes_a_sample[key], y_m.device), MOST)
    if fits >= 1:
        return fits, ()
    message = f"one sample of this size takes more than {memory / 1e9:.2g} GB; drawing one at a time all the same"
    return 1, (Notice("memory", message),)
