"""Scans on disk -> results on disk: a folder of files, slice by slice, without doing anything twice.

    OUT/run.json             what was asked: the same command again goes on, another one is refused
    OUT/NAME.h5, ...         the result of a scan, whole or not there
    OUT/.parts/NAME/         slices that are done, until their scan is

Every slice depends on the seed, the scan's name and its place alone. So processes share slices without talking to each
other (torchrun; any number, on any machines that see the folder), and the one that finds a scan complete writes it.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.util
import json
import os
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mcddpm import __version__, config, datasets, masks, runtime, simulation, writers
from mcddpm.checkpoint import load_model
from mcddpm.datasets import Measurement
from mcddpm.denoiser import Denoiser
from mcddpm.feed import seed_of
from mcddpm.fetch import file_sha256
from mcddpm.operators import Fourier
from mcddpm.readers import ENDINGS, Volume, open_volume
from mcddpm.reconstruct import MEMORY, SAMPLER, SAMPLES, STEPS, check, reconstruct

FORMATS = {"h5": ".h5", "nifti": ".nii.gz", "dicom": ""}


@dataclass(frozen=True)
class Task:
    """What is asked of every scan; together with the scan it decides every number in the result.

    mask: a family of `masks.MASKS` with `acceleration`, or a file; empty: as the scan itself was sampled.
    snr: noise added to magnitude images, which get a simulated phase in any case.
    """

    model: str = "default"
    mask: str = ""
    acceleration: float = 4.0
    samples: int = SAMPLES
    sampler: str = SAMPLER
    steps: int = STEPS
    grid: str | None = None
    seed: int = 0
    snr: float = float("inf")
    kind: str | None = None
    coil_axis: int | None = None
    formats: tuple[str, ...] = ("h5",)


class Report(Protocol):
    """Who is told how it goes."""

    def start(self, slices: int) -> None: ...
    def slice(self, name: str) -> None: ...
    def say(self, text: str) -> None: ...


class Quiet:
    def start(self, slices: int) -> None: ...
    def slice(self, name: str) -> None: ...
    def say(self, text: str) -> None: ...


@dataclass(frozen=True)
class Scan:
    """One input: its volume, and the name of its results."""

    name: str
    volume: Volume
    task: Task = field(repr=False)
    told: set[str] = field(default_factory=set, repr=False)

    @cached_property
    def sha256(self) -> str:
        path = self.volume.path
        if path.is_file():
            return file_sha256(path)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()

    def measurement(self, index: int) -> Measurement | None:
        """A slice as it was sampled, or under-sampled as asked; None if there is nothing in it."""
        x, task = self.volume[index], self.task
        if not x.any():
            return None
        mask = self.mask(index) if task.mask else None
        if self.volume.kind == "kspace":
            return datasets.PROTOCOLS["fastmri"](self.volume, index, task.acceleration, mask)
        if not x.is_complex():
            x = simulation.scan(x, self.seed(index, "phase"), snr=task.snr)
        A = Fourier()
        assert mask is not None
        return datasets.measure(A(x), mask, A, x)

    def mask(self, index: int) -> Tensor:
        """Seeded by the scan and not by `seed`: other samples are of the same measurement."""
        shape = self.volume.shape[-2:]
        seed = datasets.mask_seed(self.volume.path, index)
        return masks.get(self.task.mask, shape, acceleration=self.task.acceleration, seed=seed)

    def seed(self, index: int, what: str = "samples") -> int:
        return seed_of(self.task.seed if what == "samples" else 0, zlib.crc32(f"{what} {self.name}".encode()), index)


def reconstruct_scans(
    inputs: Sequence[str],
    out: Path,
    task: Task,
    *,
    memory: float | str = MEMORY,
    device: str | torch.device = "cpu",
    rank: int = 0,
    world: int = 1,
    report: Report | None = None,
) -> list[Path]:
    """Reconstruct files, folders and globs into `out`; returns the results that are there when this process is done."""
    report = report or Quiet()
    _check_formats(task.formats)
    model = check(load_model(task.model, device), task.samples, task.steps, task.sampler)
    scans = find(inputs, task)
    claim(out, scans, task, model)
    places = [(scan, index) for scan in scans for index in range(len(scan.volume)) if not is_done(out, scan)]
    mine = [(scan, index) for scan, index in places[rank::world] if not part_path(out, scan, index).exists()]
    report.start(len(mine))
    failed: dict[str, str] = {}
    for scan, index in mine:
        if scan.name not in failed:
            try:
                draw(out, scan, index, model, memory, report)
            except ValueError as error:  # this scan's fault: the others go on
                failed[scan.name] = f"{scan.volume.path}, slice {index}: {error}"
                report.say(failed[scan.name])
        report.slice(scan.name)
        finish(out, scan, model, report)
    results = [path for scan in scans if finish(out, scan, model, report) for path in targets(out, scan)]
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(scans)} scans could not be reconstructed: {'; '.join(failed.values())}"
        )
    return results


def _check_formats(formats: Sequence[str]) -> None:
    """Known, and their libraries here: found out before the work is done and not after."""
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"unknown format {name}; known: {', '.join(FORMATS)}")
        library = {"nifti": "nibabel", "dicom": "pydicom"}.get(name)
        if library and importlib.util.find_spec(library) is None:
            raise ValueError(f"format {name} needs the package {library}: pip install 'mcddpm[medical]'")


# --- what there is to do --------------------------------------------------------------------------------------------


def find(inputs: Sequence[str], task: Task) -> list[Scan]:
    """All scans of these files, folders and globs, opened and checked before any work is done."""
    places: dict[str, Path] = {}
    for given in inputs:
        matches = [given] if Path(given).exists() else sorted(glob.glob(given, recursive=True))  # noqa: PTH207
        if not matches:
            raise ValueError(f"no file or folder {given}")
        for match in matches:
            for name, path in _within(Path(match)):
                if places.setdefault(name, path) != path:
                    raise ValueError(f"{places[name]} and {path} would both be written as {name}; give them apart")
    if not places:
        raise ValueError("nothing to reconstruct: expected at least one file or folder")
    scans = [Scan(n, open_volume(p, kind=task.kind, coil_axis=task.coil_axis), task) for n, p in places.items()]
    for scan in scans:
        _check(scan)
    return scans


def _within(path: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of a file; of all scans in a folder, named by their place in it; or of a folder of DICOM files."""
    if path.is_file():
        yield _name(path.name), path
        return
    files = [f for f in sorted(path.rglob("*")) if f.is_file() and _name(f.name) != f.name and ".parts" not in f.parts]
    for file in files:
        yield _name(str(file.relative_to(path))), file
    if not files:
        yield path.resolve().name, path


