"""A training run on disk: the loop, its log, validation, checkpoints, and going on where the last stretch ended.

`train(settings, folder)` starts a run or continues it, bit for bit on a CPU. Signals end it after a checkpoint; under
`torchrun` all processes stop, save and resume at the same step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mcddpm import plots
from mcddpm.data.examples import Stream
from mcddpm.data.wide_examples import WideStream
from mcddpm.models.card import ModelCard
from mcddpm.models.store import load_weights, model_folder, newest_whole, read_model, save_model
from mcddpm.system import files, processes, seeds
from mcddpm.system.progress import Progress, note
from mcddpm.system.seeds import seed_of
from mcddpm.system.settings import differences, from_dict, to_dict
from mcddpm.training import log
from mcddpm.training.checkpoints import load_training, save_training, set_torn_aside
from mcddpm.training.settings import Config, Training
from mcddpm.training.setup import stream_of, validation_slices
from mcddpm.training.trainer import SIGMA_EDGES, Trainer, learning_rate
from mcddpm.training.validation import validate

# What may change between the stretches of a run; everything else defines the model or its data.
DEFINING = {"optimiser", "ema", "times", "log_sigma_mean", "log_sigma_std", "seed"}
CHANGEABLE = {"data.validation", "data.description", "data.licence"} | {
    f"training.{f.name}" for f in dataclasses.fields(Training) if f.name not in DEFINING
}


class Stopped(Exception):
    """A signal ended the run after a checkpoint."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name} at step {step}; the same command goes on from there"
        )
        self.number = number


def train(settings: Config, run: Path, progress: Progress | None = None) -> Path:
    """Train until `training.steps`; returns the folder of the exported model (EMA weights)."""
    device = processes.device_of(settings.training.device)
    with processes.group(device) as share:
        here = Run(settings, run, progress if share.rank == 0 else None, device, share)
        here.resume()
        with processes.signals() as caught:
            here.loop(caught)
        return here.export()


