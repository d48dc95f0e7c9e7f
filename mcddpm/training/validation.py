"""How good a model is on slices it was not trained on, while it trains: PSNR and a picture."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mcddpm import metrics, plots
from mcddpm.data.examples import Batch, Stream
from mcddpm.data.wide_examples import WideStream
from mcddpm.diffusion.process import diffuse
from mcddpm.diffusion.samplers import MaskedNoise, sample
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.supervised import Supervised
from mcddpm.physics.operator import Operator
from mcddpm.system.seeds import seed_of
from mcddpm.training.settings import Training


@torch.no_grad()
def validate(
    model: Denoiser | Supervised, stream: Stream | WideStream, hyper: Training, device: torch.device
) -> tuple[dict[str, float], list[list[plots.Panel]]]:
    """Mean PSNR (slice range) over fixed slices, and a picture: of zero-filled, one-call mean and mean of samples; of a
    supervised model's image; of a prior, which has nothing to reconstruct from, of noisy scans and denoised ones."""
    count = min(hyper.validation_slices, len(stream.slices))
    chosen = [round(k * (len(stream.slices) - 1) / max(count - 1, 1)) for k in range(count)]
    rows, panels = [], []
    for k, index in enumerate(chosen):
        batch = stream.measure([index], [seed_of(hyper.seed, 4, index)])
        one, A = batch.to(device), batch.A
        truth = A.pinv(batch.y_0)[0].abs()
        images = _supervised(model, one, A) if isinstance(model, Supervised) else _diffusion(model, one, A, hyper)
        std = images.pop("std", None)
        rows.append({name: float(metrics.psnr(image, truth)) for name, image in images.items()})
        if k < 3:
            top = float(truth.max())
            shown = {"truth": truth, **images}
            panels.append([plots.Panel(n.replace("_", " "), image.numpy(), 0, top) for n, image in shown.items()])
            if std is not None:
                panels[-1].append(plots.Panel("std", std.numpy(), 0, None, "magma"))
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}, panels


def _supervised(model: Supervised, one: Batch, A: Operator) -> dict[str, Tensor]:
    image = model(one.y_m, one.mask, A.to(one.y_m.device))[0]
    return {"zero_filled": A.pinv(one.y_m.cpu())[0].abs(), "image": image.abs().cpu()}


def _diffusion(model: Denoiser, one: Batch, A: Operator, hyper: Training) -> dict[str, Tensor]:
    device, schedule = one.y_m.device, model.schedule.to("cpu")
    there = A.to(device)
    if not one.mask.any():  # a prior
        t = schedule.time_of(model.data_std / model.gain)
        y = diffuse(one.y_c, MaskedNoise(one.y_c, one.mask, [0])(), t.to(device), one.mask, model.schedule)
        denoised = model.denoise(y, t.to(device), one.y_m, one.mask, there)
        noisy = y / float(schedule.at(t)[0])
        return {name: A.pinv(v.cpu())[0].abs() for name, v in (("noisy", noisy), ("denoised", denoised))}

    def draw(sampler: str, seeds: range) -> Tensor:
        y = sample(
            model.conditioned(one.y_m, one.mask, there, one.noise),
            one.y_m.masked_fill(~one.known, 0),
            one.known,
            schedule,
            grid=model.grid(hyper.validation_steps, noise=one.noise),
            seeds=seeds,
            sampler=sampler,
            around=one.y_m if one.noise.any() else None,
        )
        return A.pinv(y.cpu()).abs()

    draws = draw("dpmpp_2m_sde", range(max(hyper.validation_samples, 2)))
    images = {"zero_filled": A.pinv(one.y_m.cpu())[0].abs(), "mean": draws.mean(0), "std": draws.std(0)}
    if model.parameterisation == "denoised":  # at T an eps-network's error is multiplied by bar_beta / bar_alpha
        images["one_call"] = draw("mean", range(1))[0]
    return images
