"""The machine that a run lives on: its device, its processes, its signals, its random generators, its disk."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

import numpy as np
import torch
import torch.distributed as dist


def device_of(choice: str) -> torch.device:
    """The device of this process: "auto" takes a GPU if there is one, and each process of a machine its own."""
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


def here() -> str:
    """A name that only this process has, on all machines that share a folder."""
    return f"{socket.gethostname()}-{os.getpid()}"


def is_gone(name: str) -> bool:
    """Whether the process that `here` gave this name to was on this machine and is no more."""
    host, _, pid = name.rpartition("-")
    if os.name == "nt" or host != socket.gethostname() or not pid.isdigit():  # there, signal 0 is Ctrl-C
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def rank() -> int:
    """The number of this process as torchrun started it; 0 alone."""
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    """How many processes torchrun started; 1 alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextlib.contextmanager
def processes(device: torch.device) -> Iterator[tuple[int, int]]:
    """(rank, number of processes) as torchrun started us; alone otherwise."""
    if world() == 1:
        yield 0, 1
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield dist.get_rank(), world()
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


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time, on systems that know flock; a process that dies lets go of it."""
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def flush(path: Path) -> None:
    """A file or folder onto the disk, before it gets its name: a power cut must not leave an empty one under it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file that is whole or not there: written beside its place under a name of this process, flushed, then moved."""
    part = path.with_name(f".{here()}.{path.name}")
    try:
        yield part
        flush(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def random_states() -> list[Any]:
    """Python's and numpy's generators, as JSON has them. (Torch's are tensors and travel with the tensors.)"""
    name, keys, *rest = np.random.get_state(legacy=True)
    return [random.getstate(), [name, np.asarray(keys).tolist(), *rest]]


def set_random_states(states: list[Any]) -> None:
    (version, words, gauss), (name, keys, *rest) = states
    random.setstate((version, tuple(words), gauss))
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))


def check_space(run: Path, checkpoint_bytes: int) -> None:
    """Two checkpoints are kept while the third is written."""
    free = shutil.disk_usage(run).free
    if free < 3 * checkpoint_bytes:
        raise ValueError(
            f"{run} has {free / 1e6:.0f} MB free, but this run's checkpoints need {3 * checkpoint_bytes / 1e6:.0f} MB"
        )


def claim(run: Path, rank: int) -> None:
    """Find out now, not at the first checkpoint, that nothing can be written."""
    if rank:
        return
    try:
        run.mkdir(parents=True, exist_ok=True)
        probe = run / f".probe-{here()}"
        probe.write_bytes(b"\0" * 65536)
        probe.unlink()
    except OSError as error:
        raise ValueError(f"cannot write to the folder {run}: {error.strerror}") from error
