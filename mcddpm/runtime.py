"""The machine that a run lives on: its device, its processes, its signals, its random generators."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


def device_of(choice: str, rank: int) -> torch.device:
    if choice != "auto":
        return torch.device(choice)
    return torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")


@contextlib.contextmanager
def processes() -> Iterator[tuple[int, int]]:
    """(rank, number of processes) as torchrun started us; alone otherwise."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield 0, 1
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield dist.get_rank(), world
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """A list that fills when SIGINT or SIGTERM arrives, so that the step can be finished and saved first."""
    caught: list[int] = []
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in old:
            signal.signal(number, lambda n, _: caught.append(n))
        yield caught
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def random_states() -> list[Any]:
    """Python's and numpy's generators, as JSON has them. (Torch's are tensors and travel with the tensors.)"""
    name, keys, *rest = np.random.get_state(legacy=True)
    return [random.getstate(), [name, np.asarray(keys).tolist(), *rest]]


def set_random_states(states: list[Any]) -> None:
    (version, words, gauss), (name, keys, *rest) = states
    random.setstate((version, tuple(words), gauss))
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
