"""Scans -> results on disk: `mcddpm reconstruct`, slice by slice, without doing anything twice.

    OUT/NAME.h5, ...         the result of a scan, whole or not there
    OUT/.parts/run.json      what was asked: the same command again goes on, another one is refused
    OUT/.parts/NAME/         slices that are done, until their scan is

Every slice depends on the seed, the scan's name and its place alone. So processes share slices without talking to each
other (torchrun; any number, on any machines that see the folder), and the one that finds a scan complete writes it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from mcddpm import __version__, config, conformal, runtime, selfcheck, writers
from mcddpm import memory as budget
from mcddpm.checkpoint import load_model
from mcddpm.datasets import Measurement
from mcddpm.denoiser import Denoiser
from mcddpm.parts import Parts, keep, origin
from mcddpm.reconstruct import MEMORY, check, reconstruct
from mcddpm.samplers import Progress
from mcddpm.scans import FORMATS, Scan, Task, find


class Report(Protocol):
    """Who is told how it goes."""

    def start(self, slices: int) -> None: ...
    def slice(self, name: str) -> None: ...
    def say(self, text: str) -> None: ...


Watch = Callable[[Scan, int, Measurement, Progress], None]


class Quiet:
    def start(self, slices: int) -> None: ...
    def slice(self, name: str) -> None: ...
    def say(self, text: str) -> None: ...


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
    watch: Watch | None = None,
) -> list[Path]:
    """Reconstruct files, folders and globs into `out`; returns the results that are there when this process is done.

    watch: sees every step of every slice; an exception that it raises ends the run, which may be gone on with.
    """
    job = Job(out, _checked_model(task, memory, device), memory, report or Quiet(), watch)
    scans = find(inputs, out, task)
    claim(out, scans, task, job.model)
    if rank == 0:
        job.tell_origin(task)
    mine = [(scan, index) for scan in scans for index in range(scan.slices)][rank::world]
    mine = [(scan, index) for scan, index in mine if not job.is_done(scan) and not job.has(scan, index)]
    job.report.start(len(mine))
    failed: dict[str, str] = {}
    for scan, index in mine:
        if scan.name not in failed:
            try:
                job.draw(scan, index)
            except ValueError as error:  # this scan's fault: the others go on
                failed[scan.name] = (
                    str(error) if str(scan.path) in str(error) else f"{scan.path}, slice {index}: {error}"
                )
                job.report.say(failed[scan.name])
        job.report.slice(scan.name)
        job.finish(scan)
    results = [path for scan in scans if job.finish(scan) for path in scan.targets(out)]
    if task.self_check:
        job.summarise(scans)
    if failed:
        others = [scan for scan in scans if scan.name not in failed]
        while world > 1 and not all(job.finish(scan) for scan in others):
            time.sleep(1)  # torchrun ends all processes when one of them does with an error
        why = "; ".join(failed.values())
        raise ValueError(f"{len(failed)} of {len(scans)} scans could not be reconstructed: {why}")
    return results


def _checked_model(task: Task, memory: float | str, device: str | torch.device) -> Denoiser:
    """The model, after all that can be known to be wrong with the task before a folder is claimed for it."""
    for name in task.formats:
        if name not in FORMATS:
            raise ValueError(f"unknown format {name}; known: {', '.join(FORMATS)}")
        library = {"nifti": "nibabel", "dicom": "pydicom"}.get(name)
        if library and importlib.util.find_spec(library) is None:
            raise ValueError(f"format {name} needs the package {library}: pip install 'mcddpm[medical]'")
    if isinstance(memory, str):
        budget.parse(memory)
    if not task.snr > 0:
        raise ValueError(f"snr is {task.snr}, expected a value above 0")
    model = check(load_model(task.model, device), task.samples, task.steps, task.sampler, task.grid)
    if task.interval is not None:
        known = conformal.of_card(model.card)
        if task.samples < 2 or task.sampler == "mean":
            raise ValueError(f"--interval takes 2 samples or more, asked for {task.samples}")
        known.check(task.interval)
    if task.self_check:
        selfcheck.of_card(model.card)
    if model.card["operator"]["kind"] == "radon":
        raise ValueError(f"model {task.model} is for CT, which this command does not read yet; use mcddpm.reconstruct")
    return model


def claim(out: Path, scans: Sequence[Scan], task: Task, model: Denoiser) -> None:
    """Make the folder this run's, or find that it is; refuse another run's, and files that are not of a run of ours."""
    runtime.claim(out, rank=0)
    asked = asdict(task) | {"formats": list(task.formats), "snr": str(task.snr)}
    content = {"task": asked, "model_sha256": model.card.get("sha256", ""), "made_by": f"mcddpm {__version__}"}
    content |= {key: origin(model, key) for key in _fitted(task)}
    path = out / ".parts" / "run.json"
    changed = config.differences(json.loads(path.read_text()), content) if path.exists() else {}
    if changed:
        told = [f"{key} was {was!r}, is {now!r}" for key, (was, now) in changed.items()]
        raise ValueError(f"{out} holds results of another run: {'; '.join(told)}. Choose another --out")
    marks = [(scan, out / ".parts" / scan.name / "input.json") for scan in scans]
    for scan, mark in marks:
        taken = [] if mark.exists() else [product for product in scan.products(out) if product.exists()]
        if taken:
            raise ValueError(f"{taken[0]} is there already and not of a run of ours; choose another --out")
        if mark.exists() and json.loads(mark.read_text())["sha256"] != scan.sha256:
            raise ValueError(f"{out} holds {scan.name} of another file than {scan.path}. Choose another --out")
    _create(path, content)
    for scan, mark in marks:
        _create(mark, {"sha256": scan.sha256})


def _create(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file unless another process was first; whole from the moment it is there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{runtime.here()}")
    part.write_text(json.dumps(content, indent=1) + "\n")
    with contextlib.suppress(FileExistsError):
        os.link(part, path)
    part.unlink()


@dataclass(frozen=True)
class Job:
    """One process's work on a folder."""

    out: Path
    model: Denoiser
    memory: float | str
    report: Report
    watch: Watch | None = None

    def parts(self, scan: Scan) -> list[Path]:
        folder = self.out / ".parts" / scan.name
        return [folder / f"slice-{index:05d}.npz" for index in range(scan.slices)]

    def is_done(self, scan: Scan) -> bool:
        return all(target.exists() for target in scan.targets(self.out))

    def has(self, scan: Scan, index: int) -> bool:
        """Whether a slice is there; one that cannot be read is removed."""
        path = self.parts(scan)[index]
        if path.exists():
            try:
                with np.load(path, allow_pickle=False) as part:
                    return "notes" in part
            except (OSError, EOFError, ValueError, zipfile.BadZipFile):
                path.unlink()
        return False

    def draw(self, scan: Scan, index: int) -> None:
        """Reconstruct a slice and keep it."""
        task, path = scan.task, self.parts(scan)[index]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            measurement = scan.measurement(index)
            if measurement is None:
                return keep(path, *_empty(scan))
            recon = reconstruct(
                self.model,
                measurement,
                samples=task.samples,
                steps=task.steps,
                sampler=task.sampler,
                grid=task.grid,
                seed=scan.seed(index),
                memory=self.memory,
                callback=None if self.watch is None else partial(self.watch, scan, index, measurement),
            )
            found = self._checked(measurement, scan.seed(index, "self-check")) if task.self_check else None
            ends = recon.interval(task.interval, found.overall if found else None) if task.interval is not None else ()
        told = sorted({str(warning.message) for warning in caught})
        self._tell(scan, index, told)
        A, scale = measurement.operator, measurement.scale
        images = {"samples": recon.samples, "mean": recon.mean, "std": recon.std}
        images |= dict(zip(("lower", "upper"), ends, strict=False))
        images["zero_filled"] = A.pinv(measurement.y_m).abs() / scale
        if measurement.truth is not None:
            images["truth"] = measurement.truth.abs() / scale
        arrays = {key: np.asarray(image) for key, image in images.items()}
        arrays["mask"] = measurement.mask.expand(measurement.y_m.shape[-2:]).numpy()
        notes = {"scale": scale, "calls": recon.calls, "warnings": told}
        if found is not None:
            arrays["surprise"] = np.asarray(found.surprise.image, np.float32)
            told_of = {"p": found.p, "score": found.score, "reason": found.reason, "calls": found.surprise.calls}
            notes["self_check"] = told_of | found.surprise.statistics
        return keep(path, arrays, notes)

    def _checked(self, measurement: Measurement, seed: int) -> selfcheck.Checked | None:
        try:
            return selfcheck.check(self.model, measurement, seed=seed, memory=self.memory)
        except selfcheck.Unchecked as error:
            warnings.warn(str(error), stacklevel=2)
            return None

    def tell_origin(self, task: Task) -> None:
        """What scans intervals and self-check hold for: nothing in a file says if it is one of those."""
        for key in _fitted(task):
            known = origin(self.model, key)
            what = {"calibration": "intervals were", "self_check": "the self-check was"}[key]
            self.report.say(f"{what} fitted on {known['data']} ({known['date']}): for scans like those")

    def _tell(self, scan: Scan, index: int, texts: Sequence[str]) -> None:
        """Each kind of warning once a scan, not for every slice."""
        for text in texts:
            kind = re.sub(r"[0-9.]+", "", text)
            if kind not in scan.told:
                scan.told.add(kind)
                self.report.say(f"warning: {scan.path}, slice {index}: {text}")

    def finish(self, scan: Scan) -> bool:
        """Write a scan whose slices are all there; by one process only. True if its results are there."""
        parts = self.parts(scan)
        if not self.is_done(scan):
            if not all(part.exists() for part in parts):
                return False
            with runtime.locked(parts[0].parent / "lock"):
                if not self.is_done(scan):
                    self._write(scan, parts)
        for part in parts:
            part.unlink(missing_ok=True)
        for torn in parts[0].parent.glob(".*.slice-*.npz"):  # what killed processes were writing
            if runtime.is_gone(torn.name[1:].split(".slice-")[0]):
                torn.unlink(missing_ok=True)
        return True

    def _write(self, scan: Scan, parts: Sequence[Path]) -> None:
        result = Parts(parts).result(scan, self.model)
        if scan.task.self_check:  # first, so that no result is there without it
            _create(self._check_path(scan), result.provenance["self_check"])
        for name, target in zip(scan.task.formats, scan.targets(self.out), strict=True):
            if target.exists():
                continue
            if name == "nifti":  # what a run left that was killed between its files
                for path in writers.nifti_companions(target).values():
                    path.unlink(missing_ok=True)
            WRITERS[name](target, result)
            self.report.say(f"written: {target}")
        if scan.task.self_check:
            self._tell_check(scan, result.provenance["self_check"])

    def _check_path(self, scan: Scan) -> Path:
        return self.out / ".parts" / scan.name / "self-check.json"

    def summarise(self, scans: Sequence[Scan]) -> None:
        """The last word of a run, on its scans that are done, now or before: which the model does not understand, which
        hold slices that it does not, and which could not be checked."""
        paths = {scan.name: self._check_path(scan) for scan in scans if self.is_done(scan)}
        checks = {name: json.loads(path.read_text()) for name, path in paths.items()}
        flagged = [name for name, check in checks.items() if check["flagged"]]
        unsure = [name for name, check in checks.items() if check["p"] is None]
        some = {name: _unusual(check) for name, check in checks.items() if name not in flagged and _unusual(check)}
        told = f"self-check: {len(flagged)} of {len(checks)} scans are not understood by the model"
        told += f": {', '.join(flagged)}" if flagged else ""
        told += f"; {open_} more are not finished" if (open_ := len(scans) - len(checks)) else ""
        told += f"; not checked (the log says why): {', '.join(unsure)}" if unsure else ""
        slices = (f"{name} ({', '.join(map(str, places))})" for name, places in some.items())
        self.report.say(told + (f"; unusual slices in {', '.join(slices)}" if some else ""))

    def _tell_check(self, scan: Scan, check: dict[str, Any]) -> None:
        if check["p"] is None:
            return self.report.say(f"warning: {scan.name} could not be self-checked, so do not rely on its error bars")
        told = f"self-check of {scan.name}: p = {check['p']:.3f} ({check['calls']} extra network calls)"
        told += f", on {check['checked']} of {check['of']} slices" if check["checked"] < check["of"] else ""
        if check["flagged"]:
            reasons = Counter(one["reason"] for one in check["slices"] if one["flagged"])
            why = f" (most often by {reasons.most_common(1)[0][0]})" if reasons else ""
            told = f"warning: {told}: the model does not understand this scan{why}; do not trust its error bars"
        if unusual := _unusual(check):
            chance = selfcheck.ALARM * len(check["slices"])
            told += f"; unusual slices: {', '.join(map(str, unusual))} (among those of calibration, some {chance:.1f})"
        return self.report.say(told)


def _fitted(task: Task) -> list[str]:
    """What a task uses of a card that was fitted."""
    return ["calibration"] * (task.interval is not None) + ["self_check"] * task.self_check


def _empty(scan: Scan) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A slice with nothing in it: what is kept of it."""
    plane = np.zeros(scan.volume.shape[-2:], np.float32)
    samples = np.zeros((1 if scan.task.sampler == "mean" else scan.task.samples, *plane.shape), np.complex64)
    return {"samples": samples, "mean": plane, "std": plane, "zero_filled": plane}, {"empty": True}


def _unusual(check: dict[str, Any]) -> list[int]:
    return [one["slice"] for one in check["slices"] if one["flagged"]]


WRITERS = {"h5": writers.write_h5, "nifti": writers.write_nifti, "dicom": writers.write_dicom}
