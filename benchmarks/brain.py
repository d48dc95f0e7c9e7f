"""How good the default model is: PSNR, SSIM and NMSE on the test person of `brain`, and PSNR against network calls.

The person was never trained on. Every third brain slice, 192 x 192; simulated phase, noise at SNR 35; random columns,
seeded by slice. Quality of magnitude images against the full scan; `slice`: mean over slices, each in its own range;
`volume`: all slices as one. Total variation's weight is the best of a list on slices of the validation person.

    mcddpm data get brain
    python benchmarks/brain.py table            # zero-filled, total variation, one call, mean of 20; 4x and 8x
    python benchmarks/brain.py calls            # all samplers, 1 to 1000 calls, on one slice at 4x and one at 8x
    python benchmarks/brain.py kspace           # the real 13-coil scan (mcddpm data get kspace), coils combined

Every reconstruction is kept in --out and not done twice, so a long run may be stopped at any time.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcddpm import baselines, checkpoint, datasets, feed, figures, metrics, registry, stacks
from mcddpm.config import Simulation
from mcddpm.datasets import Measurement
from mcddpm.denoiser import Denoiser
from mcddpm.feed import Slices, Stream
from mcddpm.masks import random_columns
from mcddpm.operators import Fourier, Sense
from mcddpm.readers import open_volume
from mcddpm.reconstruct import SAMPLER, SAMPLES, STEPS, Reconstruction, reconstruct

WEIGHTS = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
CALLS = (1, 2, 4, 6, 8, 10, 20, 50, 250, 1000)
ACCELERATIONS = (4, 8)
Method = Callable[[Measurement], Reconstruction]


def measurements(split: str, chosen: range, acceleration: float) -> list[Measurement]:
    slices = Slices.open(stacks.prepare("brain", split, 192))
    stream = Stream(slices, Fourier(), ["random_columns"], [acceleration], seed=0, simulate=Simulation(augment=False))
    kept = [index for index in chosen if index < len(slices)]
    batch = stream.measure(kept, [feed.seed_of(77, index) for index in kept])
    whole = Fourier().pinv(batch.y_m + batch.y_c)
    return [
        Measurement(batch.y_m[k], batch.mask[k], float(batch.scale[k]), Fourier(), whole[k]) for k in range(len(kept))
    ]


class Kept:
    """Reconstructions on disk: (mean, std, seconds, calls) by name, made when they are missing."""

    def __init__(self, folder: Path, model: Denoiser) -> None:
        self.folder, self.model = folder, model
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, method: Method, m: Measurement) -> dict[str, Any]:
        """`method` is a function or a partial of one; its settings and the measurement are part of the key."""
        settings = sorted(method.keywords.items()) if isinstance(method, partial) else []
        times = self.model.grid(10).tolist()
        digest = hashlib.sha256(repr((settings, SAMPLER, STEPS, SAMPLES, times)).encode() + m.y_m.numpy().tobytes())
        path = self.folder / f"{name}-{digest.hexdigest()[:10]}.npz"
        if not path.exists():
            start = time.monotonic()
            recon = method(m)
            taken = time.monotonic() - start
            part = path.with_name(f".{path.name}")
            mean, std = (np.asarray(v) * m.scale for v in (recon.mean, recon.std))
            np.savez(part, mean=mean, std=std, seconds=taken, calls=recon.calls)
            part.replace(path)
        with np.load(path) as found:
            return {key: found[key] for key in found}


def tuned_weight(kept: Kept, acceleration: int) -> float:
    """The weight with the highest PSNR on eight slices of the validation person."""
    chosen = measurements("validation", range(5, 126, 16), acceleration)
    quality = {}
    for weight in WEIGHTS:
        found = [
            kept.get(f"tv-{acceleration}x-{weight:g}-v{k}", partial(baselines.total_variation, weight=weight), m)
            for k, m in enumerate(chosen)
        ]
        quality[weight] = np.mean([psnr(f["mean"], m) for f, m in zip(found, chosen, strict=True)])
    best = max(quality, key=lambda weight: quality[weight])
    told = ", ".join(f"{weight:g}: {value:.2f}" for weight, value in quality.items())
    print(f"total variation at {acceleration}x, weight: PSNR on validation slices: {told}; taken: {best:g}")
    return best


def psnr(mean: np.ndarray | Tensor, m: Measurement) -> float:
    """Of a magnitude image in the measurement's scale."""
    assert m.truth is not None
    return float(metrics.psnr(torch.as_tensor(mean), m.truth.abs()))


