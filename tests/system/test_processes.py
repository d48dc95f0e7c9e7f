"""Devices by name, shares of work, names of processes, and the signals that end them."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import torch.distributed as dist

from mcddpm.system import processes
from mcddpm.system.processes import Share, device_of, group, here, is_gone, signals
from tests.system.light import a_dead_process


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_of("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match="unknown device 'gpu'; expected auto, cpu, cuda or cuda:0"):
        device_of("gpu")
    with pytest.raises(ValueError, match="device 'cuda:0' was asked for, but torch sees no GPU here"):
        device_of("cuda:0")


def test_each_process_of_a_machine_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for local, choice, index in (("0", "auto", 0), ("1", "auto", 1), ("3", "cuda", 1), ("1", "cuda:0", 0)):
        monkeypatch.setenv("LOCAL_RANK", local)
        assert device_of(choice) == torch.device("cuda", index) == chosen[-1]
    with pytest.raises(ValueError, match="device 'cuda:2' was asked for, but there are 2 GPUs, counted from 0"):
        device_of("cuda:2")


def test_rank_and_world_are_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (processes.rank(), processes.world()) == (0, 1)
    assert Share.of_torchrun() == Share(0, 1) == Share()
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert Share.of_torchrun() == Share(2, 3)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 6, 20])
def test_shares_are_everything_once_and_even(count: int, world: int) -> None:
    shares = [Share(rank, world).of(range(count)) for rank in range(world)]
    assert sorted(piece for share in shares for piece in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_alone_is_no_group() -> None:
    with group(torch.device("cpu")) as share:
        assert share == Share() and not dist.is_initialized()


def test_a_name_tells_whether_its_process_is_gone() -> None:
    assert here().endswith(f"-{os.getpid()}") and "." not in here() and "/" not in here()
    host = here().removesuffix(f"-{os.getpid()}")
    dead = a_dead_process()
    assert is_gone(f"{host}-{dead}") and is_gone(f"{host}-{dead}-old")
    for alive in (here(), f"{here()}-old", f"{host}-{os.getppid()}", f"{host}-1"):
        assert not is_gone(alive), alive
    for unknown in (f"elsewhere-{dead}", f"{dead}", host, "", f"{host}-x", f"{host}-{dead}.b", "-old"):
        assert not is_gone(unknown), unknown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_collected_and_handed_back(number: int) -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    with signals() as caught:
        assert caught == []
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert caught == [number, number]
    assert {n: signal.getsignal(n) for n in before} == before


def test_signals_are_handed_back_after_a_mistake() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError), signals():
        raise RuntimeError
    assert signal.getsignal(signal.SIGTERM) is before
