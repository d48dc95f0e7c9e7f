"""Scans -> results on disk: `mcddpm reconstruct`, slice by slice, without doing anything twice.

    OUT/NAME.h5, ...         the result of a scan, whole or not there
    OUT/.parts/              what was asked, and slices that are done, until their scan is (`system.workspace`)

Every slice depends on the seed, the scan's name and its place alone. So processes share slices without talking to each
other (torchrun; any number, on any machines that see the folder), and the one that finds a scan complete writes it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm import __version__
from mcddpm.data import writers
from mcddpm.data.writers.nifti import nifti_companions
from mcddpm.diffusion.samplers import Snapshot
from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.collect import result_of
from mcddpm.reconstruction.error_bars import ErrorBars, ScanBars, SliceBars
from mcddpm.reconstruction.inputs import Scan, Task, find
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.reconstruction.sample import MEMORY, check, reconstruct
from mcddpm.system import files
from mcddpm.system import memory as budget
from mcddpm.system.processes import Share
from mcddpm.system.progress import Notice, Once, Progress, Quiet, warning
from mcddpm.system.workspace import Workspace

Watch = Callable[[Scan, int, Measurement, Snapshot], None]
WRITERS = {"h5": writers.write_h5, "nifti": writers.write_nifti, "dicom": writers.write_dicom}


def reconstruct_scans(
    inputs: Sequence[str],
    out: Path,
    task: Task,
    model: Denoiser,
    bars: ErrorBars | None = None,
    *,
    memory: float | str = MEMORY,
    share: Share | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> list[Path]:
    """Reconstruct files, folders and globs into `out`; returns the results that are there when this process is done.

    model: that which the task names. bars: what the task's interval and self-check are made with. watch: sees every
    step of every slice; an exception that it raises ends the run, which may be gone on with.
    """
    _check(task, model, memory)
    scans = find(inputs, out, task)
    job = Job(
        Workspace(out, "reconstruction", share or Share(), hidden=True),
        model,
        bars,
        memory,
        progress or Quiet(),
        watch,
    )
    job.claim(scans, task)
    failed = job.run(scans)
    results = [path for scan in scans if job.finish(scan) for path in scan.targets(out)]
    job.summarise(scans)
    if failed:
        job.wait_for([scan for scan in scans if scan.name not in failed])
        why = "; ".join(failed.values())
        raise ValueError(f"{len(failed)} of {len(scans)} scans could not be reconstructed: {why}")
    return results


def _check(task: Task, model: Denoiser, memory: float | str) -> None:
    """All that can be known to be wrong, before a folder is claimed."""
    if isinstance(memory, str):
        budget.parse(memory)
    check(model, task.plan)
    if model.card is not None and model.card.operator.kind == "radon":
        raise ValueError(f"model {task.model} is for CT, which this command does not read yet; use mcddpm.reconstruct")


@dataclass(frozen=True)
class Job:
    """One process's work on a folder."""

    workspace: Workspace
    model: Denoiser
    bars: ErrorBars | None
    memory: float | str
    progress: Progress
    watch: Watch | None = None

    @cached_property
    def once(self) -> Once:
        return Once(self.progress)

    @property
    def out(self) -> Path:
        return self.workspace.folder

    def claim(self, scans: Sequence[Scan], task: Task) -> None:
        """Make the folder this run's; refuse another run's, and files that are not of a run of ours."""
        if (self.workspace.parts / "run.json").exists():  # its slices have the names of ours, and may be others
            message = "was begun by another version of mcddpm, and cannot be gone on with: choose another --out"
            raise ValueError(f"{self.out} {message}")
        known = self.workspace.meaning().get("named", {}).get("inputs", {})
        for scan in scans:
            if known.get(scan.name, scan.sha256) != scan.sha256:
                raise ValueError(f"{self.out} holds {scan.name} of another file than {scan.path}. Choose another --out")
            taken = [] if scan.name in known else [path for path in scan.products(self.out) if path.exists()]
            if taken:
                raise ValueError(f"{taken[0]} is there already and not of a run of ours; choose another --out")
        card = self.model.card
        fixed = {"task": task.json, "model_sha256": card.sha256 if card else "", "made_by": f"mcddpm {__version__}"}
        fixed |= self.bars.origin if self.bars else {}
        self.workspace.claim(fixed, {"inputs": {scan.name: scan.sha256 for scan in scans}})
        if self.workspace.share.rank == 0 and self.bars:
            self._say(self.bars.notices)

    # Slices.

    def run(self, scans: Sequence[Scan]) -> dict[str, str]:
        """This process's slices. Returns the scans that failed, and why; the others went on."""
        mine = self.workspace.share.of([(scan, index) for scan in scans for index in range(scan.slices)])
        mine = [(scan, index) for scan, index in mine if not self._is_done(scan) and not self._has(scan, index)]
        failed: dict[str, str] = {}
        self.progress.at(0, len(mine))
        for done, (scan, index) in enumerate(mine):
            if scan.name not in failed:
                try:
                    self._draw(scan, index)
                except ValueError as error:  # this scan's fault: the others go on
                    where = "" if str(scan.path) in str(error) else f"{scan.path}, slice {index}: "
                    failed[scan.name] = f"{where}{error}"
                    self.progress.say(warning(failed[scan.name]))
            self.progress.at(done + 1, len(mine), scan.name)
            self.finish(scan)
        return failed

    def _pieces(self, scan: Scan) -> list[str]:
        return [f"{scan.name}/slice-{index:05d}" for index in range(scan.slices)]

    def _has(self, scan: Scan, index: int) -> bool:
        return self.workspace.has(self._pieces(scan)[index])

    def _draw(self, scan: Scan, index: int) -> None:
        """Reconstruct a slice and keep it."""
        piece = self._pieces(scan)[index]
        measurement = scan.measurement(index)
        if measurement is None:
            return self.workspace.keep(piece, *_empty(scan))
        recon = reconstruct(
            self.model,
            measurement,
            replace(scan.task.plan, seed=scan.seed(index)),
            memory=self.memory,
            callback=None if self.watch is None else partial(self.watch, scan, index, measurement),
        )
        doubt = SliceBars()
        if self.bars is not None:
            seed = scan.seed(index, "self-check")
            doubt = self.bars.of_slice(self.model, measurement, recon, seed=seed, memory=self.memory)
        notices = (*recon.notices, *doubt.notices)
        self.once.say(scan.name, f"{scan.path}, slice {index}", notices)
        notes = {"scale": measurement.scale, "calls": recon.calls, "warnings": sorted({n.text for n in notices})}
        notes |= {"noise": recon.noise, "noise_from": recon.noise_from}
        return self.workspace.keep(piece, _images(measurement, recon) | dict(doubt.images), notes | dict(doubt.notes))

    # Scans.

    def _is_done(self, scan: Scan) -> bool:
        return all(target.exists() for target in scan.targets(self.out))

    def finish(self, scan: Scan) -> bool:
        """Write a scan whose slices are all there; by one process only. True if its results are there."""
        pieces = self._pieces(scan)
        if not self._is_done(scan):
            if not self.workspace.all_there(pieces):
                return False
            with files.locked(self.workspace.parts / scan.name / "lock"):
                if not self._is_done(scan):
                    self._write(scan, pieces)
        self.workspace.remove(pieces)
        files.sweep(self.workspace.parts / scan.name)
        return True

    def _write(self, scan: Scan, pieces: Sequence[str]) -> None:
        slices = [self.workspace.read(piece) for piece in pieces]
        doubt = self.bars.of_scan(scan.name, [piece.notes for piece in slices]) if self.bars else ScanBars()
        result = result_of(scan, self.model, slices, doubt)
        files.write_json(self._doubt_path(scan), dict(doubt.provenance))  # first, so that no result is there without it
        for name, target in zip(scan.task.formats, scan.targets(self.out), strict=True):
            if target.exists():
                continue
            if name == "nifti":  # what a run left that was killed between its files
                for path in nifti_companions(target).values():
                    path.unlink(missing_ok=True)
            WRITERS[name](target, result)
            self.progress.say(Notice("written", f"written: {target}"))
        self._say(doubt.notices)

    def _doubt_path(self, scan: Scan) -> Path:
        return self.workspace.parts / scan.name / "bars.json"

    def wait_for(self, scans: Sequence[Scan]) -> None:
        """Until other processes are done with these: torchrun ends all when one of them ends with an error."""
        while self.workspace.share.world > 1 and not all(self.finish(scan) for scan in scans):
            time.sleep(1)

    def summarise(self, scans: Sequence[Scan]) -> None:
        """The last word of a run, on its scans that are done, now or before."""
        if self.bars is None:
            return
        provenance: dict[str, Mapping[str, Any] | None] = {
            scan.name: json.loads(self._doubt_path(scan).read_text()) if self._is_done(scan) else None for scan in scans
        }
        self._say(self.bars.of_run(provenance))

    def _say(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            self.progress.say(notice)


def _images(measurement: Measurement, recon: Reconstruction) -> dict[str, np.ndarray]:
    """What is kept of a slice."""
    A, scale = measurement.operator, measurement.scale
    images = {"samples": recon.samples, "mean": recon.mean, "std": recon.std}
    images["zero_filled"] = A.pinv(measurement.y_m).abs() / scale
    if measurement.truth is not None:
        images["truth"] = measurement.truth.abs() / scale
    images["mask"] = measurement.mask.expand(measurement.y_m.shape[-2:])
    return {key: np.asarray(image) for key, image in images.items()}


def _empty(scan: Scan) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A slice with nothing in it: what is kept of it."""
    plane = np.zeros(scan.volume.shape[-2:], np.float32)
    samples = np.zeros((scan.task.plan.samples, *plane.shape), np.complex64)
    return {"samples": samples, "mean": plane, "std": plane, "zero_filled": plane}, {"empty": True}