def table(kept: Kept, model: Denoiser, every: int) -> None:
    for acceleration in ACCELERATIONS:
        weight = tuned_weight(kept, acceleration)
        methods: dict[str, Method] = {
            "zero-filled": baselines.zero_filled,
            "total variation": partial(baselines.total_variation, weight=weight),
            "one call": partial(reconstruct, model, sampler="mean"),
            "mean of 20": partial(reconstruct, model),
        }
        chosen = measurements("test", range(0, 126, every), acceleration)
        truth = torch.stack([m.truth.abs() for m in chosen if m.truth is not None])
        heads = ("PSNR slice", "volume", "SSIM slice", "volume", "NMSE slice", "volume", "calls", "s a slice")
        print(f"\n| {acceleration}x, {len(chosen)} slices | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
        for name, method in methods.items():
            found = [kept.get(f"{name}-{acceleration}x-{k}", method, m) for k, m in enumerate(chosen)]
            mean = torch.from_numpy(np.stack([f["mean"] for f in found]))
            cells = []
            for metric, form in (("psnr", ".2f"), ("ssim", ".3f"), ("nmse", ".4f")):
                call = metrics.METRICS[metric]
                cells += [
                    f"{float(call(mean, truth).mean()):{form}}",
                    f"{float(call(mean, truth, volume=True)):{form}}",
                ]
            draws = 20 if name == "mean of 20" else 1
            calls, seconds = int(found[0]["calls"]) * draws, np.median([f["seconds"] for f in found])
            print(f"| {name} | {' | '.join(cells)} | {calls} | {seconds:.2f} |")
            if name == "mean of 20":
                _spread(np.stack([f["std"] for f in found]), mean.numpy(), truth.numpy())


def _spread(std: np.ndarray, mean: np.ndarray, truth: np.ndarray) -> None:
    inside = truth > 0.1 * truth.max((1, 2), keepdims=True)
    error = np.sqrt(((mean - truth) ** 2)[inside].mean())
    expected = np.sqrt((std**2)[inside].mean() * (1 + 1 / 20))
    print(f"(foreground: rms error {error:.4f}, expected from the std {expected:.4f}: ratio {expected / error:.2f})")


def calls(kept: Kept, model: Denoiser, figure: Path, most: int) -> None:
    """One slice at each acceleration, 20 samples: PSNR of the mean, and pixel std against that of the longest run."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for acceleration in ACCELERATIONS:
        (m,) = measurements("test", range(60, 61), acceleration)
        reference = None
        for sampler in ("ancestral", "ddim", "heun", "dpmpp_2m", "dpmpp_2m_sde"):
            for n in reversed(CALLS):
                if n > most or (sampler == "heun" and n == 2):  # which is n = 1 again
                    continue
                steps = (n + 1) // 2 if sampler == "heun" else n
                found = kept.get(
                    f"calls-{acceleration}x-{sampler}-{steps}",
                    partial(reconstruct, model, sampler=sampler, steps=steps),
                    m,
                )
                if reference is None:
                    reference = found
                quality, spread = (
                    psnr(found["mean"], m),
                    np.linalg.norm(found["std"]) / np.linalg.norm(reference["std"]),
                )
                curves.setdefault(f"{acceleration}x {sampler}", []).append((int(found["calls"]), quality))
                told = f"{quality:.2f} dB, std {spread:.3f} of the reference's"
                print(f"{acceleration}x {sampler:13} {int(found['calls']):5} calls: {told}", flush=True)
        one = kept.get(f"calls-{acceleration}x-mean", partial(reconstruct, model, sampler="mean"), m)
        print(f"{acceleration}x {'mean':13} {1:5} calls: {psnr(one['mean'], m):.2f} dB")
        curves[f"{acceleration}x mean"] = [(1, psnr(one["mean"], m))]
    figures.curves(figure, curves, "network calls a sample", "PSNR of the mean of 20 (dB)")
    print(figure)


def kspace(kept: Kept, model: Denoiser, figure: Path) -> None:
    """Flip angles 2 to 10 of the real scan: coil-combined with its maps, under-sampled fourfold."""
    (scan,) = registry.scans("kspace")
    panels = []
    for angle in range(1, 10):
        m = real_measurement(registry.volume_path("kspace", scan), angle)
        assert m.truth is not None
        zero, ours = (
            kept.get(f"kspace-{angle + 1}-{name}", method, m)
            for name, method in (("zero", baselines.zero_filled), ("ours", partial(reconstruct, model)))
        )
        before, after = psnr(zero["mean"], m), psnr(ours["mean"], m)
        print(f"flip angle {angle + 1}: zero-filled {before:.2f}, mean of 20 {after:.2f} dB")
        top = float(m.truth.abs().max())
        if angle in (1, 5, 9):
            row = {"truth": m.truth.abs().numpy(), "zero-filled": zero["mean"], "mean of 20": ours["mean"]}
            panels.append([figures.Panel(f"{name}, angle {angle + 1}", image, 0, top) for name, image in row.items()])
            panels[-1].append(figures.Panel("std", ours["std"], 0, None, "magma"))
    figures.panels(figure, panels, "a real scan, coils combined, 4x")
    print(figure)


def real_measurement(path: Path, angle: int) -> Measurement:
    """One flip angle, its 13 coils combined by their maps, as the k-space of one coil, under-sampled fourfold."""
    import h5py

    volume = open_volume(path)
    with h5py.File(path) as file:
        maps = torch.from_numpy(np.asarray(file["Coils"])).to(torch.complex64).reshape(volume.shape[1:])
    image = Sense(maps).pinv(volume[angle])
    mask = random_columns(image.shape[-1], acceleration=4, seed=angle)
    return datasets.measure(Fourier()(image), mask, Fourier(), image)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "calls", "kspace"))
    parser.add_argument("--model", default="default")
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--most", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=registry.cache() / "benchmarks" / "brain")
    parser.add_argument("--figure", type=Path, default=None)
    asked = parser.parse_args()
    model = checkpoint.load_model(asked.model)
    assert isinstance(model, Denoiser)
    kept = Kept(asked.out / model.card["sha256"][:12], model)
    print(f"model {model.card['sha256'][:12]}, step {model.card.get('step', '?')}")
    if asked.what == "table":
        table(kept, model, asked.every)
    elif asked.what == "calls":
        calls(kept, model, asked.figure or Path("docs/calls.png"), asked.most)
    else:
        kspace(kept, model, asked.figure or Path("docs/kspace.png"))


if __name__ == "__main__":
    main()
