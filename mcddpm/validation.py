"""How good a model is on slices it was not trained on, while it trains: PSNR and a picture."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mcddpm import feed, figures, metrics
from mcddpm.config import Training
from mcddpm.denoiser import Denoiser
from mcddpm.operators import Sense
from mcddpm.samplers import sample


@torch.no_grad()
def validate(
    model: Denoiser, stream: feed.Stream, hyper: Training, device: torch.device
) -> tuple[dict[str, float], list[list[figures.Panel]]]:
    """Mean PSNR (slice range) of zero-filled, one-call mean and mean of samples over fixed slices, and a picture."""
    count = min(hyper.validation_slices, len(stream.slices))
    chosen = [round(k * (len(stream.slices) - 1) / max(count - 1, 1)) for k in range(count)]
    batch = stream.measure(chosen, [feed.seed_of(hyper.seed, 4, index) for index in chosen])
    A, schedule = stream.A, model.schedule.to("cpu")
    sense = A.to(device) if isinstance(A, Sense) else None
    grid = model.grid(hyper.validation_steps)
    rows, panels = [], []
    for k in range(count):
        y_m, mask = batch.y_m[k : k + 1].to(device), batch.mask[k : k + 1].to(device)
        truth = A.pinv(batch.y_m[k] + batch.y_c[k]).abs()

        def draw(sampler: str, seeds: range, y_m: Tensor = y_m, mask: Tensor = mask) -> Tensor:
            many = y_m.expand(len(seeds), *y_m.shape[1:])
            y = sample(
                lambda y, t: model.denoise(y, t, many, mask, sense),
                y_m,
                mask,
                schedule,
                grid=grid,
                seeds=seeds,
                sampler=sampler,
            )
            return A.pinv(y.cpu()).abs()

        draws = draw("dpmpp_2m_sde", range(max(hyper.validation_samples, 2)))
        images = {"zero_filled": A.pinv(batch.y_m[k]).abs(), "mean": draws.mean(0)}
        if model.parameterisation == "denoised":  # at T an eps-network's error is multiplied by bar_beta / bar_alpha
            images["one_call"] = draw("mean", range(1))[0]
        rows.append({name: float(metrics.psnr(image, truth)) for name, image in images.items()})
        if k < 3:
            top = float(truth.max())
            shown = {"truth": truth, **images}
            panels.append(
                [figures.Panel(name.replace("_", " "), image.numpy(), 0, top) for name, image in shown.items()]
            )
            panels[-1].append(figures.Panel("std", draws.std(0).numpy(), 0, None, "magma"))
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}, panels
