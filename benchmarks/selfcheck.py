"""Which scans does the self-check flag? Area under the ROC curve: slices the model was made for against others.

    mcddpm data get brain && mcddpm data get brain-contrasts
    mcddpm calibrate configs/calibrate.toml     # once, if the model is not calibrated yet
    python benchmarks/selfcheck.py

Slices of the test person, whom neither training nor calibration has seen, against: T1, T2 and PD of another person;
the test person with the order of intensities turned round; drawn ellipses; columns that were not where the mask says;
one spike; one line lost. Each is checked once and kept in --out, so that it may be stopped at any time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mcddpm import checkpoint, datasets, feed, masks, registry, runtime, selfcheck, simulation, stacks
from mcddpm.datasets import Measurement
from mcddpm.denoiser import Denoiser
from mcddpm.feed import Slices, seed_of
from mcddpm.operators import Fourier

SNR = 35.0


def scans(count: int) -> dict[str, Callable[[int], tuple[Tensor, Callable[[Tensor, Tensor, int], Tensor] | None]]]:
    """Kind -> the k-th slice's magnitude, and what happens to its measurement."""
    test = Slices.open(stacks.prepare("brain", "test", 192))
    places = [round(k * (len(test) - 1) / (count - 1)) for k in range(count)]
    contrasts = stacks.prepare("brain-contrasts", "test", 192)
    rows = json.loads(contrasts.with_suffix(".json").read_text())["slices"]
    others, ellipses = Slices.open(contrasts), feed.drawn(count, 192, seed=5, real=True)

    def contrast(name: str) -> Callable[[int], tuple[Tensor, None]]:
        own = [k for k, row in enumerate(rows) if f"-{name}." in row["file"]]
        return lambda k: (others[own[round(k * (len(own) - 1) / (count - 1))]], None)

    return {
        "as in training": lambda k: (test[places[k]], None),
        "T1, another person": contrast("T1"),
        "T2": contrast("T2"),
        "PD": contrast("PD"),
        "intensities turned round": lambda k: (turned(test[places[k]]), None),
        "ellipses": lambda k: (ellipses[k].abs(), None),
        "wrong mask": lambda k: (test[places[k]], wrong_mask),
        "spike": lambda k: (test[places[k]], spike),
        "lost line": lambda k: (test[places[k]], lost_line),
    }


def turned(x: Tensor) -> Tensor:
    """Bright is dark and dark is bright, inside the head."""
    return torch.where(x > 0.1 * x.max(), 1.1 * x.max() - x, x)


def wrong_mask(y_m: Tensor, mask: Tensor, seed: int) -> Tensor:
    """What was measured outside the centre lies in other columns than the mask says."""
    free = (mask & ~selfcheck.centre(mask)).nonzero().flatten()
    moved = y_m.clone()
    moved[:, free] = y_m[:, free.roll(1)]
    return moved


def spike(y_m: Tensor, mask: Tensor, seed: int) -> Tensor:
    """One entry outside the centre as large as the tenth part of the largest."""
    g = torch.Generator().manual_seed(seed)
    free = (mask & ~selfcheck.centre(mask)).nonzero().flatten()
    column = free[torch.randint(len(free), (1,), generator=g)]
    row = torch.randint(y_m.shape[0], (1,), generator=g)
    struck = y_m.clone()
    struck[row, column] += 0.1 * y_m.abs().max()
    return struck


def lost_line(y_m: Tensor, mask: Tensor, seed: int) -> Tensor:
    """One column is zero: of those nearest to the centre, where there is something to lose."""
    free = (mask & ~selfcheck.centre(mask)).nonzero().flatten()
    nearest = free[(free - len(mask) // 2).abs().argsort()][:6]
    lost = y_m.clone()
    lost[:, nearest[seed % len(nearest)]] = 0
    return lost


def measured(x: Tensor, change: Callable | None, acceleration: int, k: int) -> Measurement:
    A, seed = Fourier(), seed_of(11, k, acceleration)
    mask = masks.random_columns(x.shape[-1], acceleration=acceleration, seed=seed % 2**31)
    y = A(simulation.scan(x, seed % 2**31, snr=SNR)).masked_fill(~mask, 0)
    return datasets.measure(y if change is None else change(y, mask, seed), mask, A)


def auc(usual: list[float], unusual: list[float]) -> float:
    a, b = np.array(usual), np.array(unusual)
    return float((b[:, None] > a).mean() + 0.5 * (b[:, None] == a).mean())


def results(
    model: Denoiser, folder: Path, count: int, acceleration: int
) -> Iterator[tuple[str, list[dict[str, float]]]]:
    known = selfcheck.of_card(model.card)
    for kind, source in scans(count).items():
        found = []
        for k in range(count):
            path = folder / f"{kind.replace(' ', '_')}-{acceleration}x-{k:03d}-of-{count}.json"
            if not path.exists():
                x, change = source(k)
                m = measured(x, change, acceleration, k)
                told = selfcheck.surprise(
                    model, m, folds=known.folds, samples=known.samples, steps=known.steps, sampler=known.sampler, seed=k
                ).statistics
                with runtime.whole(path) as part:
                    part.write_text(json.dumps(told))
            found.append(json.loads(path.read_text()))
        yield kind, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--out", type=Path, default=registry.cache() / "benchmarks" / "selfcheck")
    asked = parser.parse_args()
    model = checkpoint.load_model(asked.model)
    assert isinstance(model, Denoiser)
    folder = asked.out / model.card["sha256"][:12]
    folder.mkdir(parents=True, exist_ok=True)
    known = selfcheck.of_card(model.card)
    calls = known.folds * known.samples * known.steps
    print(f"model {model.card['sha256'][:12]}, {asked.count} slices of each kind, {calls} calls a slice\n")
    print("| | area under the ROC curve | flagged at p <= 0.05 | overall | line | point |\n|---|---|---|---|---|---|")
    for acceleration in (4, 8):
        usual, calm = known.at(acceleration), list[float]()
        for kind, found in results(model, folder, asked.count, acceleration):
            scores = [usual.score(one) for one in found]
            flagged = np.mean([usual.p_value(one) <= selfcheck.ALARM for one in found])
            calm = calm or scores
            means = [np.mean([one[name] for one in found]) for name in selfcheck.STATISTICS]
            told = "" if scores is calm else f"{auc(calm, scores):.2f}"
            print(
                f"| {acceleration}x {kind} | {told} | {flagged:.2f} | {' | '.join(f'{v:.2f}' for v in means)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
