"""Algorithm 1 with all that a long run needs: EMA, warm-up and decay, checkpoints, resume, several processes.

`train(settings, run)` starts a run or goes on where its newest checkpoint left it: bit for bit on a CPU, as every
example, mask, time and noise is decided by the seed and its position alone. Under `torchrun` each process takes its
share of every batch. It prints nothing: a `Report` is told.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from mcddpm import checkpoint, config, feed, figures, logbook, runtime
from mcddpm.config import Config
from mcddpm.denoiser import Denoiser
from mcddpm.diffusion import diffuse, l_simple
from mcddpm.operators import Sense
from mcddpm.samplers import MaskedNoise
from mcddpm.validation import validate

# What may change between the stretches of a run; everything else defines the model or its data.
CHANGEABLE = {"data.validation", "data.description", "data.licence"} | {
    f"training.{key}"
    for key in (
        *(
            "lr",
            "final_lr",
            "warmup",
            "clip",
            "weight_decay",
            "init",
            "steps",
            "accumulate",
            "device",
            "precision",
            "compile",
            "log_every",
            "checkpoint_every",
        ),
        *("checkpoint_minutes", "validate_every", "validation_slices", "validation_samples", "validation_steps"),
    )
}
SIGMA_EDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Report(Protocol):
    """Who is told how the run goes."""

    def say(self, text: str) -> None: ...
    def step(self, step: int, steps: int, loss: float, images_per_second: float) -> None: ...


class Stopped(Exception):
    """A signal ended the run after a checkpoint."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name} at step {step}; the same command goes on from there"
        )
        self.number = number


class Diverged(ValueError):
    """The loss is no longer a number."""


class Quiet:
    """A report to nobody."""

    def say(self, text: str) -> None: ...
    def step(self, step: int, steps: int, loss: float, images_per_second: float) -> None: ...


# --- the run --------------------------------------------------------------------------------------------------------


def train(settings: Config, run: Path, report: Report | None = None) -> Path:
    """Train until `training.steps`; returns the folder of the exported model (EMA weights)."""
    device = runtime.device_of(settings.training.device)
    with runtime.processes(device) as (rank, world):
        trainer = Trainer(settings, run, (report or Quiet()) if rank == 0 else Quiet(), device, rank, world)
        trainer.resume()
        with runtime.signals() as caught:
            trainer.loop(caught)
        return trainer.export()


