"""Methods x slices -> tidy rows: `mcddpm evaluate CONFIG.toml`. Tables are made of them in `tables.py`.

    OUT/rows.csv             one row a slice and method, when all are there
    OUT/parts/               each reconstruction that is done: its mean and std, PSNR by number of samples, its row

Every method gets the same measurement of the same slice. What is done is not done again, and torchrun shares what is
left. A row's numbers depend on the configuration and the weights alone, but for `seconds`. A configuration may gain
methods and cases later: what has a name in a folder keeps its meaning there.
"""

from __future__ import annotations

import csv
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcddpm import baselines, config, datasets, metrics, runtime, score, stacks
from mcddpm.checkpoint import Model, describe, load_model
from mcddpm.config import Simulation
from mcddpm.datasets import Measurement
from mcddpm.feed import Slices, Stream, seed_of
from mcddpm.operators import Fourier
from mcddpm.reconstruct import SAMPLER, STEPS, Reconstruction, reconstruct

COLUMNS = (
    "label",
    "protocol",
    "volume",
    "slice",
    "acceleration",
    "method",
    *(f"{name}_slice" for name in metrics.METRICS),
    "samples",
    "calls",
    "seconds",
    "seed",
    "manifest",
)
Reconstructor = Callable[[Measurement, int], Reconstruction]


@dataclass(frozen=True)
class Cases:
    """What is reconstructed. source: a named data set ("brain:test:192", with simulated phase, noise and masks, seeded
    by slice), or a folder of files measured by a protocol (paper, fastmri). label: what tables call it. methods: names
    of those to run on it, all unless told."""

    source: str = "brain:test:192"
    protocol: str = "simulated"
    acquisition: str = ""
    label: str = ""
    every: int = 1
    accelerations: tuple[float, ...] = (4.0, 8.0)
    family: str = "random_columns"
    snr: float = 35.0
    seed: int = 77
    methods: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.label or self.acquisition or self.source.partition(":")[0]


@dataclass(frozen=True)
class Method:
    """kind: one of KINDS. model: a name or folder, in which {label} and {acceleration} stand for the case's. weight:
    total variation's; 0 for the best of WEIGHTS on slices of `tune`. steps: 0 for the method's own."""

    name: str = ""
    kind: str = ""
    model: str = ""
    samples: int = 1
    sampler: str = SAMPLER
    steps: int = 0
    weight: float = 0.0
    tune: str = ""


@dataclass(frozen=True)
class Evaluation:
    """reference: the method whose gains tables show, by name."""

    cases: tuple[Cases, ...] = (Cases(),)
    methods: tuple[Method, ...] = ()
    reference: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Case:
    """One slice at one acceleration, the sha256 of the file it is in, and how to measure it."""

    label: str
    protocol: str
    volume: str
    slice: int
    acceleration: float
    data: str
    make: Callable[[], Measurement] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"{self.label}-{self.volume}-{self.slice:04d}-{self.acceleration:g}x".replace("/", "_")


# --- cases ----------------------------------------------------------------------------------------------------------


def cases_of(choice: Cases) -> list[Case]:
    if choice.protocol == "simulated":
        return list(_simulated(choice))
    folder = Path(choice.source)
    paths = sorted(folder.glob("*.h5"))
    if not paths:
        raise ValueError(f"no .h5 files in {folder}, which protocol {choice.protocol} is to measure")
    found = []
    for acceleration in choice.accelerations:
        for entry in datasets.manifest(paths, choice.protocol, acceleration, choice.acquisition)[:: choice.every]:
            make = partial(datasets.repeat, entry, folder)
            found.append(Case(choice.name, choice.protocol, entry.file, entry.slice, acceleration, entry.sha256, make))
    return found


def _simulated(choice: Cases) -> Iterator[Case]:
    name, _, rest = choice.source.partition(":")
    split, _, size = rest.partition(":")
    if not size.isdigit():
        raise ValueError(f"source {choice.source!r} is not of the form NAME:SPLIT:SIZE, as brain:test:192")
    path = stacks.prepare(name, split, int(size))
    people = [row["person"] for row in json.loads(path.with_suffix(".json").read_text())["slices"]]
    slices = Slices.open(path)
    how = Simulation(augment=False, snr=(choice.snr,))
    for acceleration in choice.accelerations:
        stream = Stream(slices, Fourier(), [choice.family], [acceleration], choice.seed, how)
        for index in range(0, len(slices), choice.every):
            make = partial(_measured, stream, index, choice.seed)
            yield Case(choice.name, "simulated", people[index], index, acceleration, slices.sha256, make)


def _measured(stream: Stream, index: int, seed: int) -> Measurement:
    batch = stream.measure([index], [seed_of(seed, index)])
    truth = stream.A.pinv(batch.y_m + batch.y_c)[0]
    return Measurement(batch.y_m[0], batch.mask[0], float(batch.scale[0]), stream.A, truth)


