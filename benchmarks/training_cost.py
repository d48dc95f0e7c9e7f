"""What a step of several trainings costs, timed in turns, and how many steps of each take as long as the first, whole.

mcddpm data get brain
python benchmarks/training_cost.py configs/default.toml configs/unet.toml configs/prior.toml
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from mcddpm.system.progress import Quiet
from mcddpm.system.settings import load
from mcddpm.training.settings import Config
from mcddpm.training.trainer import Trainer


def timed(trainer: Trainer, steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        trainer.advance()
    return (time.perf_counter() - start) / steps


def costs(paths: list[Path], rounds: int, steps: int) -> dict[Path, float]:
    """Seconds a step: the median of the rounds."""
    found: dict[Path, list[float]] = {path: [] for path in paths}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {path: Trainer(load(Config, path), Path(folder) / path.stem, Quiet()) for path in paths}
        for trainer in trainers.values():
            trainer.advance()
        for _ in range(rounds):
            for path, trainer in trainers.items():
                found[path].append(timed(trainer, steps))
    return {path: statistics.median(values) for path, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4)
    asked = parser.parse_args()
    found = costs(asked.paths, asked.rounds, asked.steps)
    first = asked.paths[0]
    whole = found[first] * load(Config, first).training.steps
    print(f"{torch.get_num_threads()} threads\n")
    print("| | seconds a step | steps | minutes in all | steps that last as long as the first's |")
    print("|---|---|---|---|---|")
    for path, cost in found.items():
        steps = load(Config, path).training.steps
        print(f"| {path.stem} | {cost:.3f} | {steps} | {cost * steps / 60:.0f} | {whole / cost:.0f} |")


if __name__ == "__main__":
    main()