def _name(file: str) -> str:
    """Without the ending of a format that holds a whole scan."""
    for ending in ENDINGS:
        if file.lower().endswith(ending):
            return file[: -len(ending)]
    return file


def _check(scan: Scan) -> None:
    volume, task = scan.volume, scan.task
    if not task.mask and (volume.kind != "kspace" or volume.mask is None):
        what = "k-space, fully sampled" if volume.kind == "kspace" else "images and no k-space"
        raise ValueError(
            f"{volume.path} holds {what}; for a retrospective study say how to under-sample it: "
            "--mask random_columns --acceleration 4"
        )
    if task.mask and volume.mask is not None:
        factor = f"{masks.acceleration(volume.mask):.1f}x"
        raise ValueError(f"{volume.path} was under-sampled {factor} when it was measured; leave out --mask")
    if task.mask:
        masks.check(scan.mask(0), volume.shape[-2:])


def claim(out: Path, scans: Sequence[Scan], task: Task, model: Denoiser) -> None:
    """Make the folder this run's, or find that it is; refuse one that holds another run's results."""
    asked = asdict(task) | {"formats": list(task.formats), "snr": str(task.snr)}
    content = {"task": asked, "model_sha256": model.card.get("sha256", ""), "made_by": f"mcddpm {__version__}"}
    path = out / "run.json"
    if not path.exists():
        taken = [target for scan in scans for target in targets(out, scan) if target.exists()]
        if taken:
            raise ValueError(f"{taken[0]} is there already and not of a run of ours; choose another --out")
        _create(path, content)
    there = json.loads(path.read_text())
    changed = config.differences(there, content)
    if changed:
        told = [f"{key} was {was!r}, is {now!r}" for key, (was, now) in changed.items()]
        raise ValueError(f"{out} holds results of another run: {'; '.join(told)}. Choose another --out")
    for scan in scans:
        mark = out / ".parts" / scan.name / "input.json"
        if not mark.exists():
            _create(mark, {"sha256": scan.sha256})
        if json.loads(mark.read_text())["sha256"] != scan.sha256:
            raise ValueError(f"{out} holds {scan.name} of another file than {scan.volume.path}. Choose another --out")


def _create(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file unless another process was first; whole from the moment it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content, indent=1) + "\n")
    with contextlib.suppress(FileExistsError):
        os.link(part, path)
    part.unlink()


# --- one slice ------------------------------------------------------------------------------------------------------


def part_path(out: Path, scan: Scan, index: int) -> Path:
    return out / ".parts" / scan.name / f"slice-{index:05d}.npz"


