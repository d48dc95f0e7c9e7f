"""A training that takes half a second, and what is asked of it again and again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from mcddpm.system.progress import Notice, Quiet
from mcddpm.system.settings import from_dict
from mcddpm.training import checkpoints
from mcddpm.training.run import Run
from mcddpm.training.settings import Config
from mcddpm.training.trainer import Trainer
from tests.processes import command

SMALL: dict[str, dict[str, Any]] = {
    "data": {"drawn_size": 16, "drawn_slices": 7},
    "mask": {"families": ["random_columns", "equispaced_columns"], "accelerations": [2, 4]},
    "network": {
        "channels": 8,
        "multipliers": [1, 2],
        "attention": [2],
        "heads": 2,
        "patch": 2,
        "groups": 2,
        "dropout": 0.1,
    },
    "training": {
        **{"steps": 20, "batch": 4, "warmup": 3, "log_every": 3, "checkpoint_every": 4, "validate_every": 12},
        **{"validation_slices": 1, "validation_samples": 2, "validation_steps": 2},
    },
}
CASCADE = {"stages": 2, "channels": 8, "multipliers": [1, 2], "patch": 2, "groups": 2, "dropout": 0.1}


def settings(values: dict[str, Any] | None = None, **training: object) -> Config:
    """`SMALL` with other sections (as a whole) and other keys of `training`."""
    chosen = SMALL | (values or {})
    return from_dict(Config, chosen | {"training": {**chosen["training"], **training}})


def as_toml(path: Path, values: dict[str, dict[str, Any]]) -> Path:
    lines = []
    for section, keys in values.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    path.write_text("\n".join(lines))
    return path


class Interrupt(Quiet):
    """Sends a signal to this process once a step is done, and keeps what was said."""

    def __init__(self, at: int = -1, number: int = signal.SIGTERM) -> None:
        self.step, self.number = at, number
        self.said: list[str] = []

    def say(self, notice: Notice) -> None:
        self.said.append(notice.text)

    def at(self, done: float, total: float, what: str = "") -> None:
        if done == self.step:
            os.kill(os.getpid(), self.number)


def killed_train(moment: str, *arguments: str) -> None:
    """`mcddpm train ARGUMENTS` in this process, until it is killed: "between" the checkpoints of steps 12 and 16, or
    "within" the second, of which the first half is written then."""
    if moment == "between":
        advance = Run.advance

        def last(self: Trainer) -> float:
            return os.kill(os.getpid(), signal.SIGKILL) if self.step == 13 else advance(self)  # type: ignore[return-value]

        Run.advance = last  # type: ignore[method-assign]
    else:
        write = checkpoints.write_part

        def half(folder: Path, *rest: Any) -> None:
            if folder.name.endswith("step-00000016"):
                os.kill(os.getpid(), signal.SIGKILL)
            write(folder, *rest)

        checkpoints.write_part = half
    command("train", *arguments)


def final(run: Path) -> dict[str, bytes]:
    """All that must be the same: weights, EMA, optimiser, log."""
    folder = sorted((run / "checkpoints").iterdir())[-1]
    files = [folder / "training.safetensors", folder / "model.safetensors", run / "model" / "model.safetensors"]
    files += [run / "log.jsonl", run / "validation.jsonl"]
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def assert_same_training(one: Path, two: Path, tmp_path: Path) -> None:
    """The weights of two runs differ by less than a thousandth of the way that they have come."""
    begin = Trainer(settings(), tmp_path / "begin").model.network.state_dict()
    start, a, b = (
        torch.cat([weights[key].flatten() for key in sorted(begin)])
        for weights in (begin, *(load_file(run / "model" / "model.safetensors") for run in (one, two)))
    )
    assert (a - b).norm() < 1e-3 * (a - start).norm()
    assert (a - start).norm() > 0.01


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