class Trainer:
    """The state of a run and one step of it."""

    def __init__(
        self,
        settings: Config,
        run: Path,
        report: Report,
        device: torch.device | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.settings, self.run, self.report, self.rank, self.world = settings, run, report, rank, world
        hyper = settings.training
        self.share = _share(hyper, world)
        self.device = device or torch.device("cpu")
        self.autocast = _autocast(hyper.precision, self.device)
        runtime.claim(run, rank)
        self.train_slices = feed.open_slices(settings, settings.data.train, 1)
        self.stream = feed.stream_of(settings, self.train_slices, augment=True)
        if settings.operator.kind != "radon" and not self.train_slices.is_complex and not settings.simulation.phase:
            report.say(
                f"{self.train_slices.name} is real-valued: its k-space is Hermitian, which makes the problem easier "
                "than a scan is; give it a phase"
            )
        self.data_sha256 = self.train_slices.sha256
        self.validation = self._validation_stream()
        self.sense = self.stream.A.to(self.device) if isinstance(self.stream.A, Sense) else None
        torch.manual_seed(hyper.seed)
        self.card = checkpoint.card_of(settings, self.train_slices.shape)
        model = checkpoint.build(self.card)
        assert isinstance(model, Denoiser)
        self.model = model.to(self.device)
        runtime.check_space(run, 16 * sum(p.numel() for p in model.parameters()))
        self.ema = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=hyper.lr, weight_decay=hyper.weight_decay)
        self.step = 0
        self.loss_by_sigma = torch.zeros(2, len(SIGMA_EDGES) + 1, dtype=torch.float64)  # sums, counts
        self.grad_norm = 0.0
        self._forward = self._wrap()

    def _start_from(self, path: str) -> None:
        """Begin with the weights of another model, if it is of the same kind."""
        card, weights = checkpoint.describe(path)
        for key in ("kind", "parameterisation", "schedule", "operator"):
            ours, theirs = self.card[key], card[key]
            if key == "operator" and ours["kind"] == theirs["kind"] != "radon":
                continue  # any size will do
            if ours != theirs:
                raise ValueError(f"training.init {path} is a model with another {key}: {theirs}, expected {ours}")
        checkpoint.load_weights(self.model.network, weights, Path(path))
        self.ema.network.load_state_dict(self.model.network.state_dict())

    def _validation_stream(self) -> feed.Stream | None:
        """Opened at the start and on every process, so that a mistake in it stops the run before it has begun."""
        hyper = self.settings.training
        if not self.settings.data.validation or not hyper.validation_slices:
            return None
        slices = feed.open_slices(self.settings, self.settings.data.validation, 2)
        if self.settings.operator.kind != "fourier" and slices.shape != self.train_slices.shape:
            raise ValueError(f"{slices.name} has slices of {slices.shape}, those to train on {self.train_slices.shape}")
        return feed.stream_of(self.settings, slices)

    def _wrap(self) -> Any:
        choice = self.settings.training.compile
        if choice not in ("auto", "on", "off"):
            raise ValueError(f"training.compile is {choice!r}, expected one of: auto, on, off")
        if choice == "on" or (choice == "auto" and self.device.type == "cuda"):
            self.model.network.compile()  # not the FFTs around it, which are complex
        if self.world == 1:
            return self.model
        return DistributedDataParallel(self.model, device_ids=[self.device] if self.device.type == "cuda" else None)

    # One step.

    def draw_times(self) -> Tensor:
        """A time for each example of the whole batch, spread evenly over the distribution and shifted at random."""
        hyper, schedule = self.settings.training, self.model.schedule
        shift = np.random.RandomState(feed.seed_of(hyper.seed, 2, self.step)).uniform()
        u = (torch.arange(hyper.batch, dtype=torch.float64) / hyper.batch + shift) % 1
        if hyper.times == "uniform":
            return (u * schedule.T).floor() + 1
        sigma = torch.exp(hyper.log_sigma_mean + hyper.log_sigma_std * torch.special.ndtri(u.clamp(1e-6, 1 - 1e-6)))
        schedule = schedule.to("cpu")
        sigma = (sigma / self.model.gain).clamp(float(schedule.sigma[0]) / 10, float(schedule.sigma[-1]))
        return schedule.time_of(sigma)

    def examples(self) -> Iterator[tuple[feed.Batch, Tensor, Tensor]]:
        """This process's part of the batch, in `accumulate` pieces: measurements, times, noise."""
        hyper = self.settings.training
        times, size = self.draw_times(), self.share // hyper.accumulate
        for piece in range(hyper.accumulate):
            first = self.rank * self.share + piece * size
            positions = [self.step * hyper.batch + first + k for k in range(size)]
            batch = self.stream.batch(positions)
            seeds = [feed.seed_of(hyper.seed, 3, position) for position in positions]
            yield batch, times[first : first + size], MaskedNoise(batch.y_c, batch.mask, seeds)()

    def loss(self, batch: feed.Batch, t: Tensor, eps: Tensor) -> Tensor:
        """L_simple a slice, (B,). `denoised` with lognormal sigma: times 1 + (sigma / s)^2, to weigh levels alike."""
        y_m, y_c, mask, t, eps = (
            v.to(self.device, non_blocking=True) for v in (batch.y_m, batch.y_c, batch.mask, t, eps)
        )
        y_t = diffuse(y_c, eps, t, mask, self.model.schedule)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            prediction = self._forward(y_t, t, y_m, mask, self.sense)
        kind = self.model.parameterisation
        loss = l_simple(prediction, y_c, eps, t, mask, self.model.schedule, kind)
        if kind == "denoised" and self.settings.training.times == "lognormal":
            bar_alpha, bar_beta = self.model.schedule.at(t)
            sigma = self.model.gain * bar_beta / bar_alpha
            loss = loss * (1 + (sigma / self.model.data_std).square()).to(loss)
        return loss

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
        bar_alpha, bar_beta = self.model.schedule.to("cpu").at(t)
        level = torch.bucketize(bar_beta / bar_alpha, torch.tensor(SIGMA_EDGES, dtype=torch.float64))
        self.loss_by_sigma[0].index_add_(0, level, loss)
        self.loss_by_sigma[1].index_add_(0, level, torch.ones_like(loss))

    # The loop.

    def loop(self, caught: list[int]) -> None:
        hyper = self.settings.training
        saved_at = spoken_at = time.monotonic()
        spoken_step = self.step
        while self.step < hyper.steps:
            loss = self.advance()
            now = time.monotonic()
            speed = hyper.batch * (self.step - spoken_step) / max(now - spoken_at, 1e-9)
            self.report.step(self.step, hyper.steps, loss, speed)
            last = self.step == hyper.steps
            if self.step % hyper.log_every == 0 or last:
                self._log(speed)
                spoken_at, spoken_step = now, self.step
            if self.step % hyper.validate_every == 0 or last:
                self._validate()
            due = self.step % hyper.checkpoint_every == 0 or now - saved_at > 60 * hyper.checkpoint_minutes
            stop, due = self._agreed(caught[0] if caught else 0, due)
            if due or stop or last:
                self.save()
                saved_at = time.monotonic()
            if stop and not last:
                raise Stopped(self.step, stop)

    def _agreed(self, stop: int, due: bool) -> tuple[int, bool]:
        """The signal that any process got, and whether any finds a checkpoint due: all do the same at the same step."""
        if self.world == 1:
            return stop, due
        flags = torch.tensor([stop, due], device=self.device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        stop, due = flags.tolist()
        return stop, bool(due)

    def _gather_log(self) -> None:
        """Bring the running sums of all processes to the first."""
        if self.world > 1:
            totals = self.loss_by_sigma.to(self.device)
            dist.all_reduce(totals)
            self.loss_by_sigma = totals.cpu() if self.rank == 0 else torch.zeros_like(self.loss_by_sigma)

    def _log(self, speed: float) -> None:
        self._gather_log()
        if self.rank:
            return
        sums, counts = self.loss_by_sigma
        self.loss_by_sigma = torch.zeros_like(self.loss_by_sigma)
        edges = ("0", *(f"{edge:g}" for edge in SIGMA_EDGES), "inf")
        names = [f"{low}-{high}" for low, high in pairwise(edges)]
        by_sigma = {name: s / n for name, s, n in zip(names, sums.tolist(), counts.tolist(), strict=True) if n}
        mean = float(sums.sum() / counts.sum())
        row: dict[str, Any] = {"step": self.step, "loss": mean, "grad_norm": self.grad_norm, "loss_by_sigma": by_sigma}
        row["lr"] = learning_rate(self.settings.training, self.step - 1)
        logbook.append(self.run / "log.jsonl", row)
        logbook.append(self.run / "speed.jsonl", {"step": self.step, "images_per_second": round(speed, 3)})
        self.tensorboard.add({"loss": mean, "lr": row["lr"], "images_per_second": speed, **by_sigma}, self.step)

    def _validate(self) -> None:
        hyper = self.settings.training
        if self.rank or self.validation is None:
            return
        row, panels = validate(self.ema, self.validation, hyper, self.device)
        figures.panels(self.run / "validation" / f"step-{self.step:08d}.png", panels, title=f"step {self.step}")
        logbook.append(self.run / "validation.jsonl", {"step": self.step, **row})
        self.tensorboard.add({f"validation/{key}": value for key, value in row.items()}, self.step)
        values = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in row.items())
        self.report.say(f"step {self.step}: PSNR {values} dB")

    # Checkpoints.

    def save(self) -> None:
        self._gather_log()
        if self.rank:
            return
        state = {f"net.{key}": value for key, value in self.model.network.state_dict().items()}
        for index, values in self.optimiser.state_dict()["state"].items():
            state |= {f"opt.{index}.{key}": value for key, value in values.items()}
        state |= {"rng.torch": torch.get_rng_state(), "log.sums": self.loss_by_sigma}
        if self.device.type == "cuda":
            state["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        notes = {
            "config": config.to_dict(self.settings),
            "position": self.step * self.settings.training.batch,
            "processes": self.world,
            "data_sha256": self.data_sha256,
            "rng": runtime.random_states(),
        }
        card = self.card | {"step": self.step, "data_sha256": self.data_sha256}
        checkpoint.save_training(self.run, self.step, self.ema.network.state_dict(), card, state, notes)

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one; refuse a configuration that is not this run's."""
        folder = self._newest()
        if folder is None:
            if self.settings.training.init:
                self._start_from(self.settings.training.init)
            self._ready()
            return
        notes, state, ema = checkpoint.load_training(folder)
        self._compare(notes["config"], folder)
        if notes["data_sha256"] != self.data_sha256:
            raise ValueError(f"{self.train_slices.name} is not what {self.run} was trained on: its sha256 has changed")
        checkpoint.load_weights(self.model.network, _part(state, "net."), folder / "training.safetensors")
        checkpoint.load_weights(self.ema.network, ema, folder / "model.safetensors")
        packed = self.optimiser.state_dict()
        packed["state"] = {}
        for key, value in _part(state, "opt.").items():
            index, name = key.split(".", 1)
            packed["state"].setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict(packed)
        torch.set_rng_state(state["rng.torch"])
        if "rng.cuda" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["rng.cuda"], self.device)
        runtime.set_random_states(notes["rng"])
        self.step = notes["step"]
        if self.rank == 0:
            self.loss_by_sigma = state["log.sums"]
        self._ready()
        self.report.say(f"going on from step {self.step} ({folder})")
        if notes["processes"] != self.world:
            self.report.say(
                f"{notes['processes']} processes before, {self.world} now: slices, masks, times and noise stay the "
                "same; gradients are summed in another order and dropout differs, so weights will not be bit-identical"
            )

    def _write_manifest(self) -> None:
        """All that the run is made of, so that it can be repeated: its configuration, and its data by hash."""
        data = {"train": self.train_slices} | ({"validation": self.validation.slices} if self.validation else {})
        content = {
            "config": config.to_dict(self.settings),
            "data": {
                k: {"name": s.name, "sha256": s.sha256, "slices": len(s), "shape": s.shape} for k, s in data.items()
            },
            "made_by": self.card["made_by"],
        }
        part = self.run / ".manifest.json.part"
        part.write_text(json.dumps(content, indent=1) + "\n")
        part.replace(self.run / "manifest.json")

    def _newest(self) -> Path | None:
        """The checkpoint to go on from: the first process decides for all, and sets torn ones aside."""
        found: list[Path | None] = [checkpoint.newest_whole(self.run) if self.rank == 0 else None]
        if self.rank == 0 and found[0] is not None:
            checkpoint.set_torn_aside(self.run, found[0])
        if self.world > 1:
            dist.broadcast_object_list(found)
        return found[0]

    def _ready(self) -> None:
        """What was logged beyond this step is forgotten. Processes after the first draw dropout of their own."""
        if self.rank == 0:
            logbook.forget_after(self.run, self.step)
            self._write_manifest()
            self.tensorboard = logbook.Tensorboard(self.run, self.step)
        else:
            torch.manual_seed(feed.seed_of(self.settings.training.seed, 6, self.rank, self.step))

    def _compare(self, old: dict[str, Any], folder: Path) -> None:
        known = config.to_dict(config.from_dict(Config, old))  # keys that came later have their defaults
        changed = config.differences(known, config.to_dict(self.settings))
        refused = [f"{key} was {a!r}, is {b!r}" for key, (a, b) in changed.items() if key not in CHANGEABLE]
        if refused:
            raise ValueError(f"{self.run} is a run with another configuration: {'; '.join(refused)}. Use another --out")
        for key, (a, b) in changed.items():
            self.report.say(f"{key} was {a!r}, is {b!r} from here on")

    def export(self) -> Path:
        folder = self.run / "model"
        if self.rank == 0:
            checkpoint.replace_model(folder, self.ema.network.state_dict(), self.card | {"step": self.step})
        return folder