def draw(out: Path, scan: Scan, index: int, model: Denoiser, memory: float | str, report: Report) -> None:
    """Reconstruct a slice and keep it."""
    measurement, task = scan.measurement(index), scan.task
    if measurement is None:
        plane = np.zeros(scan.volume.shape[-2:], np.float32)
        empty = np.zeros((1 if task.sampler == "mean" else task.samples, *plane.shape), np.complex64)
        values = {"samples": empty, "mean": plane, "std": plane, "zero_filled": plane}
        return _keep(part_path(out, scan, index), values, {"empty": True})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recon = reconstruct(
            model,
            measurement,
            samples=task.samples,
            steps=task.steps,
            sampler=task.sampler,
            grid=task.grid,
            seed=scan.seed(index),
            memory=memory,
        )
    for text in {str(warning.message): None for warning in caught}:
        kind = re.sub(r"[0-9.]+", "", text)
        if kind not in scan.told:  # once a scan, not for every slice
            scan.told.add(kind)
            report.say(f"warning: {scan.volume.path}, slice {index}: {text}")
    A, scale = measurement.operator, measurement.scale
    images = {"samples": recon.samples, "mean": recon.mean, "std": recon.std}
    images["zero_filled"] = A.pinv(measurement.y_m).abs() / scale
    if measurement.truth is not None:
        images["truth"] = measurement.truth.abs() / scale
    arrays = {key: np.asarray(image) for key, image in images.items()}
    arrays["mask"] = measurement.mask.expand(measurement.y_m.shape[-2:]).numpy()
    notes = {"scale": scale, "calls": recon.calls, "warnings": recon.warnings}
    return _keep(part_path(out, scan, index), arrays, notes)


def _keep(path: Path, arrays: dict[str, np.ndarray], notes: dict[str, Any]) -> None:
    part = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        np.savez(part, notes=np.array(json.dumps(notes)), **arrays)  # type: ignore[arg-type]
        part.replace(path)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


# --- one scan -------------------------------------------------------------------------------------------------------


def targets(out: Path, scan: Scan) -> list[Path]:
    return [out / f"{scan.name}{FORMATS[name]}" for name in scan.task.formats]


def is_done(out: Path, scan: Scan) -> bool:
    return all(target.exists() for target in targets(out, scan))


def finish(out: Path, scan: Scan, model: Denoiser, report: Report) -> bool:
    """Write a scan whose slices are all there; by one process only. True if its results are there."""
    folder = out / ".parts" / scan.name
    parts = [part_path(out, scan, index) for index in range(len(scan.volume))]
    if is_done(out, scan):
        _clear(parts)
        return True
    if not all(part.exists() for part in parts):
        return False
    with runtime.locked(folder / "lock"):
        if not is_done(out, scan):
            result = Parts(parts).result(scan, model)
            for name, target in zip(scan.task.formats, targets(out, scan), strict=True):
                if not target.exists():
                    _write(name, target, result)
                    report.say(f"written: {target}")
    _clear(parts)
    return True


def _write(name: str, target: Path, result: writers.Result) -> None:
    if name == "nifti":  # what a run left that was killed between its files
        for path in writers.nifti_companions(target):
            path.unlink(missing_ok=True)
    WRITERS[name](target, result)


def _clear(parts: Sequence[Path]) -> None:
    for part in parts:
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class Parts:
    """The slices of a scan that are done, each read when asked for."""

    paths: Sequence[Path]

    def read(self, index: int, key: str) -> np.ndarray | None:
        with np.load(self.paths[index], allow_pickle=False) as part:
            return part.get(key)

    def stack(self, key: str) -> np.ndarray | None:
        """All slices of an entry; zeros for those without it; None if no slice has it."""
        found = [self.read(index, key) for index in range(len(self.paths))]
        some = next((values for values in found if values is not None), None)
        return None if some is None else np.stack([np.zeros_like(some) if v is None else v for v in found])

    def result(self, scan: Scan, model: Denoiser) -> writers.Result:
        notes = [json.loads(str(self.read(index, "notes"))) for index in range(len(self.paths))]
        task, volume = scan.task, scan.volume
        provenance = {
            "made_by": f"mcddpm {__version__}",
            "model": {"name": task.model, "sha256": model.card.get("sha256", "")},
            "input": {"file": volume.path.name, "sha256": scan.sha256},
            "task": asdict(task) | {"snr": str(task.snr)},
            "simulated_phase": volume.kind == "image" and not volume[0].is_complex(),
            "calls": next((note["calls"] for note in notes if "calls" in note), 0),
            "scale": [note.get("scale") for note in notes],
            "warnings": sorted({text for note in notes for text in note.get("warnings", ())}),
        }
        mean, std = self.stack("mean"), self.stack("std")
        assert mean is not None and std is not None
        beside = {key: self.stack(key) for key in ("zero_filled", "mask", "truth")}
        return writers.Result(
            mean,
            None if task.sampler == "mean" or task.samples == 1 else std,
            provenance,
            Samples(self),
            volume.geometry.affine,
            volume.geometry.dicom,
            beside={key: values for key, values in beside.items() if values is not None},
        )


class Samples(Sequence[np.ndarray]):
    """The samples of each slice, read when asked for: all of them need not fit into memory."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts.paths)

    def __getitem__(self, index: Any) -> Any:
        return self.parts.read(index, "samples")


WRITERS = {"h5": writers.write_h5, "nifti": writers.write_nifti, "dicom": writers.write_dicom}
