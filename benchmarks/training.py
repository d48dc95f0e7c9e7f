"""Where a training step's time goes, at the default CPU configuration (192 x 192 slices, batch 8).

Loop: all of a step but the network's forward and backward and the optimiser, as a share of the step. At most 10 %.
Network: floating-point operations a second of its forward, as a share of a matrix multiplication's. At least 60 %.
Both are ratios measured in one run, alternating, as medians.

    python benchmarks/training.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from mcddpm.system.settings import from_dict
from mcddpm.training.settings import Config
from mcddpm.training.trainer import Quiet, Trainer

SIZE, REPEATS = 192, 7
MOST_LOOP, LEAST_NETWORK = 0.10, 0.60


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> int:
    settings = from_dict(Config, {"data": {"drawn_size": SIZE, "drawn_slices": 64}})
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(settings, Path(folder), Quiet())
    network, batch = trainer.model.network, settings.training.batch
    images = torch.randn(batch, 4, SIZE, SIZE).contiguous(memory_format=torch.channels_last)
    times = torch.zeros(batch)
    a, b = torch.randn(2, 2048, 2048)

    def network_alone() -> None:
        trainer.optimiser.zero_grad(set_to_none=True)
        network(images, times).square().mean().backward()
        trainer.optimiser.step()

    @torch.no_grad()
    def forward() -> None:
        network(images, times)

    with FlopCounterMode(display=False) as counter:
        forward()
    flops = counter.get_total_flops()
    trainer.advance()
    network_alone()
    loop, share, speed = [], [], []
    for _ in range(REPEATS):
        whole, alone = seconds(trainer.advance), seconds(network_alone)
        loop.append(1 - alone / whole)
        gemm = 2 * 2048**3 / seconds(lambda: a @ b)
        share.append(flops / seconds(forward) / gemm)
        speed.append(batch / whole)
    parameters = sum(p.numel() for p in network.parameters())
    own, forward_share = statistics.median(loop), statistics.median(share)
    print(f"{parameters:,} parameters, {flops / batch / 1e9:.2f} GFLOP a forward of {SIZE} x {SIZE}")
    print(f"training: {statistics.median(speed):.1f} slices/s on {torch.get_num_threads()} threads")
    print(f"loop's own share of a step: {own:.1%} (at most {MOST_LOOP:.0%})")
    print(f"network's forward against a matrix multiplication: {forward_share:.0%} (at least {LEAST_NETWORK:.0%})")
    return 0 if own <= MOST_LOOP and forward_share >= LEAST_NETWORK else 1


if __name__ == "__main__":
    sys.exit(main())