class Run(Trainer):
    """A training that lives in a folder."""

    def loop(self, caught: list[int]) -> None:
        hyper = self.settings.training
        saved_at = spoken_at = time.monotonic()
        spoken_step = self.step
        while self.step < hyper.steps:
            loss = self.advance()
            now = time.monotonic()
            speed = hyper.batch * (self.step - spoken_step) / max(now - spoken_at, 1e-9)
            self.progress.at(self.step, hyper.steps, f"loss {loss:.4f}  {speed:.1f} images/s")
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
        log.append(self.run / "log.jsonl", row)
        log.append(self.run / "speed.jsonl", {"step": self.step, "images_per_second": round(speed, 3)})
        self.tensorboard.add({"loss": mean, "lr": row["lr"], "images_per_second": speed, **by_sigma}, self.step)

    def _validate(self) -> None:
        hyper = self.settings.training
        if self.rank or self.validation is None:
            return
        row, panels = validate(self.ema, self.validation, hyper, self.device)
        plots.panels(self.run / "validation" / f"step-{self.step:08d}.png", panels, title=f"step {self.step}")
        self._keep_best(row)
        log.append(self.run / "validation.jsonl", {"step": self.step, **row, "on": self._validated_on()})
        self.tensorboard.add({f"validation/{key}": value for key, value in row.items()}, self.step)
        values = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in row.items())
        self.progress.say(note(f"step {self.step}: PSNR {values} dB"))

    def _keep_best(self, row: dict[str, float]) -> None:
        """RUN/best is the model of the highest PSNR so far, validated as it is now: long training may overfit."""
        name = next(name for name in ("mean", "image", "denoised") if name in row)
        rows = log.rows(self.run / "validation.jsonl")
        alike = [earlier[name] for earlier in rows if earlier.get("on") == self._validated_on()]
        if row[name] > max(alike, default=-math.inf):
            save_model(self.run / "best", self.ema.network.state_dict(), self._card_now(), fresh=False)

    def _validated_on(self) -> str:
        """What may change between the stretches of a run and makes PSNR another: slices, and how they are drawn."""
        hyper = self.settings.training
        assert self.validation is not None
        how = (self.validation.slices.sha256, hyper.validation_slices, hyper.validation_samples, hyper.validation_steps)
        return hashlib.sha256(repr(how).encode()).hexdigest()[:8]

    # Checkpoints.

    def _card_now(self) -> ModelCard:
        return dataclasses.replace(self.card, step=self.step, data_sha256=self.data_sha256)

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
            "config": to_dict(self.settings),
            "position": self.step * self.settings.training.batch,
            "processes": self.world,
            "data_sha256": self.data_sha256,
            "rng": seeds.random_states(),
        }
        save_training(self.run, self.step, self.ema.network.state_dict(), self._card_now(), state, notes)

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one; refuse a configuration that is not this run's."""
        self.validation = self._validation_stream()
        folder = self._newest()
        if folder is None:
            if self.settings.training.init:
                self._start_from(self.settings.training.init)
            self._ready()
            return
        notes, state, ema = load_training(folder)
        self._compare(notes["config"], folder)
        if notes["data_sha256"] != self.data_sha256:
            raise ValueError(f"{self.train_slices.name} is not what {self.run} was trained on: its sha256 has changed")
        load_weights(self.model.network, _part(state, "net."), folder / "training.safetensors")
        load_weights(self.ema.network, ema, folder / "model.safetensors")
        packed = self.optimiser.state_dict()
        packed["state"] = {}
        for key, value in _part(state, "opt.").items():
            index, name = key.split(".", 1)
            packed["state"].setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict(packed)
        torch.set_rng_state(state["rng.torch"])
        if "rng.cuda" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["rng.cuda"], self.device)
        seeds.set_random_states(notes["rng"])
        self.step = notes["step"]
        if self.rank == 0:
            self.loss_by_sigma = state["log.sums"]
        self._ready()
        self.progress.say(note(f"going on from step {self.step} ({folder})"))
        if notes["processes"] != self.world:
            message = (
                f"{notes['processes']} processes before, {self.world} now: slices, masks, times and noise stay the same"
            )
            why = "gradients are summed in another order and dropout differs, so weights will not be bit-identical"
            self.progress.say(note(f"{message}; {why}"))

    def _write_manifest(self) -> None:
        """All that the run is made of, so that it can be repeated: its configuration, and its data by hash."""
        data = {"train": self.train_slices} | ({"validation": self.validation.slices} if self.validation else {})
        content = {
            "config": to_dict(self.settings),
            "data": {
                k: {"name": s.name, "sha256": s.sha256, "slices": len(s), "shape": s.shape} for k, s in data.items()
            },
            "made_by": self.card.made_by,
        }
        files.write_json(self.run / "manifest.json", content)

    def _newest(self) -> Path | None:
        """The checkpoint to go on from: the first process decides for all, and sets torn ones aside."""
        result: list[Path | None] = [newest_whole(self.run) if self.rank == 0 else None]
        if self.rank == 0 and result[0] is not None:
            set_torn_aside(self.run, result[0])
        if self.world > 1:
            dist.broadcast_object_list(result)
        return result[0]

    def _ready(self) -> None:
        """What was logged beyond this step is forgotten. Processes after the first draw dropout of their own."""
        if self.rank == 0:
            log.forget_after(self.run, self.step)
            self._write_manifest()
            self.tensorboard = log.Tensorboard(self.run, self.step)
        else:
            torch.manual_seed(seed_of(self.settings.training.seed, 6, self.rank, self.step))

    def _compare(self, old: dict[str, Any], folder: Path) -> None:
        known = to_dict(from_dict(Config, old))  # keys that came later have their defaults
        changed = differences(known, to_dict(self.settings))
        refused = [f"{key} was {a!r}, is {b!r}" for key, (a, b) in changed.items() if key not in CHANGEABLE]
        if refused:
            raise ValueError(f"{self.run} is a run with another configuration: {'; '.join(refused)}. Use another --out")
        for key, (a, b) in changed.items():
            self.progress.say(note(f"{key} was {a!r}, is {b!r} from here on"))

    def export(self) -> Path:
        folder = self.run / "model"
        if self.rank == 0:
            card = dataclasses.replace(self.card, step=self.step)
            save_model(folder, self.ema.network.state_dict(), card, fresh=False)
        return folder

    def _validation_stream(self) -> Stream | WideStream | None:
        """Opened at the start and on every process, so that a mistake in it stops the run before it has begun."""
        hyper = self.settings.training
        if not self.settings.data.validation or not hyper.validation_slices:
            return None
        slices = validation_slices(self.settings)
        if self.settings.operator.kind != "fourier" and slices.shape != self.train_slices.shape:
            raise ValueError(f"{slices.name} has slices of {slices.shape}, those to train on {self.train_slices.shape}")
        return stream_of(self.settings, slices)

    def _start_from(self, path: str) -> None:
        """Begin with the weights of another model, if it is of the same kind."""
        card, weights = read_model(model_folder(path))
        for key in ("kind", "parameterisation", "schedule", "operator"):
            ours, theirs = getattr(self.card, key), getattr(card, key)
            if key == "operator" and ours.kind == theirs.kind != "radon":
                continue  # any size will do
            if ours != theirs:
                raise ValueError(f"training.init {path} is a model with another {key}: {theirs}, expected {ours}")
        own = self.model.network.state_dict()  # what a model without noise is not told changes nothing at first
        weights |= {key: own[key] for key in own if key.startswith("noise.") and key not in weights}
        load_weights(self.model.network, weights, Path(path))
        self.ema.network.load_state_dict(self.model.network.state_dict())


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
