"""A model, its EMA and its optimiser, and one step of them (Algorithm 1 is in `losses.py`).

Every example, mask, time and noise of a step is decided by the seed and its position alone, so that any process can
make its share of a batch, and `run.py` can go on from any step. It prints nothing: a `Progress` is told.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from mcddpm.data.examples import Batch
from mcddpm.diffusion.samplers import MaskedNoise
from mcddpm.models.card import ModelCard, SpectrumOf
from mcddpm.models.denoiser import Spectrum
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import measured_rms
from mcddpm.system import files
from mcddpm.system.processes import Share
from mcddpm.system.progress import Progress, Quiet, note
from mcddpm.system.seeds import seed_of
from mcddpm.training.losses import objective_of
from mcddpm.training.optimisers import optimiser_of
from mcddpm.training.settings import Config, Training
from mcddpm.training.setup import card_of, stream_of, training_slices

SIGMA_EDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Diverged(ValueError):
    """The loss is no longer a number."""


class Trainer:
    """The state of a training and one step of it: `advance`."""

    def __init__(
        self,
        settings: Config,
        run: Path,
        progress: Progress | None = None,
        device: torch.device | None = None,
        share: Share | None = None,
    ) -> None:
        self.settings, self.run, self.progress = settings, run, progress or Quiet()
        self.rank, self.world = (share or Share()).rank, (share or Share()).world
        hyper = settings.training
        self.share = _share(hyper, self.world)
        self.device = device or torch.device("cpu")
        self.autocast = _autocast(hyper.precision, self.device)
        if self.rank == 0:
            files.check_writable(run)
        self.train_slices = training_slices(settings)
        self.stream = stream_of(settings, self.train_slices, augment=True, strip=hyper.strip)
        if settings.operator.kind != "radon" and not self.train_slices.is_complex and not settings.simulation.phase:
            message = "its k-space is Hermitian, which makes the problem easier than a scan is; give it a phase"
            self.progress.say(note(f"{self.train_slices.name} is real-valued: {message}"))
        if hyper.strip and settings.model.spectrum and settings.model.parameterisation == "denoised":
            raise ValueError("a strip has another spectrum than its slice: training.strip needs model.spectrum = false")
        self.data_sha256 = self.train_slices.sha256
        torch.manual_seed(hyper.seed)
        self.card = self._seen(card_of(settings, self.train_slices.shape))
        model = self.card.build()
        self.model = model.to(self.device)
        self.objective = objective_of(hyper, model)
        files.check_space(run, 16 * sum(p.numel() for p in model.parameters()))
        self.ema = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.optimiser = optimiser_of(hyper.optimiser, self.model.parameters(), hyper.lr, hyper.weight_decay)
        self.step = 0
        self.loss_by_sigma = torch.zeros(2, len(SIGMA_EDGES) + 1, dtype=torch.float64)  # sums, counts
        self.grad_norm = 0.0
        self._forward = self._wrap()

    def _seen(self, card: ModelCard) -> ModelCard:
        """With what the first examples tell of all: the range of `measured_rms`, by which a foreign scan is recognised,
        and the spectrum of k-space."""
        whole = stream_of(self.settings, self.train_slices, augment=True)
        energies, images = [], []
        for batch in whole.typical(64):
            images.append(batch.A.pinv(batch.y_0))
            energies += measured_rms(batch.A.pinv(batch.y_m) if batch.mask.any() else images[-1])
        card = replace(card, measured_rms=(round(min(energies), 5), round(max(energies), 5)))
        choice = self.settings.model
        wanted = choice.kind == "denoiser" and choice.spectrum and choice.parameterisation == "denoised"
        if not wanted or not images[0].is_complex():
            return card
        spectrum = Spectrum.of(Fourier()(torch.cat(images)))
        return replace(card, spectrum=SpectrumOf(tuple(spectrum.std.tolist()), spectrum.shape))

    def _wrap(self) -> Any:
        choice = self.settings.training.compile
        if choice == "on" or (choice == "auto" and self.device.type == "cuda"):
            self.model.network.compile()  # not the FFTs around it, which are complex
        if self.world == 1:
            return self.model
        return DistributedDataParallel(self.model, device_ids=[self.device] if self.device.type == "cuda" else None)

    # One step.

    def examples(self) -> Iterator[tuple[Batch, Tensor, Tensor]]:
        """This process's part of the batch, in `accumulate` pieces: measurements, times, noise."""
        hyper = self.settings.training
        times, size = self.objective.times(self.step), self.share // hyper.accumulate
        for piece in range(hyper.accumulate):
            first = self.rank * self.share + piece * size
            positions = [self.step * hyper.batch + first + k for k in range(size)]
            batch = self.stream.batch(positions)
            seeds = [seed_of(hyper.seed, 3, position) for position in positions]
            yield batch, times[first : first + size], MaskedNoise(batch.y_c, batch.known, seeds)()

    def loss(self, batch: Batch, t: Tensor, eps: Tensor) -> Tensor:
        """A slice's, (B,)."""
        batch, (t, eps) = batch.to(self.device), (v.to(self.device, non_blocking=True) for v in (t, eps))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            prediction = self.objective.predict(self._forward, batch, t, eps)
        return self.objective.loss(prediction, batch, t, eps)

    def advance(self) -> float:
        """One optimiser step. Returns the mean loss of this process's part."""
        hyper = self.settings.training
        for group in self.optimiser.param_groups:
            group["lr"], group["weight_decay"] = learning_rate(hyper, self.step), hyper.weight_decay
        self.optimiser.zero_grad(set_to_none=True)
        losses, slices, times = [], [], []
        for piece, (batch, t, eps) in enumerate(self.examples()):
            last = piece == hyper.accumulate - 1
            with contextlib.nullcontext() if last or self.world == 1 else self._forward.no_sync():
                loss = self.loss(batch, t, eps)
                (loss.mean() / hyper.accumulate).backward()
            losses.append(loss.detach())
            slices += batch.slices
            times.append(t)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), hyper.clip)
        loss, t = torch.cat(losses).double().cpu(), torch.cat(times)
        self._check(loss, float(norm), slices, t)
        self.optimiser.step()
        self._average()
        self._count(loss, t)
        self.grad_norm = float(norm)
        self.step += 1
        return float(loss.mean())

    def _check(self, loss: Tensor, norm: float, slices: list[int], t: Tensor) -> None:
        if torch.isfinite(loss).all() and math.isfinite(norm):
            return
        raise Diverged(
            f"the loss is {float(loss.mean())} and the gradient's norm {norm} at step {self.step}; slices {slices}, "
            f"t {[round(x, 2) for x in t.tolist()]}. The last checkpoint is kept. Try a lower training.lr, a longer "
            "training.warmup or training.precision=float32, and look at these slices"
        )

    @torch.no_grad()
    def _average(self) -> None:
        """EMA with a warm-up: early on it follows the weights, or it would be an average of noise."""
        decay = min(self.settings.training.ema, (1 + self.step) / (10 + self.step))
        ours: list[Tensor] = list(self.ema.parameters())
        torch._foreach_lerp_(ours, list[Tensor](self.model.parameters()), 1 - decay)

    def _count(self, loss: Tensor, t: Tensor) -> None:
        level = torch.bucketize(self.objective.sigma(t), torch.tensor(SIGMA_EDGES, dtype=torch.float64))
        self.loss_by_sigma[0].index_add_(0, level, loss)
        self.loss_by_sigma[1].index_add_(0, level, torch.ones_like(loss))


# --- pieces ---------------------------------------------------------------------------------------------------------


def learning_rate(hyper: Training, step: int) -> float:
    """A linear rise over `warmup` steps, then half a cosine down to `final_lr` at `steps`."""
    if step < hyper.warmup:
        return hyper.lr * (step + 1) / hyper.warmup
    part = min((step - hyper.warmup) / max(hyper.steps - hyper.warmup, 1), 1.0)
    return hyper.final_lr + (hyper.lr - hyper.final_lr) * (1 + math.cos(math.pi * part)) / 2


def _share(hyper: Training, world: int) -> int:
    for name in ("steps", "batch", "accumulate", "log_every", "checkpoint_every", "validate_every", "validation_steps"):
        if getattr(hyper, name) < 1:
            raise ValueError(f"training.{name} is {getattr(hyper, name)}, expected 1 or more")
    if hyper.batch % (world * hyper.accumulate):
        raise ValueError(
            f"training.batch {hyper.batch} does not divide into {world} processes x {hyper.accumulate} accumulations"
        )
    return hyper.batch // world


def _autocast(choice: str, device: torch.device) -> bool:
    if choice == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return choice == "bfloat16"
