"""Sizes as people write them, what a call takes, and how many samples fit."""

from __future__ import annotations

import pytest
import torch

from mcddpm.system import memory


@pytest.mark.parametrize(("text", "size"), [("2GB", 2e9), ("500M", 5e8), ("1.5 gb", 1.5e9), ("64", 64), ("3KiB", 3e3)])
def test_sizes(text: str, size: float) -> None:
    assert memory.parse(text) == size


@pytest.mark.parametrize("text", ["lots", "", "0", "-1GB", "2 PB", "nan", "1e9"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=f"memory is {text!r}, expected a size as 2GB or 500MB"):
        memory.parse(text)


def test_peak_counts_what_lives_at_once() -> None:
    def call() -> None:
        a = torch.zeros(1000)  # 4000 bytes
        b = a + 1  # 8000
        del a
        c = b.view(10, 100).add_(1) * 2  # 8000: a view and an in-place result are nothing new
        del b, c
        torch.zeros(500)

    assert memory.peak_bytes(call) == 8000


def test_what_was_there_before_does_not_count() -> None:
    a = torch.zeros(1000)
    assert memory.peak_bytes(lambda: a.add_(1)) == 0
    assert memory.peak_bytes(lambda: a + 1) == 4000


def test_a_cpu_shares_its_memory_with_the_program_and_a_gpu_does_not() -> None:
    one, cpu, gpu = 1e6, torch.device("cpu"), torch.device("cuda")
    assert memory.batch_within(10.5 * memory.SCRATCH * one, one, gpu) == 10
    assert memory.batch_within(memory.PROCESS + 10.5 * memory.SCRATCH * one, one, cpu) == 10
    assert memory.batch_within(0.9 * memory.SCRATCH * one, one, gpu) == 0
    assert memory.batch_within(memory.PROCESS / 2, one, cpu) < 1
