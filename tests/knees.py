"""Drawn files in fastMRI's layout, a model for them, and what stops work half-way: for calibration and evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn

from mcddpm.models.store import save_model
from mcddpm.physics.fourier import Fourier
from mcddpm.system.progress import Quiet
from mcddpm.system.settings import from_dict
from mcddpm.system.workspace import Workspace
from mcddpm.training.settings import Config
from mcddpm.training.setup import card_of
from tests.problems import TINY
from tests.processes import command, start

SIZE = 48
FILES = ("file1000002.h5", "file1000007.h5")  # masks are seeded by name: these have lines to hide at 4x and at 8x


def knee(path: Path, slices: int, acquisition: str = "CORPD_FBK", seed: int = 0, size: int = SIZE) -> Path:
    """Blocks of all sizes, with a phase and some noise; the truth is their magnitude."""
    rng = np.random.RandomState(seed)
    x = np.zeros((slices, size, size), np.complex64)
    for image in x:
        top, left = rng.randint(size // 8, 5 * size // 16, 2)
        height, width = rng.randint(size // 5, size // 2, 2)
        image[top : top + height, left : left + width] = rng.uniform(1, 2) * np.exp(1j * rng.uniform(0, 6))
    x += 0.02 * (rng.normal(size=(*x.shape, 2)) @ [1, 1j]).astype(np.complex64)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["kspace"] = Fourier()(torch.from_numpy(x)).numpy()
        file["reconstruction_rss"] = abs(x)
        file["reconstruction_esc"] = abs(x)
        file.attrs["acquisition"] = acquisition
    return path


def saved(folder: Path, extra: dict | None = None, seed: int = 0) -> Path:
    """A model of their size that knows nothing, of any kind; extra: sections of a training's configuration."""
    card = card_of(from_dict(Config, TINY | (extra or {})), (SIZE, SIZE))
    model, g = card.build(), torch.Generator().manual_seed(seed)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3, generator=g)
    save_model(folder, model.network.state_dict(), card)
    return folder


class Stop(Exception):
    """As if someone had pressed Ctrl-C."""


class StopAt(Quiet):
    """Ends the work when so many pieces are done."""

    def __init__(self, n: int) -> None:
        self.n = n

    def at(self, done: float, total: float, what: str = "") -> None:
        if done == self.n:
            raise Stop


def torn(own: Callable[..., None]) -> Callable[..., None]:
    """In the place of `Workspace.keep`: killed by a system that had not written all of a piece that has its name."""

    def keep(workspace: Workspace, name: str, *rest: object) -> None:
        own(workspace, name, *rest)
        path = workspace.path(name)
        path.write_bytes(path.read_bytes()[:100])
        raise Stop

    return keep


def as_rank(rank: int, *arguments: str) -> None:
    """`mcddpm ARGUMENTS` as torchrun starts it, one of two."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    command(*arguments)


def two_at_once(*arguments: str) -> list[int | None]:
    """The exit codes of two processes that share the work of a command."""
    processes = [start(as_rank, rank, *arguments) for rank in (0, 1)]
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]
