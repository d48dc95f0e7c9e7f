"""The processes of a run: their device, rank and number, their share of the work, their names, and the signals that
end them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def device_of(choice: str) -> torch.device:
    """The device of this process: "auto" takes a GPU if there is one, and each process of a machine its own."""
    import torch

    local = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if choice == "auto" else choice)
    except RuntimeError as error:
        raise ValueError(f"unknown device {choice!r}; expected auto, cpu, cuda or cuda:0") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {choice!r} was asked for, but torch sees no GPU here")
        count = torch.cuda.device_count()
        if device.index is not None and device.index >= count:
            raise ValueError(f"device {choice!r} was asked for, but there are {count} GPUs, counted from 0")
        device = torch.device("cuda", device.index if device.index is not None else local % count)
        torch.cuda.set_device(device)
    return device


# --- names ----------------------------------------------------------------------------------------------------------


def here() -> str:
    """A name that only this process has, on all machines that share a folder."""
    return f"{socket.gethostname().replace('.', '-')}-{os.getpid()}"


def is_gone(name: str) -> bool:
    """Whether the process that `here` gave this name to was on this machine and is no more."""
    host, _, pid = name.removesuffix("-old").rpartition("-")
    if os.name == "nt" or f"{host}-{os.getpid()}" != here() or not pid.isdigit():  # there, signal 0 is Ctrl-C
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


# --- many processes -------------------------------------------------------------------------------------------------


def rank() -> int:
    """The number of this process as torchrun started it; 0 alone."""
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    """How many processes torchrun started; 1 alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(frozen=True)
class Share:
    """This process's part of work that needs no talk: every `world`-th piece, from the `rank`-th on."""

    rank: int = 0
    world: int = 1

    @classmethod
    def of_torchrun(cls) -> Share:
        return cls(rank(), world())

    def of(self, pieces: Sequence[T]) -> Sequence[T]:
        return pieces[self.rank :: self.world]


@contextlib.contextmanager
def group(device: torch.device) -> Iterator[Share]:
    """The processes that torchrun started, able to talk to each other; one alone otherwise."""
    import torch.distributed as dist

    if world() == 1:
        yield Share()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Share(dist.get_rank(), world())
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
