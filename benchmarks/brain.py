"""How many network calls are enough, and how the default model fares on a real scan.

    mcddpm data get brain && mcddpm data get kspace
    python benchmarks/brain.py calls            # all samplers, 1 to 1000 calls: one slice of the test person, 4x and 8x
    python benchmarks/brain.py kspace           # the real 13-coil scan, coils combined, 4x

Every reconstruction is kept in --out and not done twice, so a long run may be stopped at any time. Quality on the whole
test person is `mcddpm evaluate configs/brain-4x8x.toml`.
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

from mcddpm import metrics, plots
from mcddpm.data import catalogue
from mcddpm.data.cases import Cases, cases_of
from mcddpm.data.readers import open_volume
from mcddpm.evaluation import baselines
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import load_model
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.masks import random_columns
from mcddpm.physics.measurement import Measurement, measure
from mcddpm.physics.sense import Sense
from mcddpm.plots import Plot
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.reconstruction.sample import reconstruct

CALLS = (1, 2, 4, 6, 8, 10, 20, 50, 250, 1000)
ACCELERATIONS = (4, 8)
Method = Callable[[Measurement], Reconstruction]


class Kept:
    """Reconstructions on disk: (mean, std, seconds, calls) by name, made when they are missing."""

    def __init__(self, folder: Path, model: Denoiser) -> None:
        self.folder, self.model = folder, model
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str, method: Method, m: Measurement) -> Path:
        """`method` is a function or a partial of one; its settings and the measurement are part of the key."""
        settings = sorted(method.keywords.items()) if isinstance(method, partial) else []
        times = self.model.grid(10).tolist()
        digest = hashlib.sha256(repr((settings, str(DrawPlan()), times)).encode() + m.y_m.numpy().tobytes())
        return self.folder / f"{name}-{digest.hexdigest()[:10]}.npz"

    def get(self, name: str, method: Method, m: Measurement) -> dict[str, Any]:
        path = self.path(name, method, m)
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


def psnr(mean: np.ndarray | Tensor, m: Measurement) -> float:
    """Of a magnitude image in the measurement's scale."""
    assert m.truth is not None
    return float(metrics.psnr(torch.as_tensor(mean), m.truth.abs()))


def calls(kept: Kept, model: Denoiser, figure: Path, most: int) -> None:
    """One slice at each acceleration, 20 samples: PSNR of the mean, and pixel std against that of the longest run."""
    rows = []
    for acceleration in ACCELERATIONS:
        m = cases_of(Cases(every=60, accelerations=(acceleration,)))[1].make()
        reference: dict[str, Any] = {}
        qualities, spreads = {}, {}
        for sampler in ("ancestral", "ddim", "heun", "dpmpp_2m", "dpmpp_2m_sde"):
            found = {}
            for n in reversed(CALLS):
                if sampler == "heun" and n == 2:  # which is n = 1 again
                    continue
                steps = (n + 1) // 2 if sampler == "heun" else n
                name = f"calls-{acceleration}x-{sampler}-{steps}"
                method = partial(reconstruct, model, sampler=sampler, steps=steps)
                if n > most and sampler != "ancestral" and not kept.path(name, method, m).exists():
                    continue
                one = kept.get(name, method, m)
                reference = reference or one
                quality = psnr(one["mean"], m)
                spread = float(np.linalg.norm(one["std"]) / np.linalg.norm(reference["std"]))
                found[int(one["calls"])] = quality, spread
                told = f"{quality:.2f} dB, std {spread:.3f} of the reference's"
                print(f"{acceleration}x {sampler:13} {int(one['calls']):5} calls: {told}", flush=True)
            qualities[sampler] = [(n, quality) for n, (quality, _) in found.items()]
            spreads[sampler] = [(n, spread) for n, (_, spread) in found.items() if n > 1]  # one call: no spread to tell
        mean = kept.get(f"calls-{acceleration}x-mean", partial(reconstruct, model, sampler="mean"), m)
        print(f"{acceleration}x {'mean':13} {1:5} calls: {psnr(mean['mean'], m):.2f} dB")
        top = max(quality for points in qualities.values() for _, quality in points)
        x, y = "network calls a sample", "PSNR of the mean of 20 (dB)"
        rows.append(
            [
                Plot(
                    f"{acceleration}x",
                    x,
                    y,
                    qualities,
                    psnr(reference["mean"], m),
                    log=True,
                    between=(top - 2, top + 0.2),
                ),
                Plot(
                    f"{acceleration}x",
                    x,
                    "pixel std / ancestral's, 1000 calls",
                    spreads,
                    1.0,
                    log=True,
                    between=(0.5, 1.5),
                ),
            ]
        )
    plots.plots(figure, rows, "dashed: ancestral with 1000 calls")
    print(figure)


def kspace(kept: Kept, model: Denoiser, figure: Path) -> None:
    """Flip angles 2 to 10 of the real scan: coil-combined with its maps, under-sampled fourfold."""
    (scan,) = catalogue.scans("kspace")
    panels = []
    for angle in range(1, 10):
        m = real_measurement(catalogue.volume_path("kspace", scan), angle)
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
            panels.append([plots.Panel(f"{name}, angle {angle + 1}", image, 0, top) for name, image in row.items()])
            panels[-1].append(plots.Panel("std", ours["std"], 0, None, "magma"))
    plots.panels(figure, panels, "a real scan, coils combined, 4x")
    print(figure)


def real_measurement(path: Path, angle: int) -> Measurement:
    """One flip angle, its 13 coils combined by their maps, as the k-space of one coil, under-sampled fourfold."""
    import h5py

    volume = open_volume(path)
    with h5py.File(path) as file:
        maps = torch.from_numpy(np.asarray(file["Coils"])).to(torch.complex64).reshape(volume.shape[1:])
    image = Sense(maps).pinv(volume[angle])
    mask = random_columns(image.shape[-1], acceleration=4, seed=angle)
    return measure(Fourier()(image), mask, Fourier(), image)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("calls", "kspace"))
    parser.add_argument("--model", default="default")
    parser.add_argument(
        "--most",
        type=int,
        default=1000,
        help="calls of every sampler but ancestral, the reference; of more, what is kept",
    )
    parser.add_argument("--out", type=Path, default=catalogue.cache() / "benchmarks" / "brain")
    parser.add_argument("--figure", type=Path, default=None)
    asked = parser.parse_args()
    model = load_model(asked.model)
    assert isinstance(model, Denoiser) and model.card is not None
    kept = Kept(asked.out / model.card.sha256[:12], model)
    print(f"model {model.card.sha256[:12]}, step {model.card.step}")
    if asked.what == "calls":
        calls(kept, model, asked.figure or Path("docs/images/calls.png"), asked.most)
    else:
        kspace(kept, model, asked.figure or Path("docs/images/kspace.png"))


if __name__ == "__main__":
    main()