# --- methods --------------------------------------------------------------------------------------------------------

WEIGHTS = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


@lru_cache(maxsize=4)
def _model(name: str, device: str) -> Model:
    return load_model(name, device)


def _mc_ddpm(method: Method, model: Any, m: Measurement, seed: int) -> Reconstruction:
    steps = method.steps or (1 if method.sampler == "mean" else STEPS)
    return reconstruct(model, m, samples=method.samples, sampler=method.sampler, steps=steps, seed=seed)


def _score_based(method: Method, model: Any, m: Measurement, seed: int) -> Reconstruction:
    return score.METHODS[method.kind](model, m, samples=method.samples, steps=method.steps or 1000, seed=seed)


KINDS: dict[str, Callable[[Method, Any, Measurement, int], Reconstruction]] = {
    "zero_filled": lambda method, model, m, seed: baselines.zero_filled(m),
    "total_variation": lambda method, model, m, seed: baselines.total_variation(m, method.weight),
    "unet": lambda method, model, m, seed: baselines.unet(model, m),
    "unet_put_back": lambda method, model, m, seed: baselines.unet(model, m, put_back=True),
    "mc_ddpm": _mc_ddpm,
    **dict.fromkeys(score.METHODS, _score_based),
}


def reconstructor(method: Method, device: str) -> Reconstructor:
    model = _model(method.model, device) if method.model else None
    return lambda m, seed: KINDS[method.kind](method, model, m, seed)


def check(methods: Sequence[Method]) -> None:
    """Refuse what cannot be run, before anything is."""
    names = [method.name for method in methods]
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"the methods are {', '.join(names) or 'none'}: expected different names, and at least one")
    for method in methods:
        if method.kind not in KINDS:
            raise ValueError(f"unknown method {method.kind!r}; known: {', '.join(KINDS)}")
        if not method.model and method.kind not in ("zero_filled", "total_variation"):
            raise ValueError(f"method {method.name} needs a model")


def chosen(evaluation: Evaluation) -> list[tuple[Case, Method]]:
    """All that is to be reconstructed, and by what: methods have their names, and the model that is for the case."""
    methods = [replace(method, name=method.name or method.kind) for method in evaluation.methods]
    check(methods)
    known = {method.name for method in methods}
    labels = [choice.name for choice in evaluation.cases]
    if len(set(labels)) < len(labels):
        raise ValueError(f"the cases are called {', '.join(labels)}: give each a label of its own")
    found = []
    for choice in evaluation.cases:
        if unknown := set(choice.methods) - known:
            raise ValueError(f"cases ask for the methods {', '.join(sorted(unknown))}; known: {', '.join(known)}")
        own = [method for method in methods if not choice.methods or method.name in choice.methods]
        for case in cases_of(choice):
            where = {"label": case.label, "acceleration": f"{case.acceleration:g}"}
            found += [(case, replace(method, model=method.model.format(**where))) for method in own]
    return found


