"""What is learned: to denoise (Algorithm 1), or, for the paper's baseline, to complete a zero-filled image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mcddpm.data.examples import Batch
from mcddpm.diffusion.process import diffuse, l_simple
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.supervised import Supervised
from mcddpm.physics.sense import gain_of
from mcddpm.system.seeds import seed_of
from mcddpm.training.settings import Training

Forward = Callable[..., Tensor]


class Objective(Protocol):
    """`batch`, `t` and `eps` are on the model's device; t: (B,)."""

    def times(self, step: int) -> Tensor: ...
    def predict(self, forward: Forward, batch: Batch, t: Tensor, eps: Tensor) -> Tensor: ...
    def loss(self, prediction: Tensor, batch: Batch, t: Tensor, eps: Tensor) -> Tensor: ...
    def sigma(self, t: Tensor) -> Tensor: ...


class Diffusion:
    """L_simple at times that are uniform in t or lognormal in sigma."""

    def __init__(self, hyper: Training, model: Denoiser) -> None:
        self.hyper, self.model = hyper, model

    def times(self, step: int) -> Tensor:
        """A time for each example of the whole batch, spread evenly over the distribution and shifted at random."""
        hyper, schedule = self.hyper, self.model.schedule.to("cpu")
        shift = np.random.RandomState(seed_of(hyper.seed, 2, step)).uniform()
        u = (torch.arange(hyper.batch, dtype=torch.float64) / hyper.batch + shift) % 1
        if hyper.times == "uniform":
            return (u * schedule.T).floor() + 1
        sigma = torch.exp(hyper.log_sigma_mean + hyper.log_sigma_std * torch.special.ndtri(u.clamp(1e-6, 1 - 1e-6)))
        sigma = (sigma / self.model.gain).clamp(float(schedule.sigma[0]) / 10, float(schedule.sigma[-1]))
        return schedule.time_of(sigma)

    def predict(self, forward: Forward, batch: Batch, t: Tensor, eps: Tensor) -> Tensor:
        y_t = diffuse(batch.y_c, eps, t, batch.known, self.model.schedule)
        return forward(y_t, t, batch.y_m, batch.mask, batch.A, batch.noise)

    def loss(self, prediction: Tensor, batch: Batch, t: Tensor, eps: Tensor) -> Tensor:
        """A slice's, (B,). `denoised` with lognormal sigma: times 1 + (sigma / s)^2, to weigh levels alike. With
        noise, of several coils, whose entries share the error of an image: times their number."""
        kind, schedule = self.model.parameterisation, self.model.schedule
        loss = l_simple(prediction, batch.y_c, eps, t, batch.known, schedule, kind)
        if kind == "denoised" and self.hyper.times == "lognormal":
            bar_alpha, bar_beta = schedule.at(t)
            gain = torch.as_tensor(self.model.gain * gain_of(batch.A)).flatten().to(bar_beta)
            sigma = gain * bar_beta / bar_alpha
            loss = loss * (1 + (sigma / self.model.data_std).square()).to(loss)
            if self.model.knows_noise and prediction.ndim == 4:
                loss = loss * prediction.shape[1]
        return loss

    def sigma(self, t: Tensor) -> Tensor:
        bar_alpha, bar_beta = self.model.schedule.to("cpu").at(t)
        return bar_beta / bar_alpha


class Regression:
    """Mean squared error of the image, over pixels and over real and imaginary parts."""

    def __init__(self, hyper: Training) -> None:
        self.batch = hyper.batch

    def times(self, step: int) -> Tensor:
        return torch.zeros(self.batch, dtype=torch.float64)

    def predict(self, forward: Forward, batch: Batch, t: Tensor, eps: Tensor) -> Tensor:
        return forward(batch.y_m, batch.mask, batch.A)

    def loss(self, prediction: Tensor, batch: Batch, t: Tensor, eps: Tensor) -> Tensor:
        error = (prediction - batch.A.pinv(batch.y_0)).abs().square().flatten(1).mean(1)
        return error / 2 if prediction.is_complex() else error

    def sigma(self, t: Tensor) -> Tensor:
        return t


def objective_of(hyper: Training, model: Denoiser | Supervised) -> Objective:
    return Diffusion(hyper, model) if isinstance(model, Denoiser) else Regression(hyper)