# --- pieces ---------------------------------------------------------------------------------------------------------


def learning_rate(hyper: config.Training, step: int) -> float:
    """A linear rise over `warmup` steps, then half a cosine down to `final_lr` at `steps`."""
    if step < hyper.warmup:
        return hyper.lr * (step + 1) / hyper.warmup
    part = min((step - hyper.warmup) / max(hyper.steps - hyper.warmup, 1), 1.0)
    return hyper.final_lr + (hyper.lr - hyper.final_lr) * (1 + math.cos(math.pi * part)) / 2


def _share(hyper: config.Training, world: int) -> int:
    for name in ("steps", "batch", "accumulate", "log_every", "checkpoint_every", "validate_every", "validation_steps"):
        if getattr(hyper, name) < 1:
            raise ValueError(f"training.{name} is {getattr(hyper, name)}, expected 1 or more")
    if hyper.times not in ("uniform", "lognormal"):
        raise ValueError(f"training.times is {hyper.times!r}, expected one of: uniform, lognormal")
    if hyper.batch % (world * hyper.accumulate):
        raise ValueError(
            f"training.batch {hyper.batch} does not divide into {world} processes x {hyper.accumulate} accumulations"
        )
    return hyper.batch // world


def _autocast(choice: str, device: torch.device) -> bool:
    if choice not in ("auto", "float32", "bfloat16"):
        raise ValueError(f"training.precision is {choice!r}, expected one of: auto, float32, bfloat16")
    if choice == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return choice == "bfloat16"


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