def tuned(method: Method, evaluation: Evaluation, acceleration: float, out: Path) -> Method:
    """Total variation with the weight of the highest PSNR on eight slices of `tune`, found once for an acceleration."""
    if method.kind != "total_variation" or method.weight:
        return method
    path = out / f"weight-{method.name}-{acceleration:g}x.json"
    if not path.exists():
        like = next(c for c in evaluation.cases if c.protocol == "simulated" or method.tune)
        choice = Cases(
            source=method.tune, accelerations=(acceleration,), snr=like.snr, family=like.family, label="tune"
        )
        found = cases_of(choice)
        made = [case.make() for case in found[5 :: max(len(found) // 8, 1)]]
        quality = {}
        for weight in WEIGHTS:
            images = [baselines.total_variation(m, weight).mean for m in made]
            quality[weight] = float(np.mean([quality_of(x, m)["psnr"] for x, m in zip(images, made, strict=True)]))
        _write(path, json.dumps({"weight": max(quality, key=lambda w: quality[w]), "psnr": quality}) + "\n")
    return replace(method, weight=json.loads(path.read_text())["weight"])


# --- rows -----------------------------------------------------------------------------------------------------------


def target_of(m: Measurement) -> Tensor:
    """What a protocol compares with, in the scan's own units."""
    if m.target is None and m.truth is None:
        raise ValueError("a prospective scan has no truth to compare with")
    return (m.target if m.target is not None else m.truth.abs()) / m.scale  # type: ignore[union-attr]


def fitted(image: Any, target: Tensor) -> Tensor:
    """An image in the target's matrix: its centre."""
    image = torch.as_tensor(image).cpu()
    top, left = ((a - b) // 2 for a, b in zip(image.shape, target.shape, strict=True))
    return image[top : top + target.shape[0], left : left + target.shape[1]]


def quality_of(image: Any, m: Measurement) -> dict[str, float]:
    target = target_of(m)
    return {name: float(metric(fitted(image, target), target)) for name, metric in metrics.METRICS.items()}


def evaluate(
    evaluation: Evaluation,
    out: Path,
    *,
    device: str = "cpu",
    rank: int = 0,
    world: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Path | None:
    """Fill in what is missing; returns rows.csv if all is there."""
    wanted = chosen(evaluation)
    claim(out, evaluation, sorted({method.model for _, method in wanted if method.model}))
    mine = [(c, m) for c, m in wanted[rank::world] if not part_of(out, c, m).exists()]
    for done, (case, method) in enumerate(mine):
        run(case, tuned(method, evaluation, case.acceleration, out), evaluation.seed, out, device)
        if progress is not None:
            progress(done + 1, len(mine))
    if not all(part_of(out, c, m).exists() for c, m in wanted):
        return None
    return write_rows(out, wanted)


def claim(out: Path, evaluation: Evaluation, models: Sequence[str]) -> None:
    """The folder is for this evaluation, which may have more methods and cases than last time, or fewer; but a method,
    a case and a model that was there must be what it was."""
    runtime.claim(out, rank=0)
    path = out / "evaluation.json"
    content: dict[str, Any] = {
        "seed": evaluation.seed,
        "cases": {c.name: _meaning(c) for c in evaluation.cases},
        "methods": {m.name or m.kind: _meaning(m) for m in evaluation.methods},
        "weights": {name: describe(name)[0]["sha256"][:16] for name in models},
    }
    was = json.loads(path.read_text()) if path.exists() else {}
    shared = {key: values for key, values in config.differences(was, content).items() if None not in values}
    if shared:
        told = "; ".join(f"{key} was {before!r}, is {now!r}" for key, (before, now) in shared.items())
        raise ValueError(f"{out} holds another evaluation: {told}. Choose another --out")
    merged = {key: was.get(key, {}) | value if isinstance(value, dict) else value for key, value in content.items()}
    _write(path, json.dumps(merged | {"last": config.to_dict(evaluation)}, indent=1) + "\n")


def _meaning(choice: Cases | Method) -> dict[str, Any]:
    """What decides an image: not which slices are taken, nor which methods run on them."""
    return {k: v for k, v in config.to_dict(choice).items() if k not in ("every", "methods", "accelerations")}


def part_of(out: Path, case: Case, method: Method) -> Path:
    return out / "parts" / method.name / f"{case.name}.npz"


def run(case: Case, method: Method, seed: int, out: Path, device: str, keep: int = 0) -> None:
    """One reconstruction, written under its name when it is whole, with the first `keep` of its samples."""
    m, call = case.make(), reconstructor(method, device)
    own = seed_of(seed, int(hashlib.sha256(case.name.encode()).hexdigest()[:8], 16))
    start = time.monotonic()
    recon = call(m, own)
    seconds = time.monotonic() - start
    target = target_of(m)
    row = {
        "label": case.label,
        "protocol": case.protocol,
        "volume": case.volume,
        "slice": case.slice,
        "acceleration": case.acceleration,
        "method": method.name,
        **{f"{name}_slice": value for name, value in quality_of(recon.mean, m).items()},
        "samples": len(recon.samples),
        "calls": recon.calls * len(recon.samples),
        "seconds": round(seconds, 3),
        "seed": own,
    }
    shown = magnitudes(recon, target)
    images = {"mean": fitted(recon.mean, target), "std": fitted(recon.std, target), "target": target}
    images |= {"samples": shown[:keep]}
    path = part_of(out, case, method)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{runtime.here()}.{path.name}")
    try:
        arrays: dict[str, Any] = {name: np.asarray(image, np.float32) for name, image in images.items()}
        by_count = [float(metrics.psnr(mean, target)) for mean in running_means(shown)]
        np.savez(part, **arrays, scale=m.scale, by_count=by_count, row=np.array(json.dumps(row)))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def magnitudes(recon: Reconstruction, target: Tensor) -> Tensor:
    """All samples as images in the target's matrix.  (N, H, W)"""
    samples = torch.as_tensor(recon.samples).cpu()
    return torch.stack([fitted(x.abs() if x.is_complex() else x, target) for x in samples])


def running_means(samples: Tensor) -> Tensor:
    """The mean of the first 1, 2, ... samples."""
    return samples.cumsum(0) / torch.arange(1, len(samples) + 1).reshape(-1, 1, 1)


def write_rows(out: Path, wanted: Sequence[tuple[Case, Method]]) -> Path:
    """All rows in the order of the configuration, each with the sha256 of what all of them were measured from."""
    listed = sorted({(case.name, case.data) for case, _ in wanted})
    manifest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]
    rows = []
    for case, method in wanted:
        with np.load(part_of(out, case, method), allow_pickle=False) as part:
            rows.append(json.loads(str(part["row"])) | {"manifest": manifest})
    path = out / "rows.csv"
    part = path.with_name(f".{runtime.here()}.rows.csv")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)
    return path


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{runtime.here()}.{path.name}")
    part.write_text(text)
    part.replace(path)
